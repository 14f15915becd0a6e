"""A clock that moves when it is told to, or when somebody waits on it."""

from __future__ import annotations

import sys

from oncemore.clock import Clock, in_trio, use
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class FakeClock(Clock):
    """A clock whose waits end at once and are recorded in `delays`; use it as `with FakeClock() as clock`.

    wall      what POSIX time it shows at first
    attempts  the most attempts that any call gets meanwhile; None leaves it to the policies
    """

    __slots__ = ("_before", "_moved", "_start", "delays", "most_attempts")

    def __init__(self, wall: float = 1_800_000_000.0, *, attempts: int | None = None) -> None:
        if attempts is not None and attempts < 1:
            raise UsageError(f"attempts is {attempts!r}; it must be 1 or more")
        self.delays: list[float] = []
        self.most_attempts = attempts
        self._start = wall
        self._moved = 0.0
        self._before: list[Clock] = []

    def wall(self) -> float:
        """Return the POSIX time that this clock shows."""
        return self._start + self._moved

    def monotonic(self) -> float:
        """Return the seconds that this clock was moved by."""
        return self._moved

    @property
    def ahead(self) -> float:  # type: ignore[override]
        """How far it was moved: stores show that much later times."""
        return self._moved

    def advance(self, seconds: float) -> None:
        """Move on without anybody waiting: stands for time that the work itself takes."""
        self._moved += seconds

    def sleep(self, seconds: float) -> None:
        """Record a wait and move on."""
        self.delays.append(seconds)
        self._moved += seconds

    async def pause(self, seconds: float) -> None:
        """Record a wait and move on, giving other tasks, and cancellation, their turn."""
        self.sleep(seconds)
        trio = in_trio()
        await (trio.lowlevel.checkpoint() if trio else sys.modules["asyncio"].sleep(0))

    def __enter__(self) -> Self:
        self._before.append(use(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        use(self._before.pop())


def instant(*, attempts: int | None = None) -> FakeClock:
    """Let every wait of oncemore end at once; `attempts` caps how often anything is called."""
    return FakeClock(attempts=attempts)
