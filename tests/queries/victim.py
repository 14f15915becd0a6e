"""A process that is killed in the middle of a step: python -m tests.queries.victim STORE STEP"""

from __future__ import annotations

import os
import signal
import sys

import oncemore

ARMED = "ONCEMORE_TEST_VICTIM"


def die() -> None:
    if ARMED in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


@oncemore.step(effect="idempotent", name="victim.repeat")
def repeat(day: str) -> str:
    die()
    return f"done {day}"


@oncemore.step(effect="once", name="victim.pay")
def pay(day: str) -> str:
    die()
    return f"paid {day}"


if __name__ == "__main__":
    with oncemore.open(sys.argv[1]):
        {"repeat": repeat, "pay": pay}[sys.argv[2]]("2026-11-16")
