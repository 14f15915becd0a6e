"""How long something takes at best: a busy machine adds to a time, and never takes from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 5


def best(take: Callable[[], float], total_timeout_s: float) -> float:
    """Take the time, again if it was longer than that and up to `TRIES` times; return the shortest."""
    took = [take()]
    while took[-1] > total_timeout_s and len(took) < TRIES:
        took.append(take())
    return min(took)


def quickest(act: Callable[[], object], total_timeout_s: float) -> float:
    """Return how long it takes to do something, the best of several if it takes longer than that."""

    def take() -> float:
        began = time.monotonic()
        act()
        return time.monotonic() - began

    return best(take, total_timeout_s)
