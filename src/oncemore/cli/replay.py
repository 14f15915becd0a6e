"""`oncemore replay`: tell it again, and compare."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import json_option, leaf, store_option
from oncemore.cli.output import Paper
from oncemore.cli.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.log.store import Store
    from oncemore.maintenance.replay import Difference
    from oncemore.queries.recompute import Verified
    from oncemore.queries.replay import Verdict, Window

EXAMPLES = """
oncemore replay b4b6cd73
oncemore replay --since 2026-11-16T14:00 --until 2026-11-16T15:00
oncemore replay --all --json
oncemore replay b4b6cd73 --verify --module flows.load
"""
MOST_SHOWN = 20


@leaf("replay", EXAMPLES, {"What": "run since until all"})
@click.argument("name", metavar="[RUN]", required=False, shell_complete=completion.runs,
                help="A run's id or its key, or how one of them begins.")  # fmt: skip
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="The same, as an option.")
@click.option("--since", metavar="TIME", help="All runs of which something was written since then.")
@click.option("--until", metavar="TIME", help="… and until then; now unless given.")
@click.option("--all", "all_", is_flag=True, help="The whole log.")
@click.option(
    "--current", is_flag=True, help="Decide also under the policies as they are now, and report drift."
)
@click.option("--verify", is_flag=True, help="Compute results of pure steps again in a scratch area.")
@click.option(
    "--module", "modules", metavar="NAME", multiple=True, help="With --verify: a module of your steps."
)
@store_option
@json_option
def replay(
    name: str | None, run: str | None, since: str | None, until: str | None, all_: bool, current: bool,
    verify: bool, modules: tuple[str, ...], store: str | None, in_json: bool,
) -> int:  # fmt: skip
    """Compute every decision again, and compare it to the byte.

    Links, states and decisions are made anew from the log alone; nothing is run and nothing is written. The
    first difference is told with both values. Exit code 1 means that something does not agree.
    """
    from oncemore.queries.open_engine import looked_at

    which = run or name
    if sum((which is not None, since is not None or until is not None, all_)) != 1 or (run and name):
        raise click.UsageError(
            "Give a RUN, or a window (--since, --until), or --all.", click.get_current_context()
        )
    if verify and (all_ or not modules):
        told = (
            "--verify takes a RUN or a window"
            if all_
            else "--verify needs --module: which code is to be run?"
        )
        raise click.UsageError(f"{told}.", click.get_current_context())
    paper = Paper(in_json=in_json)
    with looked_at(store) as opened:
        window = None if which else _window(opened, since, until, current, in_json)
        if window is not None:
            computed = _verified(opened, [one.key for one in window.verdicts], modules) if verify else []
            _print_window(paper, window, computed)
            return 0 if window.agrees and _good(computed) else 1
        from oncemore.queries.replay import AGREES
        from oncemore.queries.replay import replay as told_again
        from oncemore.queries.runs import find

        found = find(opened, str(which))
        verdict = told_again(opened, found.entity, current=current)
        computed = _verified(opened, [found.entity.removeprefix("run/")], modules) if verify else []
    _print_verdict(paper, verdict, computed)
    return 0 if verdict.verdict == AGREES and _good(computed) else 1


def _window(store: Store, since: str | None, until: str | None, current: bool, in_json: bool) -> Window:
    from oncemore.queries.replay import whole, window
    from oncemore.queries.times import instant

    now = store.now()
    ends = now if until is None else instant(until, now)
    begins = instant(since or "0000000000", now)
    with Progress("replaying", quiet=in_json) as progress:
        if since is None and until is None:
            return whole(store, current=current, progress=progress)
        return window(store, begins, ends, current=current, progress=progress)


def _verified(store: Store, keys: Sequence[str], modules: tuple[str, ...]) -> list[Verified]:
    from oncemore.queries.recompute import Scratch
    from oncemore.queries.run_timeline import story
    from oncemore.queries.runs import find

    with Scratch(modules) as scratch:
        return [scratch.verify(story(store, find(store, key))) for key in keys if key]


def _good(computed: Sequence[Verified]) -> bool:
    return all(one.verdict in ("equal", "skipped") for one in computed)


def _print_verdict(paper: Paper, verdict: Verdict, computed: Sequence[Verified]) -> None:
    from oncemore.queries.times import shown

    if paper.in_json:
        paper.json({**verdict._asdict(), "verified": computed})
        return
    paper.line(f"{verdict.step}, key {verdict.key[:12]}, run {verdict.run_id}", "bold")
    rows = [("entry", "at", "state", "told again")]
    rows += [
        (
            f"{one.seq}",
            shown(one.at, day=False),
            f"{one.state} {one.attempt or ''}".strip(),
            one.sentence or " ".join(one.marks),
        )
        for one in verdict.states
    ]
    if len(rows) > 1:
        paper.table(rows, "  ", right=(0,))
    _print_end(paper, verdict)
    _print_computed(paper, computed)


def _print_end(paper: Paper, verdict: Verdict) -> None:
    told = f"{verdict.entries} entries, {verdict.decisions} decisions"
    if verdict.verdict == "agrees":
        paper.line(f"agrees: {told}, all as recorded; the state is {verdict.state}", "green")
    else:
        paper.say(f"{verdict.verdict}: {told}{f'; {verdict.fault}' if verdict.fault else ''}", "red")
        _print_differences(paper, verdict.differences)


def _print_differences(paper: Paper, differences: Sequence[Difference]) -> None:
    for one in differences[:MOST_SHOWN]:
        paper.say(f"entry {one.seq}, attempt {one.attempt}: {one.what}", "", "  ")
        paper.say(_text(one.recorded), "", "    recorded  ")
        paper.say(_text(one.computed), "", "    computed  ")
    if len(differences) > MOST_SHOWN:
        paper.line(f"  and {len(differences) - MOST_SHOWN} more; --json has all", "dim")


def _text(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def _print_computed(paper: Paper, computed: Sequence[Verified]) -> None:
    if not computed:
        return
    counts = {
        name: sum(one.verdict == name for one in computed)
        for name in ("equal", "differs", "failed", "skipped")
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    paper.line(f"computed again: {told}", "green" if _good(computed) else "red")
    for why in dict.fromkeys(one.why for one in computed if one.verdict == "skipped"):
        count = sum(one.why == why for one in computed)
        paper.say(f"{count} skipped: {why}", "", "  ")
    for one in [one for one in computed if one.verdict in ("differs", "failed")][:MOST_SHOWN]:
        if one.verdict == "differs":
            paper.say(
                f"{one.run_id}: {one.what} is {one.recorded} and was computed as {one.computed}", "", "  "
            )
        else:
            paper.say(f"{one.run_id}: {one.verdict}: {one.why}", "", "  ")


def _print_window(paper: Paper, window: Window, computed: Sequence[Verified]) -> None:
    if paper.in_json:
        paper.json({**window._asdict(), "verified": computed})
        return
    rows = [("verdict", "step", "run", "entries", "decisions", "state")]
    rows += [
        (one.verdict, one.step, one.run_id, f"{one.entries}", f"{one.decisions}", one.state)
        for one in window.verdicts
    ]
    if len(rows) > 1:
        paper.table(rows, right=(3, 4))
    for one in [one for one in window.verdicts if one.verdict != "agrees"][:MOST_SHOWN]:
        paper.line()
        paper.line(f"{one.step} {one.run_id}", "bold")
        _print_end(paper, one)
    totals = window.totals
    paper.line()
    paper.line(
        f"{totals.runs:,} runs: {totals.agrees:,} agree, {totals.drift:,} drift, {totals.damaged:,} damaged; "
        f"{totals.entries:,} entries, {totals.decisions:,} decisions computed again",
        "green" if window.agrees else "red",
    )
    _print_computed(paper, computed)
