"""The shop of the runbook: steps that fare as the files beside them say, and the night that it had.

`python -m shop.orders` lets the night happen: orders are done, a carrier goes down, a process is killed in
the middle of a payment, and one order kills whoever touches it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import oncemore

NONE = oncemore.Jitter("none")
HASTY = oncemore.Policy("hasty", max_attempts=2, schedule=oncemore.backoff.fixed(0.01), jitter=NONE)
PATIENT = oncemore.Policy(
    "patient", max_attempts=3, schedule=oncemore.backoff.fixed(1800, 3600), jitter=NONE, max_delay_s=3600
)
DYING, DOWN = "SHOP_DYING", Path("carrier-is-down")


def die_if_told() -> None:
    if os.environ.get(DYING):
        os.kill(os.getpid(), signal.SIGKILL)


@oncemore.step(effect="pure", name="shop.invoice")
def invoice(order: str) -> str:
    return f"invoice of {order}"


@oncemore.step(effect="once", name="shop.charge")
def charge(order: str) -> dict[str, int]:
    die_if_told()
    return {"receipt": 7}


@oncemore.step(effect="idempotent", name="shop.label", policy=oncemore.Policy("label", max_crashes=3))
def label(order: str) -> str:
    if order == "A-66":
        die_if_told()
    return f"label of {order}"


@oncemore.step(effect="idempotent", name="shop.ship", policy=HASTY)
def ship(order: str) -> str:
    if DOWN.exists():
        raise ConnectionRefusedError("the carrier does not answer")
    return f"shipped {order}"


@oncemore.step(effect="idempotent", name="shop.tell", policy=PATIENT)
def tell(order: str) -> str:
    if DOWN.exists():
        raise ConnectionRefusedError("the carrier does not answer")
    return f"told {order}"


def killed(step: str, order: str) -> None:
    """Let a real process die in the middle of a step."""
    words = f"import shop.orders as o; o.{step}.run({order!r})"
    subprocess.run([sys.executable, "-c", words], env={**os.environ, DYING: "1"}, check=False, timeout=60)


def night() -> None:
    """Let it happen."""
    for number in range(1, 6):
        invoice(f"A-{number}")
    DOWN.touch()
    ship.run("A-20")
    ship.run("A-21")
    tell.run("A-22")
    DOWN.unlink()
    label.submit("A-30")
    label.submit("A-31")
    killed("charge", "A-17")
    for _ in range(4):
        killed("label", "A-66")


if __name__ == "__main__":
    night()
