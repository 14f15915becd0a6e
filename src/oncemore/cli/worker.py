"""`oncemore worker`: run due work until stopped."""

from __future__ import annotations

import logging

import click

from oncemore.cli.commands import FiniteNumber, WholeNumber, documented_command, json_option, store_option
from oncemore.cli.output import OutputWriter
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.workers.worker import Worker
    from oncemore.workers.worker_report import Leftover, WorkerStats

EXAMPLES = """
oncemore worker shop.orders
oncemore worker shop.orders shop.mail:send --concurrency 10
oncemore worker shop.orders --store postgresql://db/shop --steps 'shop.orders.*'
oncemore worker shop.orders --drain
oncemore worker shop.orders --health 0.0.0.0:8080
"""
EXIT_WORK_LEFT = 1


@documented_command("worker", EXAMPLES)
@click.argument("modules", metavar="MODULE[:STEP]...", nargs=-1, required=True)
@store_option
@click.option(
    "--concurrency",
    metavar="N",
    type=WholeNumber(1, 1000),
    default=5,
    show_default=True,
    help="Number of runs at the same time.",
)
@click.option("--steps", metavar="NAME", multiple=True, help="Only steps with this name; * matches any text.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=FiniteNumber(0),
    default=30.0,
    show_default=True,
    help="Time that running work may take after a stop signal.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Serve GET /healthz and /readyz; without a host only on this machine.",
)
@click.option("--drain", is_flag=True, help="Run due work, then end.")
@click.option(
    "--wait",
    metavar="TIME",
    type=DURATION,
    help="With --drain: also run work due within TIME; default: max_inline_wait_s (60 s).",
)
@json_option
def worker(
    modules: tuple[str, ...],
    store: str | None,
    concurrency: int,
    steps: tuple[str, ...],
    grace: float,
    health: str | None,
    drain: bool,
    wait: float | None,
    in_json: bool,
) -> int:
    """Run due work for the steps defined in MODULE.

    A worker runs submitted work, deferred retries, and runs of workers that have died. Any number of workers
    can share a store. On SIGTERM or Ctrl-C, running work may finish; a second signal ends the process at
    once. The worker logs to standard error; --json prints the number of runs by result at the end.

    With --health, /healthz answers 200 while the worker's loop is running, and /readyz while the worker also
    reads the store and is not stopping; otherwise both answer 503, with the reason as JSON.

    With --drain, the exit code is 0 if no run of these steps is left that is due within --wait, and 1 if one
    is left: a switch is on, a run cannot continue here, or the worker was stopped. The last log line says
    which.
    """
    import sys

    from oncemore.cli.health_server import parse_listen_address, serve_health
    from oncemore.queries.stores import open_or_create
    from oncemore.workers.find_steps import find_steps
    from oncemore.workers.worker import Worker

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    selected = _select_steps(find_steps(modules), steps)
    address = None if health is None else parse_listen_address(health)
    if wait is not None and not drain:
        raise click.UsageError("--wait needs --drain; without it a worker waits until it is stopped.")
    with open_or_create(store) as engine:
        process = Worker(engine, selected, concurrency=concurrency, grace_s=grace)
        subject = f"{', '.join(sorted(step.name for step in selected))} on {engine.url}"
        with serve_health(process, address):
            wait_s = (engine.inline_wait_s if wait is None else wait) if drain else None
            return _run_worker(process, wait_s, in_json, subject)


def _select_steps(known: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return the steps that match a name, or all without names; refuse a name that matches none."""
    from fnmatch import fnmatchcase

    from oncemore.policy.canonical_json import normalize_name

    # Step names are stored in Unicode form NFC; a shell may pass another form of the same text.
    names = tuple(map(normalize_name, names))
    for name in names:
        # A misspelt name would give a worker that runs nothing and reports no error.
        if not any(fnmatchcase(step.name, name) for step in known):
            available = ", ".join(sorted(step.name for step in known))
            raise click.BadParameter(
                f"no step matches {name!r}; the steps are {available}.", param_hint="'--steps'"
            )
    return [step for step in known if not names or any(fnmatchcase(step.name, name) for name in names)]


def _log_start(worker: Worker, subject: str) -> None:
    from oncemore.steps.engine import log

    log.info("oncemore: worker started for %s", subject)
    for name, count in worker.unknown_steps().items():
        log.warning("oncemore: %d due runs of %s stay: this worker does not have that step", count, name)


def _run_worker(worker: Worker, wait_s: float | None, in_json: bool, subject: str) -> int:
    """Run the worker and return the exit code.

    If work is still running after the grace period, the process ends without releasing the leases.

    wait_s   drain, and wait this long for work that becomes due; None: run until stopped
    subject  the steps and the store, for the log
    """
    import os
    import signal
    import sys

    from oncemore.steps.engine import log

    received: list[int] = []

    def handle_signal(number: int, frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)
        worker.stop()

    previous = {number: signal.signal(number, handle_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _log_start(worker, subject)
        stats = worker.run() if wait_s is None else worker.run_until_idle(wait_s)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    active_keys = worker.active_keys
    leftovers = () if wait_s is None else worker.leftovers(wait_s)
    if in_json:
        remaining = {"left": len(active_keys), "leftovers": [leftover._asdict() for leftover in leftovers]}
        OutputWriter(in_json=True).write_json({**stats._asdict(), **remaining})
        # `os._exit` below does not flush.
        sys.stdout.flush()
    _log_end(stats, leftovers)
    if active_keys:
        # Closing the engine would release the leases, and another worker would run the same work beside
        # these threads. Without the release, the runs are free only when the leases have expired.
        log.error(
            "oncemore: %d runs were still running; they are free when their leases expire", len(active_keys)
        )
        sys.stderr.flush()
        os._exit(EXIT_WORK_LEFT)
    return EXIT_WORK_LEFT if any(leftover.is_due for leftover in leftovers) else 0


def _log_end(stats: WorkerStats, leftovers: tuple[Leftover, ...]) -> None:
    """Log the number of runs by result, and the runs that are left with their reasons."""
    from oncemore.steps.engine import log
    from oncemore.workers.worker_report import summarize

    summary = ", ".join(f"{count} {name}" for name, count in stats._asdict().items() if count)
    if not leftovers:
        log.info("oncemore: worker ended: %s", summary or "no work")
        return
    # Runs that are due later are normal; due runs that are left make the exit code 1.
    level = logging.WARNING if any(leftover.is_due for leftover in leftovers) else logging.INFO
    log.log(level, "oncemore: worker ended: %s; left: %s", summary or "no work done", summarize(leftovers))
