"""Time limits of one attempt: async work is cancelled, plain work is abandoned.

Async work is cancelled at its limit, by trio's cancel scopes or by `PersistentTimeout` on asyncio. Plain
code cannot be interrupted: it runs in a helper thread (`retries.timeouts`), and at its limit the caller
continues without it. `abandoned_calls` lists such a call until it ends; its late result is dropped, and the
number of abandoned calls is bounded.
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

    from oncemore.retries.loop import CallFunction

#: Seconds after a cancellation until the next one, if the work has not ended; doubled each time.
AGAIN_S: Final = 1.0


class AbandonedCall(Value):
    """A call that is still running after its time limit."""

    name: str
    since: float
    limit_s: float


def time_remaining() -> float | None:
    """Return the seconds left for the current attempt, or None if it has no limit."""
    ends = ENDS.get()
    return None if ends is None else max(0.0, ends - clocks.current.monotonic())


def timeout_error(name: str, op: CallFunction) -> AttemptTimeout:
    """Return the error of an attempt that reached its time limit."""
    kind = DeadlineExceeded if op.whole else AttemptTimeout
    limit = "the rest of the time for the whole call" if op.whole else "the limit of one attempt"
    return kind(f"{name}: attempt {op.number} was cut off after {op.limit_s:.3g} s, {limit}")


def run_to_end(name: str, op: CallFunction, work: Callable[[], Any]) -> Any:
    """Run plain work that must not be abandoned, because it holds a transaction; refuse a late result."""
    value = work()
    # The caller rolls the transaction back, so a late result has no effect.
    if op.ends is not None and clocks.current.monotonic() >= op.ends:
        raise timeout_error(name, op)
    return value


class PersistentTimeout:
    """`asyncio.timeout` that repeats the cancellation.

    A library that the work calls can lose a cancellation (`asyncio.wait_for` of Python 3.11 drops one that
    arrives together with its result), and the work would then continue without a limit.
    """

    _task: Task[Any]
    _timer: TimerHandle

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before = self._asked = 0

    async def __aenter__(self) -> Self:
        # The running event loop has imported it already.
        asyncio = sys.modules["asyncio"]
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._before = self._task.cancelling()
        self._timer = self._loop.call_later(self._seconds, self._request_cancel, AGAIN_S)
        return self

    def _request_cancel(self, again_s: float) -> None:
        self._asked += 1
        self._task.cancel()
        self._timer = self._loop.call_later(again_s, self._request_cancel, 2 * again_s)

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._timer.cancel()
        # Each cancel() needs its uncancel(): a cancellation from outside must remain visible.
        for _ in range(self._asked):
            self._task.uncancel()
        cancelled = kind is not None and issubclass(kind, sys.modules["asyncio"].CancelledError)
        if self._asked and cancelled and self._task.cancelling() <= self._before:
            raise TimeoutError

    def has_expired(self) -> bool:
        """Whether the timeout has cancelled the work."""
        return self._asked > 0


async def run_with_timeout(name: str, op: CallFunction, work: Awaitable[Any]) -> Any:
    """Await work and cancel it at its limit; a `TimeoutError` of the work itself propagates."""
    assert op.limit_s is not None
    trio = clocks.find_trio()
    if trio is not None:
        with trio.move_on_after(op.limit_s) as scope:
            return await work
        raise timeout_error(name, op)
    try:
        async with PersistentTimeout(op.limit_s) as scope:
            return await work
    except TimeoutError as error:
        if scope.has_expired():
            raise timeout_error(name, op) from error
        raise
