"""`oncemore tail`: the log as lines."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import Whole, json_option, leaf, store_option
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.cli.output import Tint
    from oncemore.queries.tail import Line

EXAMPLES = """
oncemore tail
oncemore tail -f --step flows.load
oncemore tail -n 1000 --mark HARD_FAIL --json
"""
KINDS = ("run", "event", "artifact", "worker")
TINTS: dict[str, Tint] = {"COMPLETE": "green", "HARD_FAIL": "red", "SOFT_FAIL": "yellow"}


@leaf("tail", EXAMPLES)
@click.option("-n", "--lines", "count", metavar="N", type=Whole(0, 1_000_000), default=20,
              help="How many of the last entries (20).")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--kind", "kinds", metavar="WORD", type=click.Choice(KINDS), multiple=True,
              help=f"Entries about {', '.join(KINDS)}; all but worker unless given.")  # fmt: skip
@click.option(
    "--mark", "marks", metavar="MARK", multiple=True, help="With this mark, as COMMIT or SOFT_FAIL."
)
@click.option("--step", metavar="NAME", shell_complete=completion.steps, help="Of this step.")
@click.option("--tenant", metavar="NAME", help="Of this tenant.")
@click.option("--correlation", metavar="ID", help="In this course of events.")
@click.option("--error", metavar="CLASS", help="With this class of error.")
@store_option
@json_option
def tail(
    count: int,
    follow: bool,
    kinds: tuple[str, ...],
    marks: tuple[str, ...],
    store: str | None,
    in_json: bool,
    **asked: Any,
) -> None:
    """Print the end of the log, and follow it.

    One line for each entry; with --json one JSON document for each, on a line of its own.
    """
    from oncemore.queries.open_engine import looked_at
    from oncemore.queries.tail import Tail, Wanted

    paper = Paper(in_json=in_json)
    wanted = Wanted(kinds or KINDS[:-1], tuple(mark.upper() for mark in marks), **asked)
    with looked_at(store) as opened:
        log = Tail(opened, wanted)
        for line in log.last(count):
            _print(paper, line)
        while follow and not paper.hushed:
            for line in log.new():
                _print(paper, line)


def _print(paper: Paper, line: Line) -> None:
    if paper.in_json:
        paper.record(line)
        return
    from oncemore.queries.times import shown

    told = f"{line.error}: {line.message}" if line.error else line.reason
    attempt = f" #{line.attempt}" if line.attempt else ""
    name = line.run_id or line.name[:16]
    text = f"{shown(line.at)}  {line.seq}  {' '.join(line.marks)}{attempt}  {line.step} {name}"
    paper.line(f"{text}  {told}" if told else text, TINTS.get(line.state, ""))
