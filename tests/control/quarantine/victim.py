"""Processes that are killed: python -m tests.control.quarantine.victim WHAT STORE MARK WHEN FILE

`hold` runs a step that ends in quarantine, `die` one that kills its worker; `release`, `reject` and `rerun`
decide about what is there, `tell` delivers notices to a file, `race` decides when told to go. The moment
at which a process kills itself is one of `tests.storm.points`; around a notice it is `telling` or `told`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import oncemore
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.outbox import EventMessage, JsonLinesSink
from tests.control.quarantine.helpers import FAR_FUTURE_S, ManualNotifier
from tests.storm.points import Point, arm, here, watch


@oncemore.step(effect="idempotent", name="victim.doubtful")
def doubtful(x: int) -> str:
    raise oncemore.NeedsReview("AMBIGUOUS_NAME", str(x))


@oncemore.step(effect="idempotent", name="victim.deadly", policy=oncemore.Policy("deadly", max_crashes=3))
def deadly(x: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def engine_on(store: str, file: str) -> Any:
    """Return an engine that tells a file when it is asked to."""
    lines = JsonLinesSink(file)

    def sink(message: EventMessage) -> None:
        here("telling")
        lines(message)
        here("told")

    engine = oncemore.open(store)
    engine.notifier = ManualNotifier(
        {"file": sink}, classify=classify, describe=error_to_record, every_s=FAR_FUTURE_S
    )
    return engine


def main(what: str, store: str, mark: str, when: str, file: str) -> None:
    with engine_on(store, file) as engine:
        watch(engine.store)
        arm(Point(mark, when) if mark else None)
        if what == "hold":
            doubtful.run(1)
        elif what == "die":
            deadly.run(1)
        elif what == "tell":
            engine.notifier.make_relay(engine).run_once()
        elif what == "race":
            race(engine)
        else:
            (item,) = engine.quarantine
            getattr(engine.quarantine, what)(item, by="operator", reason="looked at it")


def race(engine: Any) -> None:
    """Look, wait for the signal to go, decide; say how many of the decisions were one's own."""
    items = list(engine.quarantine)
    print("ready", flush=True)
    sys.stdin.readline()
    mine = 0
    for item in items:
        try:
            engine.quarantine.reject(item, by=f"process {os.getpid()}", reason="I was first")
            mine += 1
        except oncemore.StaleDecision:
            pass
    print(mine, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
