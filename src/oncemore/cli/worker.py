"""`oncemore worker` and `oncemore inbox`: run due work, or call a step for each message, until stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys

import click

from oncemore.cli.commands import (
    FiniteNumber,
    LazyGroup,
    WholeNumber,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
)
from oncemore.cli.output import OutputWriter
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeVar

    from oncemore.inbox import Inbox
    from oncemore.steps.engine import Engine
    from oncemore.workers.worker import Worker
    from oncemore.workers.worker_report import Leftover, WorkerStats

    F = TypeVar("F", bound=Callable[..., Any])

WORKER_EXAMPLES = """
oncemore worker shop.orders
oncemore worker shop.orders shop.mail:send --concurrency 10
oncemore worker shop.orders --store postgresql://db/shop --steps 'shop.orders.*'
oncemore worker shop.orders --drain
oncemore worker shop.orders --health 0.0.0.0:8080 --metrics 0.0.0.0:9464
"""
INBOX_EXAMPLES = """
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop
oncemore inbox shop.orders:book --from https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo
oncemore inbox shop.orders:book --from "amqp://localhost:5672?queue=orders"
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop --drain --json
"""
EXIT_WORK_LEFT = 1

_grace_option = value_option(
    "--grace",
    "SECONDS",
    "Time that running work may take after a stop signal.",
    type=FiniteNumber(0),
    default=30.0,
    show_default=True,
)


def _concurrency_option(meaning: str) -> Callable[[F], F]:
    return value_option(
        "--concurrency", "N", meaning, type=WholeNumber(1, 1000), default=5, show_default=True
    )


def log_to_stderr() -> None:
    """Log to standard error, for commands that run until they are stopped."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def _format_stats(stats: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in stats._asdict().items() if count)


def _exit_while_running(engine: Engine, message: str, *values: object) -> NoReturn:
    """Close the attempts that are still running as interrupted, and end the process at once.

    The engine is not closed: that would wait for threads, while other workers already run the same work. What
    cannot be closed (`once`, and runs that count lost attempts as attempts) is free when the process is gone,
    or when its lease has expired.
    """
    from oncemore.steps.engine import log
    from oncemore.steps.release import release_attempts

    log.error(message, *values)
    count = release_attempts(engine)
    if count:
        log.info("oncemore: %d of them were interrupted, at no cost, and are due again", count)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(EXIT_WORK_LEFT)


@click.group(
    "worker",
    cls=LazyGroup,
    modules={"run": "worker:worker", "list": "lists:list_workers_command"},
    examples=WORKER_EXAMPLES.rstrip() + "\noncemore worker list\n",
    default_command="run",
    takes_words=True,
)
def worker_group() -> None:
    """Run due work of the steps in MODULE; list workers.

    The default command is `run`: `oncemore worker MODULE`. `oncemore worker run --help` has its options.
    """


@documented_command("run", WORKER_EXAMPLES)
@click.argument("modules", metavar="MODULE[:STEP]...", nargs=-1, required=True)
@store_option
@_concurrency_option("Number of runs at the same time.")
@value_option("--steps", "NAME", "Only steps with this name; * matches any text.", multiple=True)
@_grace_option
@value_option(
    "--health", "[HOST:]PORT", "Serve GET /healthz and /readyz; without a host only on this machine."
)
@value_option(
    "--metrics", "[HOST:]PORT", "Serve GET /metrics for Prometheus; without a host only on this machine."
)
@flag_option("--drain", "Run due work, then end.")
@value_option(
    "--wait",
    "TIME",
    "With --drain: also run work due within TIME; default: max_inline_wait_s (60 s).",
    type=DURATION,
)
@json_option
def worker(
    modules: tuple[str, ...],
    store: str | None,
    concurrency: int,
    steps: tuple[str, ...],
    grace: float,
    health: str | None,
    metrics: str | None,
    drain: bool,
    wait: float | None,
    in_json: bool,
) -> int:
    """Run due work for the steps defined in MODULE.

    A worker runs submitted work, deferred retries, and runs of workers that have died. Any number of workers
    can share a store. If the setting ledger_key is set, it also signs the log regularly
    (`oncemore ledger`). On SIGTERM or Ctrl-C, running work may finish; a second signal ends the process at
    once. The worker logs to standard error; --json prints the number of runs by result at the end.

    With --health, /healthz answers 200 while the worker's loop is running, and /readyz while the worker also
    reads the store and is not stopping; otherwise both answer 503, with the reason as JSON. With --metrics,
    /metrics has the runs, attempts, waits and breakers of this process (extra `prometheus`).

    With --drain, the exit code is 0 if no run of these steps is left that is due within --wait, and 1 if one
    is left: a switch is on, a run cannot continue here, or the worker was stopped. The last log line says
    which.
    """
    from oncemore.cli.health_server import parse_listen_address, serve_health, serve_metrics
    from oncemore.governance.checkpoint_thread import make_checkpoints_regularly
    from oncemore.queries.stores import open_or_create, settings_for
    from oncemore.workers.find_steps import find_steps
    from oncemore.workers.worker import Worker

    log_to_stderr()
    selected = _select_steps(find_steps(modules), steps)
    address = None if health is None else parse_listen_address(health)
    metrics_address = None if metrics is None else parse_listen_address(metrics, "--metrics")
    if wait is not None and not drain:
        raise click.UsageError("--wait needs --drain; without it a worker waits until it is stopped.")
    with open_or_create(store) as engine:
        process = Worker(engine, selected, concurrency=concurrency, grace_s=grace)
        subject = f"{', '.join(sorted(step.name for step in selected))} on {engine.url}"
        signing = make_checkpoints_regularly(engine, settings_for(store))
        with serve_health(process, address), serve_metrics(metrics_address), signing:
            wait_s = (engine.inline_wait_s if wait is None else wait) if drain else None
            return _run_worker(engine, process, wait_s, in_json, subject)


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


def _run_worker(engine: Engine, worker: Worker, wait_s: float | None, in_json: bool, subject: str) -> int:
    """Run the worker and return the exit code.

    If work is still running after the grace period, its attempts are closed as interrupted, and the process
    ends at once.

    wait_s   drain, and wait this long for work that becomes due; None: run until stopped
    subject  the steps and the store, for the log
    """
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
    _log_end(stats, leftovers)
    if active_keys:
        _exit_while_running(engine, "oncemore: %d runs were still running at the end", len(active_keys))
    return EXIT_WORK_LEFT if any(leftover.is_due for leftover in leftovers) else 0


def _log_end(stats: WorkerStats, leftovers: tuple[Leftover, ...]) -> None:
    """Log the number of runs by result, and the runs that are left with their reasons."""
    from oncemore.steps.engine import log
    from oncemore.workers.worker_report import summarize

    summary = _format_stats(stats)
    if not leftovers:
        log.info("oncemore: worker ended: %s", summary or "no work")
        return
    # Runs that are due later are normal; due runs that are left make the exit code 1.
    level = logging.WARNING if any(leftover.is_due for leftover in leftovers) else logging.INFO
    log.log(level, "oncemore: worker ended: %s; left: %s", summary or "no work done", summarize(leftovers))


@documented_command("inbox", INBOX_EXAMPLES)
@click.argument("step", metavar="MODULE:STEP")
@value_option(
    "--from address",
    "URL",
    "Queue: nats://host:4222/STREAM/CONSUMER, amqp://host:5672/VHOST?queue=NAME, or the URL of an SQS queue.",
    required=True,
)
@store_option
@_concurrency_option("Number of messages to process at the same time.")
@_grace_option
@flag_option("--drain", "Process the messages that are waiting now, then end.")
@json_option
def inbox(
    step: str, address: str, store: str | None, concurrency: int, grace: float, drain: bool, in_json: bool
) -> int:
    """Call a step once for each message of a queue.

    A message is acknowledged after its result is in the log, so a redelivered message is not processed
    twice. A message that cannot be decoded or has failed permanently becomes a dead letter: `oncemore
    quarantine list` shows it, and `oncemore quarantine release` delivers it again. On SIGTERM or Ctrl-C,
    running work may finish. nats://…?subjects=orders.> creates a missing stream. --json prints the number of
    messages by result at the end.
    """
    from oncemore.inbox import inbox_from_url
    from oncemore.queries.stores import open_or_create
    from oncemore.steps.engine import log
    from oncemore.workers.find_steps import find_steps

    log_to_stderr()
    if ":" not in step:
        raise click.BadParameter("write the step too: package.module:step.", param_hint="'MODULE:STEP'")
    (found_step,) = find_steps([step])
    with open_or_create(store) as engine:
        receiver = inbox_from_url(found_step, address, engine=engine, concurrency=concurrency, grace=grace)
        log.info("oncemore: inbox for %s started on %s", found_step.name, engine.url)
        return _receive_messages(engine, receiver, drain, in_json)


def _receive_messages(engine: Engine, receiver: Inbox, drain: bool, in_json: bool) -> int:
    """Receive messages and return the exit code.

    If work is still running after the grace period, the process ends at once, as a worker does.
    """
    from oncemore.steps.engine import log

    stats = receiver.drain() if drain else receiver.run()
    if in_json:
        OutputWriter(in_json=True).write_json({**stats._asdict(), "left": len(receiver.active_ids)})
    summary = _format_stats(stats)
    log.info("oncemore: inbox ended: %s", summary or "no messages")
    if receiver.running_threads:
        _exit_while_running(engine, "oncemore: some work was still running at the end")
    return 0
