"""`oncemore runs steps`, `runs jobs`, `worker list` and `workflow list`."""

from __future__ import annotations

from oncemore.cli.commands import CommandReport, flag_option, store_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.log.store import Store
    from oncemore.queries.lists import JobRow, StepList, WorkerProcess

STEP_HEADS = ("step", "runs", "waiting", "running", "held", "failed", "complete")
WORKER_HEADS = ("worker", "state", "host", "pid", "started", "lease ends", "running")
JOB_HEADS = ("job", "step", "state", "items", "done", "failed", "held", "deferred", "started")


@store_command("steps", "oncemore runs steps\noncemore runs steps --json", opener="open_read_only")
def list_steps_command(store: Store) -> CommandReport:
    """List the steps of a store with the number of their runs by state."""
    from oncemore.queries.lists import list_steps

    listed = list_steps(store)
    return CommandReport(listed, lambda out: _print_steps(out, listed))


@store_command("jobs", "oncemore runs jobs\noncemore runs jobs --json", opener="open_read_only")
def list_jobs_command(store: Store) -> CommandReport:
    """List jobs (`step.map`), running ones first."""
    from oncemore.queries.lists import list_jobs

    rows = list_jobs(store)
    return CommandReport(rows, lambda out: _print_jobs(out, rows))


@store_command("list", "oncemore worker list\noncemore worker list --all --json", opener="open_read_only")
@flag_option("--all with_ended", "Also list processes that have ended.")
def list_workers_command(store: Store, with_ended: bool) -> CommandReport:
    """List the processes that work on a store.

    A process whose lease has passed is shown as lost: its runs are free for other workers.
    """
    from oncemore.queries.lists import list_workers

    rows, now = list_workers(store, with_ended=with_ended), store.now()
    return CommandReport(rows, lambda out: _print_workers(out, rows, now))


@store_command("list", "oncemore workflow list\noncemore workflow list --json", opener="open_read_only")
def list_workflows_command(store: Store) -> CommandReport:
    """List workflows that sleep or wait for a signal.

    `oncemore show RUN` has the sleeps, waits and signals of one workflow.
    """
    from oncemore.cli.run_tables import print_runs
    from oncemore.queries.lists import MAX_LISTED, list_waiting_workflows

    rows, now = list_waiting_workflows(store), store.now()

    def print_text(out: OutputWriter) -> None:
        if rows:
            print_runs(out, rows, MAX_LISTED, now)
        else:
            out.write_line("No workflow sleeps or waits for a signal.", "green")

    return CommandReport(rows, print_text)


def _print_steps(out: OutputWriter, listed: StepList) -> None:
    if not listed.steps:
        out.write_line("No step has run on this store yet.")
        return
    rows = [
        (
            step.step,
            f"{step.runs:,}",
            f"{step.counts['PENDING'] + step.counts['SOFT_FAIL']:,}",
            f"{step.counts['RUNNING']:,}",
            f"{step.counts['HELD']:,}",
            f"{step.counts['HARD_FAIL']:,}",
            f"{step.counts['COMPLETE']:,}",
        )
        for step in listed.steps
    ]
    out.write_table([STEP_HEADS, *rows], right=(1, 2, 3, 4, 5, 6))
    if not listed.is_complete:
        out.write_line(f"Only the latest {listed.counted:,} runs are counted.", "dim")


def _print_jobs(out: OutputWriter, rows: Sequence[JobRow]) -> None:
    from oncemore.queries.times import format_time

    if not rows:
        out.write_line("No jobs yet; `step.map(items)` starts one.")
        return
    cells = [
        (
            row.job_id, row.step, row.state, f"{row.items:,}", f"{row.done:,}", f"{row.failed:,}",
            f"{row.held:,}", f"{row.deferred:,}", format_time(row.created_at)[:19],
        )
        for row in rows
    ]  # fmt: skip
    out.write_table([JOB_HEADS, *cells], right=(3, 4, 5, 6, 7))


def _print_workers(out: OutputWriter, rows: Sequence[WorkerProcess], now: float) -> None:
    from oncemore.policy.explain import format_seconds
    from oncemore.queries.times import format_time

    if not rows:
        out.write_line("No process works on this store now.")
        return
    cells = []
    for row in rows:
        state = row.state if row.is_alive or row.state != "ALIVE" else "LOST"
        left = f"in {format_seconds(row.lease_until - now)}" if row.is_alive else "passed"
        started = format_time(row.started_at)[:19]
        cells.append((row.name, state, row.host, str(row.pid), started, left, str(row.running)))
    out.write_table([WORKER_HEADS, *cells], right=(3, 6))
