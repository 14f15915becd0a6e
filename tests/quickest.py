"""How long something takes at best: a busy machine adds to a time, and never takes from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def quickest(act: Callable[[], object], within_s: float, tries: int = 5) -> float:
    """Do it until once it took no longer than `within_s`, at most `tries` times; return the shortest time."""
    took = []
    for _ in range(tries):
        began = time.monotonic()
        act()
        took.append(time.monotonic() - began)
        if took[-1] <= within_s:
            break
    return min(took)
