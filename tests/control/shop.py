"""A process that ships orders until it is told to stop: `python -m tests.control.shop LOG ORDERS`."""

from __future__ import annotations

import sys
import time

import oncemore
from oncemore.errors import NotPermitted


@oncemore.step(effect="idempotent", name="ship")
def ship(order: str) -> str:
    return f"shipped {order}"


if __name__ == "__main__":
    with oncemore.open(sys.argv[1]):
        ship(f"{sys.argv[2]}-0")
        number = 1
        print("ready", flush=True)
        while True:
            try:
                ship(f"{sys.argv[2]}-{number}")
                number += 1
            except NotPermitted as error:
                print(f"blocked after {number}: {error.reason}", flush=True)
                time.sleep(0.02)
