"""`oncemore runs`, `show`, `explain` and `tail`: list, show and explain runs, and follow the log."""

from __future__ import annotations

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    CommandReport,
    WholeNumber,
    WordChoice,
    choice_option,
    documented_command,
    flag_option,
    ids_option,
    json_option,
    report_ids,
    store_command,
    store_option,
    value_option,
)
from oncemore.cli.output import OutputWriter
from oncemore.policy.model import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.store import Store
    from oncemore.queries.tail import TailLine

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
TAIL_EXAMPLES = """
oncemore store tail
oncemore store tail -f --step flows.load
oncemore store tail -n 1000 --mark HARD_FAIL --json
"""
ENTITY_KINDS = ("run", "event", "artifact", "worker")

run_argument = click.argument(
    "run",
    metavar="RUN",
    shell_complete=params.complete_runs,
    help="Id or key of a run, or a unique prefix of one.",
)


@store_command(
    "list",
    RUNS_EXAMPLES,
    {"Filters": "step state error dataset tenant correlation since until held limit"},
    opener="open_read_only",
)
@value_option("--step", "NAME", "Only this step.", shell_complete=params.complete_steps)
@value_option("--state", "STATE", f"{', '.join(STATES)}.", type=WordChoice(STATES))
@value_option("--error", "CLASS", "Only this error class in the last attempt, such as HTTP_503.")
@value_option("--dataset", "NAME", "Only this dataset.")
@value_option("--tenant", "NAME", "Only this tenant.")
@value_option("--correlation", "ID", "Only this correlation id.")
@value_option("--since", "TIME", "Changed since: 2h, 7d, 14:05, 2026-11-16T14:05Z.")
@value_option("--until", "TIME", "Changed until this time.")
@flag_option("--held", "Only runs that wait for an operator.")
# The limit bounds the memory for a store with millions of runs.
@value_option("--limit", "N", "Maximum number (50).", type=WholeNumber(1, 100_000), default=50)
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
    rows = list_runs(store, RunFilter(**filters, since=start, until=end), with_arguments=not only_ids)
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
@value_option("--attempt", "N", "Only the delay and the outcome of this attempt.", type=WholeNumber(1))
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


@documented_command("tail", TAIL_EXAMPLES)
@value_option(
    "-n --lines count",
    "N",
    "Number of latest entries to print (20).",
    type=WholeNumber(0, 1_000_000),
    default=20,
)
@flag_option("-f --follow", "Print new entries as they arrive, until Ctrl-C.")
@choice_option(
    "--kind kinds",
    ENTITY_KINDS,
    f"Kinds of entries: {', '.join(ENTITY_KINDS)}; default: all but worker.",
    multiple=True,
)
@value_option("--mark marks", "MARK", "Only this mark, such as COMMIT or SOFT_FAIL.", multiple=True)
@value_option("--step", "NAME", "Only this step.", shell_complete=params.complete_steps)
@value_option("--tenant", "NAME", "Only this tenant.")
@value_option("--correlation", "ID", "Only this correlation id.")
@value_option("--error", "CLASS", "Only this error class.")
@store_option
@json_option
def tail(
    count: int,
    follow: bool,
    kinds: tuple[str, ...],
    marks: tuple[str, ...],
    store: str | None,
    in_json: bool,
    **filters: Any,
) -> None:
    """Print the end of the log, and follow it.

    One line per entry; with --json one JSON document per line.
    """
    from oncemore.queries.stores import open_read_only
    from oncemore.queries.tail import EntryFilter, LogTailer

    out = OutputWriter(in_json=in_json)
    # Heartbeats of workers would hide all other entries, so they are shown only on request.
    entry_filter = EntryFilter(kinds or ENTITY_KINDS[:-1], tuple(mark.upper() for mark in marks), **filters)
    with open_read_only(store) as opened:
        log = LogTailer(opened, entry_filter)
        for line in log.read_last_lines(count):
            _print_entry(out, line)
        while follow and not out.is_reader_gone:
            # This waits for the next append, so the loop does not use the processor.
            for line in log.read_new_lines():
                _print_entry(out, line)


def _print_entry(out: OutputWriter, line: TailLine) -> None:
    if out.in_json:
        out.write_json_line(line)
        return
    from oncemore.cli.run_tables import STATE_COLORS
    from oncemore.queries.times import format_time

    reason = f"{line.error}: {line.message}" if line.error else line.reason
    attempt = f" #{line.attempt}" if line.attempt else ""
    # An event or an artifact has no run id; the start of its name identifies it.
    name = line.run_id or line.name[:16]
    text = f"{format_time(line.at)}  {line.seq}  {' '.join(line.marks)}{attempt}  {line.step} {name}"
    out.write_line(f"{text}  {reason}" if reason else text, STATE_COLORS.get(line.state, ""))
