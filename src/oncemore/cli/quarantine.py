"""`oncemore quarantine`: list the items that wait for an operator, and decide about them."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import (
    LazyGroup,
    WholeNumber,
    documented_command,
    ids_option,
    json_option,
    reason_option,
    store_option,
)
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """
oncemore quarantine list --reason outcome_unknown
oncemore quarantine show 01a1e211
oncemore quarantine settle 01a1e211 --applied '{"receipt": 7}' --by operator --reason "the bank shows it"
oncemore quarantine rerun 01a1e211 --by operator --reason "the disk is replaced"
oncemore quarantine reject 01a1e211 --by operator --reason "the order was withdrawn"
"""
COMMANDS = {name: f"quarantine:{name}" for name in ("show", "release", "reject", "rerun", "settle", "notify")}
# The words are those of `held_for` in the log.
HOLD_REASONS = (
    "outcome_unknown",
    "quarantined",
    "checksum_mismatch",
    "poison",
    "dead_letter",
    "approval_needed",
)


@click.group(
    "quarantine",
    cls=LazyGroup,
    modules={"list": "quarantine:list_", **COMMANDS},
    examples=EXAMPLES,
    default_command="list",
)
def quarantine() -> None:
    """List quarantined items and decide about them.

    An item is a run with an unknown outcome, a run that needs review or lost its workers, an artifact with
    altered bytes, or a dead letter. An ID is an id of the list or a unique prefix. A decision needs a name
    and a reason; both are recorded. Exit code 1 if another decision came first. The default command is
    `list`.
    """


_item_argument = click.argument("item", metavar="ID", shell_complete=completion.complete_held_runs,
                     help="An id of the list, or a unique prefix.")  # fmt: skip


# --by is required here, unlike in other commands: a decision needs the name of a person.
def _decision_options(command: F) -> F:
    """Add the argument and the options of every decision to a command."""
    for option in (
        click.option("--version", metavar="N", type=WholeNumber(1), default=None,
                     help="Decide only if the item still has this version."),
        reason_option,
        click.option("--by", metavar="NAME", required=True, help="Name of the operator; it is recorded."),
        _item_argument,
    ):  # fmt: skip
        command = option(command)
    return command


@documented_command(
    "list", "oncemore quarantine list\noncemore quarantine list --step charge --since 2h --json"
)
@click.option(
    "--step",
    metavar="NAME",
    shell_complete=completion.complete_steps,
    help="Only items of this step or topic.",
)
@click.option(
    "--reason",
    metavar="WORD",
    type=click.Choice(HOLD_REASONS),
    help=f"Only this reason: {', '.join(HOLD_REASONS)}.",
)
@click.option("--kind", metavar="WORD", type=click.Choice(("run", "artifact", "event")),
              help="Only this kind: run, artifact or event.")  # fmt: skip
@click.option("--since", metavar="TIME", help="Only items since: 30m, 2h, 3d, or 2026-11-16T08:00Z.")
@store_option
@ids_option
@json_option
def list_(
    step: str | None,
    reason: str | None,
    kind: Literal["run", "artifact", "event"] | None,
    since: str | None,
    store: str | None,
    only_ids: bool,
    in_json: bool,
) -> None:
    """List quarantined items, the oldest first."""
    from oncemore.cli.quarantine_tables import print_items
    from oncemore.queries.stores import open_existing
    from oncemore.queries.times import parse_instant

    with open_existing(store) as engine:
        now = engine.now()
        # Relative times count from the clock of the store, which wrote the times in the log.
        since_at = None if since is None else parse_instant(since, now)
        items = engine.quarantine.list(step=step, reason=reason, kind=kind, since=since_at)
    out = OutputWriter(in_json=in_json)
    if only_ids:
        out.write_ids([item.id for item in items])
    elif in_json:
        out.write_json(items)
    else:
        print_items(out, items, now)


@documented_command("show", "oncemore quarantine show 01a1e211\noncemore quarantine show 01a1e211 --json")
@_item_argument
@store_option
@json_option
def show(item: str, store: str | None, in_json: bool) -> None:
    """Show one item with its evidence.

    The error and the rule that classified it, every attempt, the digests of altered bytes, the notifications,
    earlier decisions, and the decisions that are possible now.
    """
    from oncemore.cli.quarantine_tables import print_case
    from oncemore.queries.stores import open_existing

    with open_existing(store) as engine:
        now, case = engine.now(), engine.quarantine.show(item)
    out = OutputWriter(in_json=in_json)
    if in_json:
        out.write_json(case)
    else:
        print_case(out, case, now)


def _record_decision(verb: str, item_id: str, store: str | None, in_json: bool, **options: Any) -> None:
    """Record a decision about an item, and print it with its consequence."""
    from oncemore.queries.stores import open_existing

    with open_existing(store) as engine:
        # Loaded first, to resolve the prefix of the id and to know the kind of the item.
        item = engine.quarantine.show(item_id).item
        # Without --version, the decision is about the item as it was read just now.
        version = options.pop("version") or item.version
        answer = options.pop("answer", None)
        values = (item,) if answer is None else (item, answer)
        # The methods have the names of the commands.
        getattr(engine.quarantine, verb)(*values, version=version, **options)
    out = OutputWriter(in_json=in_json)
    if in_json:
        extra = {"extra_attempts": options["extra_attempts"]} if "extra_attempts" in options else {}
        out.write_json(
            {"decided": verb, "by": options["by"], "reason": options["reason"], **extra, "item": item}
        )
    else:
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


@documented_command(
    "release", 'oncemore quarantine release 01a1e211 --by operator --reason "the name is clear now"'
)
@_decision_options
@store_option
@json_option
def release(item: str, store: str | None, in_json: bool, **options: Any) -> None:
    """Release an item from quarantine.

    A run gets its next attempt, if one is left. An artifact is used again, if its bytes are correct. A dead
    letter is sent again. A run with an unknown outcome cannot be released; use `settle`.
    """
    _record_decision("release", item, store, in_json, **options)


@documented_command(
    "reject", 'oncemore quarantine reject 01a1e211 --by operator --reason "the order was withdrawn"'
)
@_decision_options
@store_option
@json_option
def reject(item: str, store: str | None, in_json: bool, **options: Any) -> None:
    """End an item: a run fails permanently; an artifact or event is not used."""
    _record_decision("reject", item, store, in_json, **options)


@documented_command(
    "rerun", 'oncemore quarantine rerun 01a1e211 --extra-attempts 2 --by operator --reason "more memory"'
)
@_decision_options
@click.option("--extra-attempts", metavar="N", type=WholeNumber(1, 1000), default=1, show_default=True,
              help="Number of additional attempts; it is recorded.")  # fmt: skip
@store_option
@json_option
def rerun(item: str, store: str | None, in_json: bool, **options: Any) -> None:
    """Give a run more attempts than its policy allows."""
    _record_decision("rerun", item, store, in_json, **options)


@documented_command(
    "settle",
    'oncemore quarantine settle 01a1e211 --not-applied --by operator --reason "the bank has nothing"\n'
    'oncemore quarantine settle 01a1e211 --applied \'{"receipt": 7}\' --by operator --reason "it shows"',
)
@_decision_options
@click.option("--applied", metavar="JSON", help="It took effect; the value is the step's result.")
@click.option("--not-applied", is_flag=True, help="It did not take effect and may be tried again.")
@store_option
@json_option
def settle(
    item: str, applied: str | None, not_applied: bool, store: str | None, in_json: bool, **options: Any
) -> None:
    """Record the outcome of a run with an unknown outcome."""
    from oncemore.queries.step_commands import parse_json_value
    from oncemore.steps import reconcile

    # `--applied null` is a value too: the step returned nothing.
    if (applied is None) != not_applied:
        raise click.UsageError(
            "Give either --applied with the value, or --not-applied.", click.get_current_context()
        )
    answer = reconcile.not_applied() if applied is None else reconcile.applied(parse_json_value(applied))
    _record_decision("settle", item, store, in_json, answer=answer, **options)


@documented_command("notify", "oncemore quarantine notify")
@store_option
@json_option
def notify(store: str | None, in_json: bool) -> int:
    """Send the notifications that are due.

    A running process with the same settings sends them by itself; this command is for a cron job. The
    setting `notify` names the sinks. Exit code 1 if a notification was given up; it is then in the list.
    """
    from oncemore.errors import UsageError
    from oncemore.queries.stores import open_existing

    with open_existing(store) as engine:
        if engine.notifier is None:
            raise UsageError(
                "no notification can be sent: the setting notify is empty; set it in oncemore.toml or "
                "ONCEMORE_NOTIFY"
            )
        # One pass, because cron repeats the command.
        stats = engine.notifier.make_relay(engine).run_once()
    out = OutputWriter(in_json=in_json)
    if in_json:
        out.write_json(stats)
    else:
        out.write_line(
            f"{stats.delivered} delivered, {stats.failed} to be retried, {stats.dead} given up, "
            f"{stats.waiting} not due"
        )
    return 1 if stats.dead else 0
