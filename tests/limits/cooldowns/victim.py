"""Processes on one store: python -m tests.limits.cooldowns.victim STORE MARK WHEN TURN

A step asks a file for something: it appends a line to it, and fares as told. The moment at which the process
kills itself is one of `tests.storm.points`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import oncemore
from tests.storm.points import Point, arm, watch

ONCE = oncemore.Policy("once", max_attempts=1, max_crashes=1)


class Throttled(Exception):
    """An HTTP 429, as the test's provider says it."""


@oncemore.classifier(Throttled)
def _throttled(error: Throttled) -> oncemore.Failure:
    return oncemore.Failure("throttled", code="HTTP_429")


@oncemore.step(
    effect="idempotent", name="victim.fetch", policy=ONCE, provider="A",
    ignore=("turn", "file"), cooldown=oncemore.Cooldown(lambda product, turn, file: product),
)  # fmt: skip
def fetch(product: str, turn: str, file: str) -> str:
    with Path(file).open("a") as asked:
        asked.write(f"{os.getpid()}\n")
    if turn == "throttled":
        raise Throttled("429")
    return turn


def main(store: str, mark: str, when: str, turn: str) -> None:
    with oncemore.open(store) as engine:
        watch(engine.store)
        arm(Point(mark, when) if mark else None)
        try:
            print(fetch("p", turn, f"{store}.asked"))
        except oncemore.Error as error:
            print(getattr(error, "outcome", type(error).__name__))


if __name__ == "__main__":
    main(*sys.argv[1:])
