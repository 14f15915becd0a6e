"""`oncemore worker`: do what was handed in, until it is told to stop."""

from __future__ import annotations

import logging

import click

from oncemore.cli.commands import Finite, Whole, json_option, leaf, store_option
from oncemore.cli.output import Paper
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.workers.service import Worker
    from oncemore.workers.worker_report import Leftover, Worked

EXAMPLES = """
oncemore worker shop.orders
oncemore worker shop.orders shop.mail:send --concurrency 10
oncemore worker shop.orders --store postgresql://db/shop --steps 'shop.orders.*'
oncemore worker shop.orders --drain
oncemore worker shop.orders --health 0.0.0.0:8080
"""
LEFT_BEHIND = 1


@leaf("worker", EXAMPLES)
@click.argument("modules", metavar="MODULE[:STEP]...", nargs=-1, required=True)
@store_option
@click.option(
    "--concurrency",
    metavar="N",
    type=Whole(1, 1000),
    default=5,
    show_default=True,
    help="How many runs may be under way at once.",
)
@click.option(
    "--steps", metavar="NAME", multiple=True, help="Only steps of this name; * stands for anything."
)
@click.option(
    "--grace",
    metavar="SECONDS",
    type=Finite(0),
    default=30.0,
    show_default=True,
    help="How long what is under way may take when it is told to stop.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Answer GET /healthz and /readyz there; without a host, on this machine only.",
)
@click.option("--drain", is_flag=True, help="Run due work, and end when none is left.")
@click.option(
    "--wait",
    metavar="TIME",
    type=DURATION,
    help="With --drain: also run what becomes due within TIME; max_inline_wait_s (60 s) unless given.",
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
    """Do runs that are due, of the steps in modules.

    Runs are those handed in with step.submit(...), those that calls have left waiting, and
    those that dead workers had. Any number of workers may share a store. SIGTERM or Ctrl-C
    lets what is under way come to its end; a second one ends at once. What it does is told on
    standard error; --json prints at the end how many runs came to what.

    With --health, /healthz answers 200 as long as the worker's loop goes round, and /readyz as long
    as it also sees the store and was not told to stop; else 503. Both tell why, as JSON.

    --drain ends with 0 when none of its steps has a run left that is due within --wait, and with 1 when one
    has: a switch is on, a run cannot go on here, or the worker was stopped. The last line says which.
    """
    import sys

    from oncemore.cli.health import answering, place_of
    from oncemore.queries.open_engine import made
    from oncemore.workers.service import Worker, steps_in

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    known = _wanted(steps_in(modules), steps)
    place = None if health is None else place_of(health)
    if wait is not None and not drain:
        raise click.UsageError("--wait goes with --drain; without it a worker waits until it is stopped.")
    with made(store) as engine:
        hired = Worker(engine, known, concurrency=concurrency, grace_s=grace)
        what = f"{', '.join(sorted(step.name for step in known))} on {engine.url}"
        with answering(hired, place):
            wait_s = (engine.inline_wait_s if wait is None else wait) if drain else None
            return _work(hired, wait_s, in_json, what)


def _wanted(known: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return the steps of these names, or all; a name that no step has is refused."""
    from fnmatch import fnmatchcase

    from oncemore.policy.canonical_json import normalize_name

    names = tuple(map(normalize_name, names))
    for name in names:
        if not any(fnmatchcase(step.name, name) for step in known):
            have = ", ".join(sorted(step.name for step in known))
            raise click.BadParameter(f"no step is called {name!r}; there are {have}.", param_hint="'--steps'")
    return [step for step in known if not names or any(fnmatchcase(step.name, name) for name in names)]


def _say_hello(worker: Worker, what: str) -> None:
    from oncemore.steps.engine import log

    log.info("oncemore: a worker of %s", what)
    for name, count in worker.unknown().items():
        log.warning("oncemore: %d due runs of %s stay: that step is not known here", count, name)


def _work(worker: Worker, wait_s: float | None, in_json: bool, what: str) -> int:
    """Work, and return how it ended; with work left behind, end here and now, without giving leases back.

    wait_s  drain, and wait so long for what becomes due; None: work until it is stopped
    """
    import os
    import signal
    import sys

    from oncemore.steps.engine import log

    told: list[int] = []

    def hear(number: int, frame: object) -> None:
        told.append(number)
        if len(told) > 1:
            os._exit(128 + number)
        worker.stop()

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _say_hello(worker, what)
        worked = worker.run() if wait_s is None else worker.run_until_idle(wait_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    under_way = worker.under_way
    leftovers = () if wait_s is None else worker.leftovers(wait_s)
    if in_json:
        left = {"left": len(under_way), "leftovers": [one._asdict() for one in leftovers]}
        Paper(in_json=True).json({**worked._asdict(), **left})
        sys.stdout.flush()
    _say_goodbye(worked, leftovers)
    if under_way:
        # To give the leases back would be to say that nobody is at it, while these threads still are.
        log.error("oncemore: %d runs are left to their leases", len(under_way))
        sys.stderr.flush()
        os._exit(LEFT_BEHIND)
    return LEFT_BEHIND if any(one.is_due for one in leftovers) else 0


def _say_goodbye(worked: Worked, leftovers: tuple[Leftover, ...]) -> None:
    """Log what the worker did, and what it left and why, as the last line."""
    from oncemore.steps.engine import log
    from oncemore.workers.worker_report import summarize

    done = ", ".join(f"{count} {name}" for name, count in worked._asdict().items() if count)
    if not leftovers:
        log.info("oncemore: a worker ends: %s", done or "nothing to do")
        return
    is_due = any(one.is_due for one in leftovers)
    log.log(
        logging.WARNING if is_due else logging.INFO,
        "oncemore: a worker ends: %s; left: %s", done or "nothing done", summarize(leftovers),
    )  # fmt: skip
