"""Time limits for one attempt: awaited work is cancelled, plain work is left behind.

Awaited work is cut off by cancelling it (trio's own cancel scopes, on asyncio `Limit`). Plain
synchronous code cannot be cut off from outside: it runs in a helper thread, and when its limit has
passed the caller goes on without it. Such a straggler is not silent: it is listed by `still_running`
until it ends, its late result goes nowhere, and their number is bounded.
"""

from __future__ import annotations

import sys

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import AttemptTimeout, DeadlineExceeded
from oncemore.retries.loop import ENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Task, TimerHandle
    from collections.abc import Awaitable, Callable
    from typing import Any, Final, Self

    from oncemore.retries.loop import Invoke

#: How long work may take to let go before it is asked again; then twice that, and so on.
AGAIN_S: Final = 1.0


class Straggler(Value):
    """A call that outlived its limit and has not ended yet."""

    name: str
    since: float
    limit_s: float


def remaining() -> float | None:
    """Return the seconds left to the attempt around this line, or None when nothing limits it."""
    ends = ENDS.get()
    return None if ends is None else max(0.0, ends - clocks.current.monotonic())


def too_late(name: str, op: Invoke) -> AttemptTimeout:
    """Return the error for an attempt that was cut off."""
    kind = DeadlineExceeded if op.whole else AttemptTimeout
    what = "the rest of the time for the whole call" if op.whole else "the limit of one attempt"
    return kind(f"{name}: attempt {op.number} was cut off after {op.limit_s:.3g} s, {what}")


def waited_for(name: str, op: Invoke, work: Callable[[], Any]) -> Any:
    """Run plain work that must not be left behind, because it holds a transaction; refuse what comes late."""
    value = work()
    if op.ends is not None and clocks.current.monotonic() >= op.ends:
        raise too_late(name, op)
    return value


class Limit:
    """`asyncio.timeout` that asks again.

    A cancellation can be lost in what the work calls (`asyncio.wait_for` of Python 3.11 drops one that comes
    together with its answer), and work that goes on after it would have no limit at all.
    """

    _task: Task[Any]
    _timer: TimerHandle

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before = self._asked = 0

    async def __aenter__(self) -> Self:
        asyncio = sys.modules["asyncio"]
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._before = self._task.cancelling()
        self._timer = self._loop.call_later(self._seconds, self._ask, AGAIN_S)
        return self

    def _ask(self, again_s: float) -> None:
        self._asked += 1
        self._task.cancel()
        self._timer = self._loop.call_later(again_s, self._ask, 2 * again_s)

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._timer.cancel()
        for _ in range(self._asked):
            self._task.uncancel()
        cancelled = kind is not None and issubclass(kind, sys.modules["asyncio"].CancelledError)
        if self._asked and cancelled and self._task.cancelling() <= self._before:
            raise TimeoutError

    def expired(self) -> bool:
        """Whether the work was asked to end."""
        return self._asked > 0


async def awaited(name: str, op: Invoke, work: Awaitable[Any]) -> Any:
    """Await work, cancelled at its limit; a timeout that the work raises by itself stays its own."""
    assert op.limit_s is not None
    trio = clocks.in_trio()
    if trio is not None:
        with trio.move_on_after(op.limit_s) as scope:
            return await work
        raise too_late(name, op)
    try:
        async with Limit(op.limit_s) as scope:
            return await work
    except TimeoutError as error:
        if scope.expired():
            raise too_late(name, op) from error
        raise
