"""`oncemore quarantine`: look at what waits for a person, and decide about it."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import Branch, Whole, ids_option, json_option, leaf, store_option
from oncemore.cli.maintenance import reason_option
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """
oncemore quarantine list --reason outcome_unknown
oncemore quarantine show 01a1e211
oncemore quarantine settle 01a1e211 --applied '{"receipt": 7}' --by operator --reason "the bank shows it"
oncemore quarantine rerun 01a1e211 --by operator --reason "the disk is replaced"
oncemore quarantine reject 01a1e211 --by operator --reason "the order was withdrawn"
"""
HOMES = {name: f"quarantine:{name}" for name in ("show", "release", "reject", "rerun", "settle", "tell")}
REASONS = ("outcome_unknown", "quarantined", "checksum_mismatch", "poison", "dead_letter", "approval_needed")


@click.group(
    "quarantine", cls=Branch, homes={"list": "quarantine:list_", **HOMES}, examples=EXAMPLES, usual="list"
)
def quarantine() -> None:
    """Decide about what waits for a person.

    Runs whose outcome is unknown, that need review or whose workers died; artifacts whose bytes were altered;
    dead letters. An ID is that of the list, or its beginning. A decision needs a name and a reason, and both
    are recorded. Exit code 1 means that nothing was decided: somebody was first. Without a command it is
    `list`, with all of its options.
    """


_id = click.argument("item", metavar="ID", shell_complete=completion.held,
                     help="What it is about: an id of the list, or its beginning.")  # fmt: skip


def _decision(command: F) -> F:
    """Give a command what every decision needs."""
    for option in (
        click.option("--version", metavar="N", type=Whole(1), default=None,
                     help="Decide only if it still has this version."),
        reason_option,
        click.option("--by", metavar="NAME", required=True, help="Who decides; it is recorded."),
        _id,
    ):  # fmt: skip
        command = option(command)
    return command


@leaf("list", "oncemore quarantine list\noncemore quarantine list --step charge --since 2h --json")
@click.option("--step", metavar="NAME", shell_complete=completion.steps, help="Only of this step, or topic.")
@click.option("--reason", metavar="WORD", type=click.Choice(REASONS), help=f"Only for {', '.join(REASONS)}.")
@click.option("--kind", metavar="WORD", type=click.Choice(("run", "artifact", "event")),
              help="Only a run, an artifact or an event.")  # fmt: skip
@click.option("--since", metavar="TIME", help="Only what came since: 30m, 2h, 3d, or 2026-11-16T08:00Z.")
@store_option
@ids_option
@json_option
def list_(
    step: str | None,
    reason: str | None,
    kind: str | None,
    since: str | None,
    store: str | None,
    only_ids: bool,
    in_json: bool,
) -> None:
    """List what waits for a person, the longest first."""
    from oncemore.cli.quarantine_tables import print_items
    from oncemore.queries.open_engine import there
    from oncemore.queries.times import instant

    with there(store) as engine:
        now = engine.now()
        begins = None if since is None else instant(since, now)
        found = engine.quarantine.list(step=step, reason=reason, kind=kind, since=begins)
    paper = Paper(in_json=in_json)
    if only_ids:
        paper.ids([item.id for item in found])
    elif in_json:
        paper.json(found)
    else:
        print_items(paper, found, now)


@leaf("show", "oncemore quarantine show 01a1e211\noncemore quarantine show 01a1e211 --json")
@_id
@store_option
@json_option
def show(item: str, store: str | None, in_json: bool) -> None:
    """Show one thing with all of its evidence.

    What went wrong and by which rule, every attempt, the digests of bytes in doubt, who was told, what was
    decided before, and what can be decided now.
    """
    from oncemore.cli.quarantine_tables import print_case
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        now, case = engine.now(), engine.quarantine.show(item)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(case)
    else:
        print_case(paper, case, now)


def _decide(what: str, item: str, store: str | None, in_json: bool, **told: Any) -> None:
    """Make a decision, and say what was decided."""
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found = engine.quarantine.show(item).item
        version = told.pop("version") or found.version
        answer = told.pop("answer", None)
        words = (found,) if answer is None else (found, answer)
        getattr(engine.quarantine, what)(*words, version=version, **told)
    paper = Paper(in_json=in_json)
    if in_json:
        extra = {"extra_attempts": told["extra_attempts"]} if "extra_attempts" in told else {}
        paper.json({"decided": what, "by": told["by"], "reason": told["reason"], **extra, "item": found})
    else:
        paper.line(f"{_PAST[what]}: {found.kind} {found.id} of {found.step}", "green")
        paper.say(_NEXT[what, found.kind])


_PAST = {"release": "released", "reject": "rejected", "rerun": "to be run again", "settle": "settled"}
_GOES_ON = "It goes on when the step is called again, or when a worker takes it."
_NEXT = {
    ("release", "run"): _GOES_ON,
    ("release", "artifact"): "It is in use again.",
    ("release", "event"): "The next pass of a relay sends it.",
    ("reject", "run"): "It has failed for good; calls raise that.",
    ("reject", "artifact"): "It stays out of use.",
    ("reject", "event"): "It is not sent.",
    ("rerun", "run"): _GOES_ON,
    ("settle", "run"): "Calls of the step go by that.",
}


@leaf("release", 'oncemore quarantine release 01a1e211 --by operator --reason "the name is clear now"')
@_decision
@store_option
@json_option
def release(item: str, store: str | None, in_json: bool, **told: Any) -> None:
    """Let it go on as it would have.

    A run has its next attempt, if one is left; an artifact is used again, if its bytes are right; a dead
    letter is sent again. A run whose outcome is unknown is not released but settled.
    """
    _decide("release", item, store, in_json, **told)


@leaf("reject", 'oncemore quarantine reject 01a1e211 --by operator --reason "the order was withdrawn"')
@_decision
@store_option
@json_option
def reject(item: str, store: str | None, in_json: bool, **told: Any) -> None:
    """End it: a run fails for good, nothing else of it is used."""
    _decide("reject", item, store, in_json, **told)


@leaf("rerun", 'oncemore quarantine rerun 01a1e211 --extra-attempts 2 --by operator --reason "more memory"')
@_decision
@click.option("--extra-attempts", metavar="N", type=Whole(1, 1000), default=1, show_default=True,
              help="How many more attempts it may have; recorded.")  # fmt: skip
@store_option
@json_option
def rerun(item: str, store: str | None, in_json: bool, **told: Any) -> None:
    """Let a run go on with attempts beyond its budget."""
    _decide("rerun", item, store, in_json, **told)


@leaf(
    "settle",
    'oncemore quarantine settle 01a1e211 --not-applied --by operator --reason "the bank has nothing"\n'
    'oncemore quarantine settle 01a1e211 --applied \'{"receipt": 7}\' --by operator --reason "it shows"',
)
@_decision
@click.option("--applied", metavar="JSON", help="It took effect; this is what the step returned.")
@click.option("--not-applied", is_flag=True, help="It did not take effect: it may be tried again.")
@store_option
@json_option
def settle(
    item: str, applied: str | None, not_applied: bool, store: str | None, in_json: bool, **told: Any
) -> None:
    """Say what became of a run whose outcome is unknown."""
    from oncemore.queries.orders import value_of
    from oncemore.steps.decorator import applied as did
    from oncemore.steps.decorator import not_applied as did_not

    if (applied is None) != not_applied:
        raise click.UsageError(
            "Say either --applied with the value, or --not-applied.", click.get_current_context()
        )
    answer = did_not() if applied is None else did(value_of(applied))
    _decide("settle", item, store, in_json, answer=answer, **told)


@leaf("tell", "oncemore quarantine tell")
@store_option
@json_option
def tell(store: str | None, in_json: bool) -> int:
    """Deliver the notices that are due.

    Processes with the same settings do so by themselves while they run; this is for a timetable. The sinks
    are those of the setting `notify`. Exit code 1 means that one was given up: it is in the list.
    """
    from oncemore.errors import UsageError
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        if engine.notices is None:
            raise UsageError(
                "nobody is to be told: the setting notify is empty; see oncemore.toml or ONCEMORE_NOTIFY"
            )
        tally = engine.notices.relay(engine).run_once()
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(tally)
    else:
        paper.line(
            f"{tally.delivered} delivered, {tally.failed} to be tried again, {tally.dead} given up, "
            f"{tally.waiting} not due"
        )
    return 1 if tally.dead else 0
