"""`oncemore quarantine`: list the items that wait for an operator, and decide about them."""

from __future__ import annotations

import re

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    WholeNumber,
    choice_option,
    combine_options,
    documented_command,
    flag_option,
    ids_option,
    json_option,
    reason_option,
    report_ids,
    store_command,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.decisions import decision_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from oncemore.cli.output import OutputWriter
    from oncemore.control.quarantine_items import QuarantineItem
    from oncemore.steps.engine import Engine

    F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """
oncemore quarantine list --reason outcome_unknown
oncemore quarantine show 01a1e211
oncemore quarantine settle 01a1e211 --applied '{"receipt": 7}' --reason "the bank shows it"
oncemore quarantine rerun 01a1e211 --reason "the disk is replaced"
oncemore quarantine reject 01a1e211 --reason "the order was withdrawn"
"""
_NAMES = ("show", "release", "reject", "rerun", "settle", "notify")
COMMANDS = {**{name: f"quarantine:{name}" for name in _NAMES}, "escalate": "quarantine:escalate"}
#: A run id or a key, or the beginning of one.
RUN_ID = re.compile("[0-9a-f]{4}[0-9a-f-]*")
# The words are those of `held_for` in the log.
HOLD_REASONS = (
    "outcome_unknown",
    "quarantined",
    "checksum_mismatch",
    "poison",
    "dead_letter",
    "approval_needed",
    "governance_blocked",
    "governance_violation",
    "rights_violation",
)


class QuarantineGroup(LazyGroup):
    """The group of the commands; `oncemore quarantine RUN` is short for `… quarantine escalate RUN`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command first, also if the first word is the id of a run."""
        is_id = bool(args) and args[0] not in self.modules and RUN_ID.fullmatch(args[0]) is not None
        return super().parse_args(ctx, ["escalate", *args] if is_id else args)


@click.group(
    "quarantine",
    cls=QuarantineGroup,
    modules={"list": "quarantine:list_", **COMMANDS},
    examples=EXAMPLES,
    default_command="list",
)
def quarantine() -> None:
    """List quarantined items and decide about them.

    An item is a run with an unknown outcome, a run that needs review or lost its workers, an artifact with
    altered bytes, or a dead letter. An ID is an id of the list or a unique prefix. A decision needs a
    reason; it is recorded with the name of the operator. Exit code 1 if another decision came first. The
    default command is `list`; with the id of a run instead of a command, it is `escalate`.
    """


_item_argument = click.argument("item", metavar="ID", shell_complete=params.complete_held_runs,
                     help="An id of the list, or a unique prefix.")  # fmt: skip


_decision_options = combine_options(
    _item_argument,
    reason_option,
    value_option("--version", "N", "Decide only if the item still has this version.", type=WholeNumber(1)),
    decision_options,
)


@store_command("list", "oncemore quarantine list\noncemore quarantine list --step charge --since 2h --json")
@value_option("--step", "NAME", "Only items of this step or topic.", shell_complete=params.complete_steps)
@choice_option("--reason", HOLD_REASONS, f"Only this reason: {', '.join(HOLD_REASONS)}.")
@choice_option("--kind", ("run", "artifact", "event"), "Only this kind: run, artifact or event.")
@value_option("--since", "TIME", "Only items since: 30m, 2h, 3d, or 2026-11-16T08:00Z.")
@ids_option
def list_(engine: Engine, since: str | None, only_ids: bool, **filters: Any) -> CommandReport:
    """List quarantined items, the oldest first."""
    from oncemore.cli.quarantine_tables import print_items
    from oncemore.queries.times import parse_instant

    now = engine.now()
    # Relative times count from the clock of the store, which wrote the times in the log.
    since_at = None if since is None else parse_instant(since, now)
    items = engine.quarantine.list(since=since_at, **filters)
    if only_ids:
        return report_ids(item.id for item in items)
    return CommandReport(items, lambda out: print_items(out, items, now))


@store_command("show", "oncemore quarantine show 01a1e211\noncemore quarantine show 01a1e211 --json")
@_item_argument
def show(engine: Engine, item: str) -> CommandReport:
    """Show one item with its evidence.

    The error and the rule that classified it, every attempt, the digests of altered bytes, the notifications,
    earlier decisions, and the decisions that are possible now.
    """
    from oncemore.cli.quarantine_tables import print_case

    now, case = engine.now(), engine.quarantine.show(item)
    return CommandReport(case, lambda out: print_case(out, case, now))


@store_command("escalate", 'oncemore quarantine escalate 01a1e211 --reason "the item is broken"')
@click.argument("run", metavar="RUN", help="Id or key of a run, or a unique prefix of one.")
@reason_option
@decision_options
def escalate(engine: Engine, run: str, **decision: Any) -> CommandReport:
    """Open a ticket for a failed or quarantined run.

    If its data is sensitive, a CARE_ESCALATION is opened instead.
    """
    from oncemore.queries.runs import find_run

    opened = engine.escalations.open(find_run(engine.store, run).entity, **decision)
    text = f"opened {opened.kind} {opened.id} of {opened.step} for {opened.role}"
    return CommandReport(opened, lambda out: out.write_line(text, "yellow"))


def _record_decision(
    engine: Engine, verb: str, item: str, version: int | None, *answer: Any, **options: Any
) -> CommandReport:
    """Record a decision about an item, and report it with its consequence."""
    from oncemore.maintenance.tasks import resolve_actor

    options["by"] = resolve_actor(options["by"])
    # Loaded first, to resolve the prefix of the id and to know the kind of the item.
    found = engine.quarantine.show(item).item
    # The methods have the names of the commands. Without --version, the decision is about the item as it
    # was read just now.
    getattr(engine.quarantine, verb)(found, *answer, version=version or found.version, **options)
    named = ("by", "reason", "extra_attempts")
    extra: dict[str, object] = {name: options[name] for name in named if name in options}
    return CommandReport(
        {"decided": verb, **extra, "item": found}, lambda out: _print_decision(out, verb, found)
    )


def _print_decision(out: OutputWriter, verb: str, item: QuarantineItem) -> None:
    out.write_line(f"{_PAST_TENSE[verb]} {item.kind} {item.id} of {item.step}", "green")
    out.write_paragraph(_NEXT_TEXTS[verb, item.kind])


_PAST_TENSE = {"release": "released", "reject": "rejected", "rerun": "rerun scheduled:", "settle": "settled"}
_CONTINUES_TEXT = "It continues when the step is called again or a worker claims it."
# The pairs are those that the quarantine accepts; it refuses any other before these texts are used.
_NEXT_TEXTS = {
    ("release", "run"): _CONTINUES_TEXT,
    ("release", "artifact"): "It is in use again.",
    ("release", "event"): "The next pass of the relay sends it.",
    ("reject", "run"): "It has failed permanently; calls of the step raise that failure.",
    ("reject", "artifact"): "It stays out of use.",
    ("reject", "event"): "It will not be sent.",
    ("rerun", "run"): _CONTINUES_TEXT,
    ("settle", "run"): "Calls of the step use this outcome.",
}


@store_command("release", 'oncemore quarantine release 01a1e211 --reason "the name is clear now"')
@_decision_options
def release(engine: Engine, **options: Any) -> CommandReport:
    """Release an item from quarantine.

    A run gets its next attempt, if one is left. An artifact is used again, if its bytes are correct. A dead
    letter is sent again. A run with an unknown outcome cannot be released; use `settle`.
    """
    return _record_decision(engine, "release", **options)


@store_command("reject", 'oncemore quarantine reject 01a1e211 --reason "the order was withdrawn"')
@_decision_options
def reject(engine: Engine, **options: Any) -> CommandReport:
    """End an item.

    A run fails permanently; an artifact or event is not used.
    """
    return _record_decision(engine, "reject", **options)


@store_command("rerun", 'oncemore quarantine rerun 01a1e211 --extra-attempts 2 --reason "more memory"')
@_decision_options
@value_option(
    "--extra-attempts",
    "N",
    "Number of additional attempts; it is recorded.",
    type=WholeNumber(1, 1000),
    default=1,
    show_default=True,
)
def rerun(engine: Engine, **options: Any) -> CommandReport:
    """Give a run more attempts than its policy allows."""
    return _record_decision(engine, "rerun", **options)


@documented_command(
    "settle",
    'oncemore quarantine settle 01a1e211 --not-applied --reason "the bank has nothing"\n'
    'oncemore quarantine settle 01a1e211 --applied \'{"receipt": 7}\' --reason "it shows"',
)
@_decision_options
@value_option("--applied", "JSON", "It took effect; the value is the step's result.")
@flag_option("--not-applied", "It did not take effect and may be tried again.")
@store_option
@json_option
def settle(applied: str | None, not_applied: bool, store: str | None, in_json: bool, **options: Any) -> int:
    """Record the outcome of a run with an unknown outcome."""
    from oncemore.queries.step_commands import parse_json_value
    from oncemore.queries.stores import open_existing
    from oncemore.steps import reconcile

    # `--applied null` is a value too: the step returned nothing.
    if (applied is None) != not_applied:
        raise click.UsageError(
            "Give either --applied with the value, or --not-applied.", click.get_current_context()
        )
    answer = reconcile.not_applied() if applied is None else reconcile.applied(parse_json_value(applied))
    item, version = options.pop("item"), options.pop("version")
    with open_existing(store) as engine:
        report = _record_decision(engine, "settle", item, version, answer, **options)
    return write_report(report, in_json)


@store_command("notify", "oncemore quarantine notify")
def notify(engine: Engine) -> CommandReport:
    """Send the notifications that are due.

    A running process with the same settings sends them by itself; this command is for a cron job. The
    setting `notify` names the sinks. Exit code 1 if a notification was given up; it is then in the list.
    """
    from oncemore.errors import UsageError

    if engine.notifier is None:
        raise UsageError(
            "no notification can be sent: the setting notify is empty; set it in oncemore.toml or "
            "ONCEMORE_NOTIFY"
        )
    # One pass, because cron repeats the command.
    stats = engine.notifier.make_relay(engine).run_once()
    text = (
        f"{stats.delivered} delivered, {stats.failed} to be retried, {stats.dead} given up, "
        f"{stats.waiting} not due"
    )
    return CommandReport(stats, lambda out: out.write_line(text), 1 if stats.dead else 0)
