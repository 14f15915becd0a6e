"""`oncemore runs`, `show` and `explain`: what ran, how it went, and why."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import OneOf, Whole, ids_option, json_option, leaf, store_option
from oncemore.cli.output import Paper
from oncemore.policy.model import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNS = """
oncemore runs
oncemore runs --state HARD_FAIL --since 1d
oncemore runs --step flows.load --error HTTP_503 --limit 500
oncemore runs --correlation corr-456 --json
oncemore runs --error TIMEOUT --ids | xargs -n1 oncemore explain
"""
SHOW = """
oncemore show 0193a000-0000-7000-8000-000000000001
oncemore show b4b6cd73
oncemore show b4b6cd73 --json
"""
EXPLAIN = """
oncemore explain b4b6cd73
oncemore explain b4b6cd73 --attempt 3
"""


run_argument = click.argument(
    "run",
    metavar="RUN",
    shell_complete=completion.runs,
    help="A run's id or its key, or how one of them begins.",
)


@leaf("runs", RUNS, {"Which": "step state error dataset tenant correlation since until held limit"})
@store_option
@click.option("--step", metavar="NAME", shell_complete=completion.steps, help="Of this step.")
@click.option("--state", type=OneOf(STATES), metavar="STATE", help=f"{', '.join(STATES)}.")
@click.option(
    "--error", metavar="CLASS", help="Whose last attempt ended with this class of error, as HTTP_503."
)
@click.option("--dataset", metavar="NAME", help="About this dataset.")
@click.option("--tenant", metavar="NAME", help="Of this tenant.")
@click.option("--correlation", metavar="ID", help="In this course of events.")
@click.option("--since", metavar="TIME", help="Last changed since then: 2h, 7d, 14:05, 2026-11-16T14:05Z.")
@click.option("--until", metavar="TIME", help="Last changed until then.")
@click.option("--held", is_flag=True, help="Only those that wait for a person.")
@click.option("--limit", metavar="N", type=Whole(1, 100_000), default=50, help="At most so many (50).")
@ids_option
@json_option
def runs(
    store: str | None, since: str | None, until: str | None, only_ids: bool, in_json: bool, **asked: Any
) -> None:
    """List runs, those first that changed last.

    A key has one line, for its last run.
    """
    from oncemore.cli.run_tables import print_runs
    from oncemore.queries.open_engine import looked_at
    from oncemore.queries.runs import Asked
    from oncemore.queries.runs import runs as listed
    from oncemore.queries.times import instant

    paper = Paper(in_json=in_json)
    with looked_at(store) as opened:
        now = opened.now()
        begins, ends = (None if text is None else instant(text, now) for text in (since, until))
        rows = listed(opened, Asked(**asked, since=begins, until=ends))
    if only_ids:
        paper.ids([row.run_id for row in rows])
    elif in_json:
        paper.json(rows)
    else:
        print_runs(paper, rows, asked["limit"], now)


@leaf("show", SHOW)
@run_argument
@store_option
@json_option
def show(run: str, store: str | None, in_json: bool) -> None:
    """Show one run: attempts, waits and leases as a timeline.

    Then what it was called with, what it left, and every entry about it; texts are as they are stored.
    """
    from oncemore.cli.run_tables import print_story
    from oncemore.queries.open_engine import looked_at
    from oncemore.queries.run_timeline import story
    from oncemore.queries.runs import find

    paper = Paper(in_json=in_json)
    with looked_at(store) as opened:
        told = story(opened, find(opened, run))
    if in_json:
        paper.json(told)
    else:
        print_story(paper, told)


@leaf("explain", EXPLAIN)
@run_argument
@click.option("--attempt", metavar="N", type=Whole(1), help="Only why this attempt waited, and what came.")
@store_option
@json_option
def explain(run: str, attempt: int | None, store: str | None, in_json: bool) -> None:
    """Explain why a run did what it did.

    Every sentence is made from the log: when each attempt began and what it had waited for, how it ended,
    what was decided then, and from which numbers.
    """
    from oncemore.cli.run_tables import print_explained
    from oncemore.queries.explain import explained
    from oncemore.queries.open_engine import looked_at
    from oncemore.queries.run_timeline import story
    from oncemore.queries.runs import find

    paper = Paper(in_json=in_json)
    with looked_at(store) as opened:
        found = explained(story(opened, find(opened, run)), attempt)
    if in_json:
        paper.json(found)
    else:
        print_explained(paper, found)
