"""Helper threads that run plain work with a time limit.

A helper runs one call at a time and is reused. If its call exceeds the limit, the helper is abandoned: it
is listed, and free again when the call ends. Helpers are daemon threads, so that an abandoned call cannot
keep a program from ending. A forked child starts without helpers, because threads do not survive a fork.
"""

from __future__ import annotations

import threading
from _queue import Empty, SimpleQueue
from contextvars import copy_context

from oncemore import clock as clocks
from oncemore._platform import run_after_fork
from oncemore.errors import AttemptTimeout
from oncemore.log.group_commit import InterruptShield
from oncemore.retries.deadlines import AbandonedCall, timeout_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.retries.loop import CallFunction

    Job = tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]]

MOST_STRAGGLERS = 64
MOST_IDLE = 8

_lock = threading.Lock()
_idle: list[HelperThread] = []
_stragglers: dict[HelperThread, AbandonedCall] = {}


class HelperThread(threading.Thread):
    """One reusable thread."""

    def __init__(self) -> None:
        super().__init__(name="oncemore-helper", daemon=True)
        self.jobs: SimpleQueue[Job] = SimpleQueue()
        self.busy = False
        # Ctrl-C inside Thread.start() could leave one of its locks locked.
        with InterruptShield():
            self.start()

    def run(self) -> None:
        """Run one job after another; end if there are `MOST_IDLE` idle helpers already."""
        is_kept = True
        while is_kept:
            work, replies = self.jobs.get()
            result: tuple[Any, BaseException | None]
            try:
                result = work(), None
            except BaseException as error:
                result = None, error
            # Idle before the reply is sent, so that the caller's next call can use this helper.
            is_kept = self._become_idle()
            replies.put(result)
            # An idle helper must not keep the arguments or the result alive.
            del work, replies, result

    def _become_idle(self) -> bool:
        """Add this helper to the idle ones, if there is room; return whether it was added."""
        with _lock:
            self.busy = False
            _stragglers.pop(self, None)
            if len(_idle) < MOST_IDLE:
                _idle.append(self)
                return True
            return False


def _take_helper(name: str) -> HelperThread:
    with _lock:
        if len(_stragglers) >= MOST_STRAGGLERS:
            raise AttemptTimeout(
                f"{name}: not started: {MOST_STRAGGLERS} calls are still running after their time limits; "
                "oncemore.abandoned_calls() lists them"
            )
        helper = _idle.pop() if _idle else HelperThread()
        helper.busy = True
        return helper


def _abandon_helper(helper: HelperThread, name: str, op: CallFunction) -> None:
    """List the call of a helper as abandoned."""
    with _lock:
        # The call may have ended between the timeout and the lock.
        if helper.busy:
            _stragglers[helper] = AbandonedCall(name, clocks.current.wall(), op.limit_s or 0.0)


def run_in_helper(name: str, op: CallFunction, work: Callable[[], Any]) -> Any:
    """Run plain work in a helper, in a copy of this context; abandon it at its limit."""
    helper = _take_helper(name)
    replies: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    context = copy_context()
    helper.jobs.put((lambda: context.run(work), replies))
    try:
        value, error = replies.get(timeout=op.limit_s)
    except Empty:
        _abandon_helper(helper, name, op)
        raise timeout_error(name, op) from None
    except BaseException:
        # Ctrl-C ends the caller at once; the call keeps running.
        _abandon_helper(helper, name, op)
        raise
    if error is None:
        return value
    try:
        raise error
    finally:
        # The traceback refers to this frame: without this the error would refer to itself.
        del error


def abandoned_calls() -> tuple[AbandonedCall, ...]:
    """Return the calls that are still running after their time limits, oldest first."""
    with _lock:
        return tuple(sorted(_stragglers.values(), key=lambda straggler: straggler.since))


def _reset_after_fork() -> None:
    """Forget all helpers in a forked child, where their threads do not exist."""
    global _lock
    # Another thread of the parent may have held the lock during the fork.
    _lock = threading.Lock()
    _idle.clear()
    _stragglers.clear()


run_after_fork(_reset_after_fork)
