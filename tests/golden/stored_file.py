"""Writes a golden store of the released version: python -m tests.golden.stored_file tests/golden/store-0.1.db

Run it once for each released version; after that the file is only read, by copies of it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import oncemore
from oncemore.testing import instant_waits

calls: list[str] = []


@oncemore.step(effect="idempotent", name="golden.charge", on="transient", attempts=3)
def charge(order: str, cents: int) -> dict[str, object]:
    """Charge an order: the first attempt of order-1 is lost, order-3 is refused, the others work."""
    calls.append(order)
    if order == "order-1" and calls.count(order) == 1:
        raise ConnectionResetError("the line is down")
    if order == "order-3":
        raise oncemore.PermanentError("the card is not valid")
    oncemore.current().emit("charged", {"order": order})
    return {"order": order, "cents": cents, "parts": (cents // 2, None)}


def write_store(path: Path) -> None:
    """Write a store with a completed, a retried, a failed and a pending run, and two events."""
    with instant_waits(), oncemore.open(str(path)):
        charge("order-1", 100)
        charge("order-2", 250)
        with suppress(oncemore.PermanentFailure):
            charge("order-3", 70)
        charge.submit("order-4", 80)


if __name__ == "__main__":
    write_store(Path(sys.argv[1]).absolute())
