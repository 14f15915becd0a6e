"""Helper threads that run plain work which has a time limit.

A helper takes one call at a time and is used again. One whose call outlives its limit becomes a
straggler: listed, and free again when the call ends. Helpers are daemon threads, so that a straggler
cannot keep a program from ending, and a forked child starts with none (threads do not survive a fork).
"""

from __future__ import annotations

import os
import threading
from _queue import Empty, SimpleQueue
from contextvars import copy_context

from oncemore import clock as clocks
from oncemore.errors import AttemptTimeout
from oncemore.log.interrupt_shield import Shield
from oncemore.retries.deadlines import Straggler, too_late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.retries.loop import Invoke

    Job = tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]]

MOST_STRAGGLERS = 64
MOST_IDLE = 8

_lock = threading.Lock()
_idle: list[Helper] = []
_stragglers: dict[Helper, Straggler] = {}


class Helper(threading.Thread):
    """One reusable thread."""

    def __init__(self) -> None:
        super().__init__(name="oncemore-helper", daemon=True)
        self.jobs: SimpleQueue[Job] = SimpleQueue()
        self.busy = False
        with Shield():
            self.start()

    def run(self) -> None:
        """Do one job after another; a helper beyond the number worth keeping ends."""
        stays = True
        while stays:
            work, answer = self.jobs.get()
            result: tuple[Any, BaseException | None]
            try:
                result = work(), None
            except BaseException as error:
                result = None, error
            stays = self._rest()
            answer.put(result)
            del work, answer, result

    def _rest(self) -> bool:
        """Be free before the answer is given, so that the caller's next call finds this helper."""
        with _lock:
            self.busy = False
            _stragglers.pop(self, None)
            if len(_idle) < MOST_IDLE:
                _idle.append(self)
                return True
            return False


def _take(name: str) -> Helper:
    with _lock:
        if len(_stragglers) >= MOST_STRAGGLERS:
            raise AttemptTimeout(
                f"{name}: not started: {MOST_STRAGGLERS} calls that outlived their limits still run; "
                "oncemore.still_running() lists them"
            )
        helper = _idle.pop() if _idle else Helper()
        helper.busy = True
        return helper


def _leave(helper: Helper, name: str, op: Invoke) -> None:
    """Go on without a helper; if its call ended in this very moment it is no straggler."""
    with _lock:
        if helper.busy:
            _stragglers[helper] = Straggler(name, clocks.current.wall(), op.limit_s or 0.0)


def run(name: str, op: Invoke, work: Callable[[], Any]) -> Any:
    """Run plain work in a helper, in a copy of this context; leave it behind at its limit."""
    helper = _take(name)
    answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    context = copy_context()
    helper.jobs.put((lambda: context.run(work), answer))
    try:
        value, error = answer.get(timeout=op.limit_s)
    except Empty:
        _leave(helper, name, op)
        raise too_late(name, op) from None
    except BaseException:
        _leave(helper, name, op)  # Ctrl-C: the caller goes at once, the call runs on
        raise
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # the traceback holds this frame, and must not hold itself


def still_running() -> tuple[Straggler, ...]:
    """Return the calls that outlived their limit and have not ended yet, oldest first."""
    with _lock:
        return tuple(sorted(_stragglers.values(), key=lambda straggler: straggler.since))


def _forget() -> None:
    """In a forked child the threads are gone: so are helpers, stragglers and a lock held elsewhere."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    _stragglers.clear()


os.register_at_fork(after_in_child=_forget)
