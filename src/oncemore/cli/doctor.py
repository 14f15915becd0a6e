"""`oncemore doctor` and `oncemore health`: is a store well?"""

from __future__ import annotations

import click

from oncemore.cli.commands import json_option, leaf, store_option
from oncemore.cli.maintenance import sure, yes_option
from oncemore.cli.output import Paper
from oncemore.cli.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import Tint
    from oncemore.maintenance.rebuild import Rebuilt
    from oncemore.queries.doctor import Check, Checkup
    from oncemore.queries.health import Health

DOCTOR = """
oncemore doctor
oncemore doctor --module flows.load --module flows.send
oncemore doctor --rebuild
oncemore doctor --rebuild --write
oncemore doctor --remove-companions --yes
"""
HEALTH = """
oncemore health
oncemore health --store postgresql://host/database --json
oncemore health --store again.db --against undisturbed.db
"""
TINTS: dict[str, Tint] = {"ok": "green", "warn": "yellow", "bad": "red"}


@leaf("doctor", DOCTOR)
@click.option("--rebuild", is_flag=True, help="Make all heads anew from the log, and compare them.")
@click.option("--write", is_flag=True, help="With --rebuild: put those right that are wrong.")
@click.option(
    "--module", "modules", metavar="NAME", multiple=True, help="A module of your steps; may be repeated."
)
@click.option(
    "--remove-companions",
    is_flag=True,
    help="Of a database that is missing: remove its locks and other files, to begin an EMPTY store.",
)
@yes_option
@store_option
@json_option
def doctor(
    rebuild: bool,
    write: bool,
    modules: tuple[str, ...],
    remove_companions: bool,
    yes: bool,
    store: str | None,
    in_json: bool,
) -> int:
    """Look a store over, and say what to do.

    Engine, disk, clocks, chain, leases, and what is stuck. Each check says ok, warn or bad, and what to do
    next. Exit code 1 means that one is bad. Nothing is written without --write.
    """
    from oncemore.queries.doctor import checkup, rebuilt
    from oncemore.queries.open_engine import folder_of, looked_at

    if write and not rebuild:
        raise click.UsageError(
            "--write needs --rebuild: only what was compared is put right.", click.get_current_context()
        )
    if remove_companions:
        return _remove_companions(store, yes, in_json)
    known = None
    if modules:
        from oncemore.queries.modules import steps_of

        known = steps_of(modules)
    paper = Paper(in_json=in_json)
    with looked_at(store) as opened:
        found = checkup(opened, known, folder_of(store))
        if rebuild:
            with Progress("rebuilding", quiet=in_json) as progress:
                check, whole = rebuilt(opened, progress)
            found = found._replace(checks=(*found.checks, check))
    if write and whole is not None and whole.wrong:
        found = _mended(found, whole, store, in_json)
    if in_json:
        paper.json({**found._asdict(), "worst": found.worst})
    else:
        print_checkup(paper, found)
    return 1 if found.worst == "bad" else 0


def _remove_companions(store: str | None, yes: bool, in_json: bool) -> int:
    from oncemore.queries import open_engine

    sure(yes, "The next start begins an empty store, and all work can run again. Remove the companions?")
    removed = open_engine.remove_companions(store)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({"removed": removed})
    else:
        paper.line(f"removed: {', '.join(removed)}" if removed else "there are no companions")
    return 0


def _mended(found: Checkup, whole: Rebuilt | None, store: str | None, in_json: bool) -> Checkup:
    """Put heads right, and look whether they are."""
    from oncemore.maintenance.rebuild import mend
    from oncemore.queries.doctor import Check, rebuilt
    from oncemore.queries.open_engine import written_to

    with written_to(store) as opened, Progress("writing", quiet=in_json) as progress:
        put, done = 0, 1
        while whole is not None and whole.wrong and done:  # so many are told at once, and no more
            done = mend(opened, whole, progress)
            put += done
            check, whole = rebuilt(opened, progress)
    note = Check("repair", "ok", f"{put:,} heads were put right from the log")
    return found._replace(checks=(*found.checks[:-1], note, check))


def print_checkup(paper: Paper, found: Checkup) -> None:
    """Print each check on a line, and what to do below it."""
    paper.line(found.url, "bold")
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        _print_check(paper, check, width)


def _print_check(paper: Paper, check: Check, width: int) -> None:
    lead = f"{check.status:<4}  {check.name:<{width}}  "
    paper.say(check.seen, TINTS[check.status] if check.status != "ok" else "", lead)
    for example in check.examples:
        paper.line(f"{' ' * len(lead)}{example}", "dim")
    if check.next:
        paper.say(check.next, "", f"{' ' * (len(lead) - 2)}→ ")


@leaf("health", HEALTH)
@click.option("--against", metavar="URL", help="Another store: what is complete in both must be the same.")
@store_option
@json_option
def health(against: str | None, store: str | None, in_json: bool) -> int:
    """Judge a store by four criteria.

    They are those of a pipeline that can be trusted. Work that is run again leaves the same; states follow
    from the log; nothing is computed twice; every decision is explained by its proof. Exit code 1 means
    that one of them does not hold. Switches that are on are told, and change nothing about that.
    """
    from contextlib import ExitStack

    from oncemore.queries.health import health as judged
    from oncemore.queries.open_engine import looked_at, shelf_of

    paper = Paper(in_json=in_json)
    with ExitStack() as stack:
        opened = stack.enter_context(looked_at(store))
        other = stack.enter_context(looked_at(against)) if against else None
        progress = stack.enter_context(Progress("looking", quiet=in_json))
        found = judged(opened, shelf_of(store), progress, other)
    if in_json:
        paper.json(found)
    else:
        print_health(paper, found)
    return 0 if found.healthy else 1


def print_health(paper: Paper, found: Health) -> None:
    """Print the four criteria and the verdict."""
    paper.line(found.url, "bold")
    for one in found.criteria:
        tint: Tint = "" if one.holds else "red"
        lead = f"{'holds ' if one.holds else 'FAILS '} {one.number}  "
        paper.say(f"{one.name}: {one.seen}", tint, lead)
        for example in one.examples:
            paper.line(f"{' ' * len(lead)}{example}", "dim")
    _print_stops(paper, found)
    paper.line("healthy" if found.healthy else "not healthy", "green" if found.healthy else "red")


def _print_stops(paper: Paper, found: Health) -> None:
    """Print what people have stopped, a line each."""
    from oncemore.queries.times import shown

    if found.moved:
        paper.line(f"moved     this log has moved to {found.moved}; nothing begins here any more", "yellow")
    for one in found.switches:
        paper.line(f"stopped   {one.name} is on since {shown(one.at)}, by {one.by}: {one.reason}", "yellow")
