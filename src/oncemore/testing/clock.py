"""A clock that moves by `advance()` and by the waits of oncemore."""

from __future__ import annotations

import sys
import time

from oncemore.clock import Clock, find_trio, set_clock
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType
    from typing import Self


class FakeClock(Clock):
    """A clock whose waits end at once and are recorded in `delays`; use it as `with FakeClock() as clock`.

    wall      the POSIX time that it shows at first; stores keep their own date and time of day
    start     a `datetime` with a time zone that it shows at first, also in stores: for work that depends on
              the hour or the month
    attempts  the maximum number of attempts of any call; None leaves it to the policies
    """

    __slots__ = ("_elapsed", "_previous_clocks", "_shift", "_start", "delays", "max_attempts")

    def __init__(
        self, wall: float = 1_800_000_000.0, *, start: datetime | None = None, attempts: int | None = None
    ) -> None:
        if start is not None and start.tzinfo is None:
            raise UsageError(f"start is {start!r}; it needs a time zone, such as datetime.UTC")
        if attempts is not None and attempts < 1:
            raise UsageError(f"attempts is {attempts!r}; it must be 1 or more")
        self.delays: list[float] = []
        self.max_attempts = attempts
        self._start = wall if start is None else start.timestamp()
        # Stores have real clocks: this is how far they are from the chosen start.
        self._shift = 0.0 if start is None else self._start - time.time()
        self._elapsed = 0.0
        self._previous_clocks: list[Clock] = []

    def wall(self) -> float:
        """Return the POSIX time that this clock shows."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return by how many seconds this clock has moved."""
        return self._elapsed

    @property
    def offset(self) -> float:  # type: ignore[override]
        """Seconds that stores add to their own time."""
        return self._shift + self._elapsed

    def advance(self, seconds: float) -> None:
        """Move forward without a wait, like the time that the work itself takes."""
        self._elapsed += seconds

    def sleep(self, seconds: float) -> None:
        """Record a wait and move forward."""
        self.delays.append(seconds)
        self._elapsed += seconds

    async def pause(self, seconds: float) -> None:
        """Record a wait and move forward; let other tasks run, and cancellation arrive."""
        self.sleep(seconds)
        # Yield once, as a real wait does: other tasks run here, and a cancellation arrives here.
        trio = find_trio()
        await (trio.lowlevel.checkpoint() if trio else sys.modules["asyncio"].sleep(0))

    def __enter__(self) -> Self:
        # A stack, because the same clock may be entered again inside its own block.
        self._previous_clocks.append(set_clock(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_clock(self._previous_clocks.pop())


def instant_waits(*, attempts: int | None = None) -> FakeClock:
    """Return a clock on which every wait ends at once; `attempts` limits the attempts of each call."""
    return FakeClock(attempts=attempts)
