"""Time as a part that can be changed.

Everything in the engine that reads or spends time asks the one clock in `current`. Tests and
simulations put another in its place (`oncemore.testing`); nothing is patched.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any


class Clock:
    """Real time."""

    __slots__ = ()

    #: The most attempts that any call gets; a test's clock may set it, the real one leaves it alone.
    max_attempts: int | None = None
    #: How far a test's clock has run ahead of the real one; what a store's time is moved by.
    offset: float = 0.0

    def wall(self) -> float:
        """Return POSIX seconds: what people and other machines call now."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that only ever move forward: what durations are measured with."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread; a signal handler's exception ends it at once."""
        time.sleep(seconds)

    def pause(self, seconds: float) -> Coroutine[object, object, None]:
        """Suspend this task, on asyncio or trio, whichever it runs in; cancellation ends it at once."""
        return find_trio().sleep(seconds) if find_trio() else _import_asyncio().sleep(seconds)  # type: ignore[no-any-return]


def find_trio() -> Any:
    """Return the trio module when the caller runs inside trio, else None; imports nothing."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


def _import_asyncio() -> Any:
    return sys.modules["asyncio"]


current = Clock()


def set_clock(clock: Clock) -> Clock:
    """Put another clock in place and return the one that was there."""
    global current
    before, current = current, clock
    return before
