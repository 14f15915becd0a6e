"""Time limits for one attempt: awaited work is cancelled, plain work is left behind.

Awaited work is cut off by the event loop's own means (`asyncio.timeout`, trio's cancel scopes). Plain
synchronous code cannot be cut off from outside: it runs in a helper thread, and when its limit has
passed the caller goes on without it. Such a straggler is not silent: it is listed by `still_running`
until it ends, its late result goes nowhere, and their number is bounded.
"""

from __future__ import annotations

import sys

from oncemore.core.value import Value
from oncemore.engine import clock as clocks
from oncemore.engine.retry import ENDS
from oncemore.errors import AttemptTimeout, DeadlineExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from oncemore.engine.retry import Invoke


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


async def awaited(name: str, op: Invoke, work: Awaitable[Any]) -> Any:
    """Await work, cancelled at its limit; a timeout that the work raises by itself stays its own."""
    trio = clocks.in_trio()
    if trio is not None:
        with trio.move_on_after(op.limit_s) as scope:
            return await work
        raise too_late(name, op)
    try:
        async with sys.modules["asyncio"].timeout(op.limit_s) as scope:
            return await work
    except TimeoutError as error:
        if scope.expired():
            raise too_late(name, op) from error
        raise
