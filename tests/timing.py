"""Waiting for events, and measuring times on a busy machine, which only ever adds to them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 5


def wait_until(condition: Callable[[], Any], description: str = "it", seconds: float = 60.0) -> Any:
    """Wait until a condition holds, and return its value; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {description}"
        time.sleep(0.005)
    return value


def is_process_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def measure_shortest(measure: Callable[[], float], limit_s: float) -> float:
    """Measure a time, up to `TRIES` times while it is over the limit; return the shortest."""
    times = [measure()]
    while times[-1] > limit_s and len(times) < TRIES:
        times.append(measure())
    return min(times)


def measure_shortest_call(function: Callable[[], object], limit_s: float) -> float:
    """Return how long a call takes: the shortest of several if the first is over the limit."""

    def measure() -> float:
        started = time.monotonic()
        function()
        return time.monotonic() - started

    return measure_shortest(measure, limit_s)
