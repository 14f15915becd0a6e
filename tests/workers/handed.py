"""The steps of programs that tests start: `oncemore worker tests.workers.handed`, or a copy of this file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import oncemore


def note(text: str) -> None:
    """Append a line to the file that the test reads."""
    file = os.open("notes.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(file, f"{text}\n".encode())
    os.close(file)


@oncemore.step(effect="idempotent", name="handed.quick")
def quick(x: int) -> int:
    note(f"quick {x}")
    return x


@oncemore.step(effect="idempotent", name="handed.slow")
def slow(x: int) -> int:
    """Take until the test says so."""
    note(f"began {x}")
    ends = time.monotonic() + 60
    while not Path("go_on").exists() and time.monotonic() < ends:
        time.sleep(0.01)
    note(f"ended {x}")
    return x


@oncemore.step(effect="idempotent", name="handed.awaited")
async def awaited(x: int) -> int:
    note(f"awaited {x}")
    return x
