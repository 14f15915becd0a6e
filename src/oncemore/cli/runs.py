"""`oncemore runs`, `show` and `explain`: list runs, show one, and explain its decisions."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import (
    CommandReport,
    WholeNumber,
    WordChoice,
    ids_option,
    report_ids,
    store_command,
)
from oncemore.policy.model import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.store import Store

RUNS_EXAMPLES = """
oncemore runs
oncemore runs --state HARD_FAIL --since 1d
oncemore runs --step flows.load --error HTTP_503 --limit 500
oncemore runs --correlation corr-456 --json
oncemore runs --error TIMEOUT --ids | xargs -n1 oncemore explain
"""
SHOW_EXAMPLES = """
oncemore show 0193a000-0000-7000-8000-000000000001
oncemore show b4b6cd73
oncemore show b4b6cd73 --json
"""
EXPLAIN_EXAMPLES = """
oncemore explain b4b6cd73
oncemore explain b4b6cd73 --attempt 3
"""


run_argument = click.argument(
    "run",
    metavar="RUN",
    shell_complete=completion.complete_runs,
    help="Id or key of a run, or a unique prefix of one.",
)


@store_command(
    "runs",
    RUNS_EXAMPLES,
    {"Filters": "step state error dataset tenant correlation since until held limit"},
    opener="open_read_only",
)
@click.option("--step", metavar="NAME", shell_complete=completion.complete_steps, help="Only this step.")
@click.option("--state", type=WordChoice(STATES), metavar="STATE", help=f"{', '.join(STATES)}.")
@click.option("--error", metavar="CLASS", help="Only this error class in the last attempt, such as HTTP_503.")
@click.option("--dataset", metavar="NAME", help="Only this dataset.")
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
@click.option("--correlation", metavar="ID", help="Only this correlation id.")
@click.option("--since", metavar="TIME", help="Changed since: 2h, 7d, 14:05, 2026-11-16T14:05Z.")
@click.option("--until", metavar="TIME", help="Changed until this time.")
@click.option("--held", is_flag=True, help="Only runs that wait for an operator.")
# The limit bounds the memory for a store with millions of runs.
@click.option("--limit", metavar="N", type=WholeNumber(1, 100_000), default=50, help="Maximum number (50).")
@ids_option
def runs(store: Store, since: str | None, until: str | None, only_ids: bool, **filters: Any) -> CommandReport:
    """List runs, most recently changed first.

    Each key has one line, for its latest run.
    """
    from oncemore.cli.run_tables import print_runs
    from oncemore.queries.runs import RunFilter, list_runs
    from oncemore.queries.times import parse_instant

    # Relative times count from the clock of the store, which wrote the times in the log.
    now = store.now()
    start, end = (None if text is None else parse_instant(text, now) for text in (since, until))
    rows = list_runs(store, RunFilter(**filters, since=start, until=end))
    if only_ids:
        return report_ids(row.run_id for row in rows)
    return CommandReport(rows, lambda out: print_runs(out, rows, filters["limit"], now))


@store_command("show", SHOW_EXAMPLES, opener="open_read_only")
@run_argument
def show(store: Store, run: str) -> CommandReport:
    """Show one run: attempts, delays and leases as a timeline.

    Also shows its arguments, result, outputs and log entries. Texts are shown as stored.
    """
    from oncemore.cli.run_tables import print_timeline
    from oncemore.queries.run_timeline import load_timeline
    from oncemore.queries.runs import find_run

    timeline = load_timeline(store, find_run(store, run))
    return CommandReport(timeline, lambda out: print_timeline(out, timeline))


@store_command("explain", EXPLAIN_EXAMPLES, opener="open_read_only")
@run_argument
@click.option(
    "--attempt", metavar="N", type=WholeNumber(1), help="Only the delay and the outcome of this attempt."
)
def explain(store: Store, run: str, attempt: int | None) -> CommandReport:
    """Explain the decisions of a run.

    For each attempt: its start, the reason of its delay, its outcome, and the decision that followed with
    the numbers behind it. Every sentence is derived from the log.
    """
    from oncemore.cli.run_tables import print_explanation
    from oncemore.queries.explain import explain_run
    from oncemore.queries.run_timeline import load_timeline
    from oncemore.queries.runs import find_run

    # The whole timeline is needed for one attempt too: the attempt before has decided its delay.
    explanation = explain_run(load_timeline(store, find_run(store, run)), attempt)
    return CommandReport(explanation, lambda out: print_explanation(out, explanation))
