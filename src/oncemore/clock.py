"""The clock that all code reads, sleeps by, and that tests can replace.

Code that reads or spends time uses the clock in `current`. Tests and simulations set another one
(`oncemore.testing`), so that nothing has to be patched.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any


class Clock:
    """The real time."""

    __slots__ = ()

    #: Limit of the attempts of any call; only a test's clock sets it.
    max_attempts: int | None = None
    #: Seconds that a test's clock is ahead of the real one; stores add them to their own time.
    offset: float = 0.0

    def wall(self) -> float:
        """Return the current time in POSIX seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread; an exception of a signal handler ends the sleep."""
        time.sleep(seconds)

    def pause(self, seconds: float) -> Coroutine[object, object, None]:
        """Suspend this task, in asyncio or trio; cancellation ends the sleep."""
        return find_trio().sleep(seconds) if find_trio() else _import_asyncio().sleep(seconds)  # type: ignore[no-any-return]


def find_trio() -> Any:
    """Return the trio module if the caller runs inside trio, else None."""
    # A caller inside trio has imported it: no import is needed, and none is paid for without trio.
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


def _import_asyncio() -> Any:
    # A caller that awaits and is not in trio runs in asyncio, which is loaded then.
    return sys.modules["asyncio"]


current = Clock()


def set_clock(clock: Clock) -> Clock:
    """Replace the current clock; return the previous one."""
    global current
    before, current = current, clock
    return before
