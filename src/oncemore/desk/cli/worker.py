"""`oncemore worker`: do what was handed in, until it is told to stop."""

from __future__ import annotations

import click

from oncemore.desk.cli.group import Finite, Whole, json_option, leaf, store_option
from oncemore.desk.cli.paper import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.workers import Worker

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
@click.option("--drain", is_flag=True, help="Do what is due now, and end.")
@json_option
def worker(
    modules: tuple[str, ...],
    store: str | None,
    concurrency: int,
    steps: tuple[str, ...],
    grace: float,
    health: str | None,
    drain: bool,
    in_json: bool,
) -> int:
    """Do runs that are due, of the steps in modules.

    Runs are those handed in with step.submit(...), those that calls have left waiting, and
    those that dead workers had. Any number of workers may share a store. SIGTERM or Ctrl-C
    lets what is under way come to its end; a second one ends at once. What it does is told on
    standard error; --json prints at the end how many runs came to what.

    With --health, /healthz answers 200 as long as the worker's loop goes round, and /readyz as long
    as it also sees the store and was not told to stop; else 503. Both tell why, as JSON.
    """
    import logging
    import sys

    from oncemore.desk.cli.health import answering, place_of
    from oncemore.desk.service.stores import made
    from oncemore.workers import Worker, steps_in

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    known = _wanted(steps_in(modules), steps)
    place = None if health is None else place_of(health)
    with made(store) as engine:
        hired = Worker(engine, known, concurrency=concurrency, grace_s=grace)
        what = f"{', '.join(sorted(step.name for step in known))} on {engine.url}"
        with answering(hired, place):
            return _work(hired, drain, in_json, what)


def _wanted(known: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return the steps of these names, or all; a name that no step has is refused."""
    from fnmatch import fnmatchcase

    for name in names:
        if not any(fnmatchcase(step.name, name) for step in known):
            have = ", ".join(sorted(step.name for step in known))
            raise click.BadParameter(f"no step is called {name!r}; there are {have}.", param_hint="'--steps'")
    return [step for step in known if not names or any(fnmatchcase(step.name, name) for name in names)]


def _say_hello(worker: Worker, what: str) -> None:
    from oncemore.engine.runtime import log

    log.info("oncemore: a worker of %s", what)
    for name, count in worker.unknown().items():
        log.warning("oncemore: %d due runs of %s stay: that step is not known here", count, name)


def _work(worker: Worker, drain: bool, in_json: bool, what: str) -> int:
    """Work, and return how it ended; with work left behind, end here and now, without giving leases back."""
    import os
    import signal
    import sys

    from oncemore.engine.runtime import log

    told: list[int] = []

    def hear(number: int, frame: object) -> None:
        told.append(number)
        if len(told) > 1:
            os._exit(128 + number)
        worker.stop()

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _say_hello(worker, what)
        worked = worker.run_until_idle() if drain else worker.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    left = worker.under_way
    if in_json:
        Paper(in_json=True).json({**worked._asdict(), "left": len(left)})
        sys.stdout.flush()
    log.info(
        "oncemore: a worker ends: %s",
        ", ".join(f"{count} {name}" for name, count in worked._asdict().items() if count) or "nothing to do",
    )
    if left:
        # To give the leases back would be to say that nobody is at it, while these threads still are.
        log.error("oncemore: %d runs are left to their leases", len(left))
        sys.stderr.flush()
        os._exit(LEFT_BEHIND)
    return 0
