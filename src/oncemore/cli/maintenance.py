"""`oncemore prune`, `erase`, `backup`, `restore`, `sizes`, `verify`: keeping house."""

from __future__ import annotations

import sys
from itertools import islice

import click

from oncemore.cli import completion
from oncemore.cli.commands import json_option, leaf, store_option
from oncemore.cli.output import Paper
from oncemore.cli.params import DURATION
from oncemore.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_IN_DOUBT = 50
EVIDENCE = "Do not write to this store any more; restore a backup, and keep this file: it is evidence."

reason_option = click.option("--reason", metavar="TEXT", required=True, help="Why; it is recorded.")
by_option = click.option("--by", metavar="NAME", help="Who; else the user of this process. It is recorded.")
yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")


def sure(yes: bool, question: str) -> None:
    """Ask before what cannot be undone; where nobody can answer, --yes must."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Give --yes to say so.", click.get_current_context())
        click.confirm(question, abort=True, err=True)


def count_on_terminal(what: str) -> Callable[..., object]:
    """Return what shows how far it is, on a terminal and only there."""
    if not sys.stderr.isatty():
        return lambda *told: None

    def show(done: int, of: int = 0) -> None:
        share = f" of {of:,} ({done / of:.0%})" if of else ""
        click.echo(f"\r{done:,}{share} {what}", err=True, nl=bool(of and done >= of))

    return show


@leaf("prune", "oncemore prune --older-than 90d --dry-run\noncemore prune\noncemore prune --step shop.pay")
@store_option
@click.option("--older-than", type=DURATION, metavar="TIME", help="Runs that ended this long ago: 90d, 12h.")
@click.option("--step", metavar="NAME", shell_complete=completion.steps, help="Only runs of this step.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--forget-keys-after",
    type=DURATION,
    metavar="TIME",
    help="Also remove the tombstones of runs that were pruned this long ago: such a key CAN BE DONE AGAIN.",
)
@click.option("--reason", metavar="TEXT", default="retention", help="Why; it is recorded.")
@by_option
@yes_option
@json_option
def prune(
    store: str | None,
    older_than: float | None,
    step: str | None,
    dry_run: bool,
    forget_keys_after: float | None,
    reason: str,
    by: str | None,
    yes: bool,
    in_json: bool,
) -> None:
    """Forget what runs hold that are over, and not their keys.

    Arguments, results, errors and the payloads of delivered events go. Without --older-than,
    only those of steps that say retain_for=. What is open, held, in quarantine or not
    delivered yet is never touched. Keys stay: no work is done twice.
    """
    from oncemore.queries.open_engine import there

    if forget_keys_after is not None and not dry_run:
        sure(yes, "Keys that are forgotten can be done again, as if they had never been. Forget them?")
    with there(store) as engine:
        found = engine.prune(
            older_than=older_than, step=step, dry_run=dry_run, reason=reason, by=by,
            forget_keys_after=forget_keys_after,
        )  # fmt: skip
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({**found._asdict(), "dry_run": dry_run})
        return
    paper.line(f"{'would prune' if dry_run else 'pruned'} {_runs(found.runs)}, {found.events} events")
    for why, count in sorted(found.kept.items()):
        paper.line(f"kept {count}: {WHY[why]}", "dim")
    if found.forgotten:
        how = "would forget" if dry_run else "forgot"
        paper.line(f"{how} {found.forgotten} keys: they can be done again", "yellow")
    if found.workers:
        paper.line(f"removed the records of {found.workers} processes that are long gone", "dim")


WHY = {
    "open": "they are not over",
    "quarantined": "a person has to look at them",
    "undelivered": "events of theirs have not been delivered",
    "young": "their time is not up",
    "unsaid": "nobody said how long; give --older-than, or retain_for= on the step",
    "moved": "somebody was at them just now",
}


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


@leaf("erase", "oncemore erase 9f86d081884c --reason 'asked to by the customer, case 17' --yes")
@click.argument("key", help="The key of the run, or the first 8 or more of its digits.")
@store_option
@reason_option
@by_option
@yes_option
@json_option
def erase(key: str, store: str | None, reason: str, by: str | None, yes: bool, in_json: bool) -> int:
    """Erase everything that the runs of a key hold.

    Arguments, results, errors, events and files. It cannot be undone. The key stays, with who
    erased it and why, and is not done again; the log still verifies. Backups are not touched.
    Exit code 1 if something is left.
    """
    from oncemore.queries.open_engine import there

    sure(yes, f"Erase everything that {key} holds? It cannot be undone.")
    with there(store) as engine:
        found = engine.erase(key, reason=reason, by=by)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
    else:
        paper.line(f"erased {found.key}: {found.events} events, {len(found.artifacts)} files")
        for rest in found.left:
            paper.say(rest, "yellow", "left: ")
    return 1 if found.left else 0


@leaf("backup", "oncemore backup /backups/log-2026-11-16.db")
@click.argument("file", type=click.Path(dir_okay=False), help="The new file; one that exists is refused.")
@store_option
@click.option("--reason", metavar="TEXT", default="backup", help="Why; it is recorded.")
@by_option
@json_option
def backup(file: str, store: str | None, reason: str, by: str | None, in_json: bool) -> None:
    """Copy a store to a new file while others use it.

    The copy is checked before it gets its name. When it is opened it is held: see
    `oncemore restore`. Files that steps have put away are beside the store, and are copied
    as files.
    """
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found = engine.backup(file, reason=reason, by=by, progress=count_on_terminal("pages"))
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
    else:
        paper.line(f"{found.path}: {found.entries:,} entries, {found.bytes:,} bytes, checked", "green")


@leaf("restore", "oncemore restore\noncemore restore --acknowledge --reason 'the original is lost'")
@store_option
@click.option("--acknowledge", is_flag=True, help="Let it go on: somebody has looked at what is in doubt.")
@click.option("--reason", metavar="TEXT", help="Why; it is recorded.")
@by_option
@json_option
def restore(store: str | None, acknowledge: bool, reason: str | None, by: str | None, in_json: bool) -> int:
    """Say whether a store is a copy; let it go on.

    On a copy nothing runs that has an effect, because what the original has done since would
    be done twice. Exit code 1 while it is held.
    """
    from oncemore.maintenance.backup import in_doubt
    from oncemore.queries.open_engine import there

    paper = Paper(in_json=in_json)
    if acknowledge and not reason:
        raise click.UsageError("Missing option '--reason'.", click.get_current_context())
    with there(store) as engine:
        why = engine.store.house().held()
        if acknowledge:
            engine.acknowledge(reason=reason or "", by=by)
        doubts = list(islice(in_doubt(engine), MOST_IN_DOUBT + 1)) if why and not acknowledge else []
    held = bool(why) and not acknowledge
    if in_json:
        paper.json({"held": held, "why": why, "in_doubt": doubts[:MOST_IN_DOUBT]})
        return int(held)
    if not why:
        paper.line("this store is no copy: nothing is held", "green")
    elif acknowledge:
        paper.line("acknowledged: it goes on from here", "green")
    else:
        paper.say(f"held: {why}", "yellow")
        _print_doubts(paper, doubts)
    return int(held)


def _print_doubts(paper: Paper, doubts: list[Any]) -> None:
    if doubts:
        paper.line()
        rows = [(one.key[:12], one.state, one.effect, one.step) for one in doubts[:MOST_IN_DOUBT]]
        paper.table([("key", "state", "effect", "step"), *rows])
        if len(doubts) > MOST_IN_DOUBT:
            paper.line("… and more", "dim")
    paper.line()
    paper.say(
        "In doubt are the runs above, which may have gone on, and every key that is not here at all: "
        "it may have "
        "been done after the copy was made. Look for those at the other side, mark what is done "
        "(oncemore import), then `oncemore restore --acknowledge --reason …`."
    )


@leaf("sizes", "oncemore sizes\noncemore sizes --json")
@store_option
@json_option
def sizes(store: str | None, in_json: bool) -> None:
    """Count what a store holds, and the room that it takes."""
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found = engine.sizes()
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
        return
    rows = [
        (kind, f"{weight.entities:,}", f"{weight.entries:,}", f"{weight.bytes:,}")
        for kind, weight in sorted(found.kinds.items())
    ]
    paper.table([("kind", "entities", "entries", "bytes"), *rows], right=(1, 2, 3))
    paper.line()
    left = "unknown" if found.left is None else f"{found.left:,}"
    rooms = [("store", f"{found.file:,}"), ("write-ahead file", f"{found.wal:,}")]
    rooms += [("free inside", f"{found.spare:,}"), ("left on the disk", left)]
    if found.artifacts is not None:
        rooms.append((f"files ({found.artifacts:,})", f"{found.artifact_bytes:,}"))
    paper.table([("room", "bytes"), *rooms], right=(1,))


@leaf("verify", "oncemore verify\noncemore verify --json")
@store_option
@json_option
def verify(store: str | None, in_json: bool) -> int:
    """Check every link and head of a log, and say what was erased.

    With by whom and why. Exit code 1 if an entry or a head was altered, a part is missing, or
    a body is gone that nobody has removed.
    """
    from oncemore.queries.open_engine import there

    paper = Paper(in_json=in_json)
    try:
        with there(store) as engine:
            found = engine.verify()
    except StoreError as fault:
        Paper(sys.stderr, in_json=in_json).error(f"{fault}.", EVIDENCE)
        return 1
    if in_json:
        paper.json(found)
        return 0
    pruned = sum(one.how == "pruned" for one in found.forgotten)
    paper.line(f"whole: {found.entries:,} entries of {found.entities:,} entities", "green")
    if pruned:
        paper.line(f"{_runs(pruned)} pruned")
    for one in found.forgotten:
        if one.how == "erased":
            paper.line(f"erased {one.key[:12]} of {one.step}, by {one.actor or '?'}: {one.reason or '?'}")
    return 0
