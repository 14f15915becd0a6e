"""Named moments in the life of a call at which a worker does something to itself: dies, stops, is cut off.

A moment is a *mark* and a *when*. Around the append of an entry with that mark (INTENT, COMMIT, CHECKPOINT,
SOFT_FAIL, LEASE …):

    before   the append was asked for, nothing has happened
    commit   in the transaction, before SQLite commits it
    synced   SQLite has committed and synced it, nobody was told
    after    the store has answered, its caller does not know yet

or, with the when `here`, at a line of the work that calls `here(mark)`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, NamedTuple

from oncemore.log.entry_codec import decode_header


class Point(NamedTuple):
    """A moment, and what happens at it: a signal to oneself."""

    mark: str
    when: str = "here"
    nth: int = 1
    signal: int = signal.SIGKILL


_armed: Point | None = None
_watched: Any = None
_counts: dict[tuple[str, str], int] = {}


def arm(point: Point | None) -> None:
    """Wait for a moment; None: for none."""
    global _armed
    _armed = point
    _counts.clear()


def armed() -> Point | None:
    """Return the moment that is waited for."""
    return _armed


def due(mark: str, when: str) -> bool:
    """Whether this is the moment; it comes once."""
    if _armed is None or (_armed.mark, _armed.when) != (mark, when):
        return False
    _counts[mark, when] = _counts.get((mark, when), 0) + 1
    return _counts[mark, when] == _armed.nth


def strike() -> None:
    """Do to oneself what the moment asks for, and let it take hold."""
    assert _armed is not None
    if _armed.signal == signal.SIGSTOP and _armed.when not in ("commit", "synced"):
        # Without the lock, a heartbeat stopped in the middle of its write would stop all writers.
        with _watched._lock._thread_lock:
            os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), _armed.signal)
    if _armed.signal == signal.SIGKILL:
        time.sleep(60)  # never comes back
    if _armed.signal == signal.SIGINT and threading.current_thread() is not threading.main_thread():
        time.sleep(0.001)


def here(mark: str) -> None:
    """Be at a named line."""
    if due(mark, "here"):
        strike()


def watch(store: Any) -> None:
    """Have the moments around appends; those inside a commit, only in a SQLite store."""
    global _watched
    _watched = store
    append, cursor_of = store.append, getattr(store, "_writer_cursor", None)
    inside: list[str] = []

    def appending(batch: Any) -> Any:
        marks = decode_header(batch.writes[0].header).marks
        told = append(batch)
        for mark in marks:
            if due(mark, "before"):
                strike()
            if due(mark, "commit"):
                inside.append("commit")
            if due(mark, "synced"):
                inside.append("synced")
            if due(mark, "after"):
                told = _After(told)
        if inside and cursor_of is not None:
            store._synced = None  # or the next commit would take the cursor that it has, without these hooks
        return told

    def hooked(sync: bool) -> Any:
        cursor = cursor_of(sync)
        now = list(inside)
        inside.clear()
        cursor.connection.set_commit_hook(_struck if "commit" in now else None)
        cursor.connection.set_wal_hook(_struck_after if "synced" in now else None)
        return cursor

    store.append = appending
    if cursor_of is not None:
        store._writer_cursor = hooked


def _struck() -> bool:
    strike()
    return False


def _struck_after(connection: Any, name: str, pages: int) -> int:
    strike()
    return 0


class _After:
    """A ticket whose answer is followed by the moment."""

    def __init__(self, ticket: Any) -> None:
        self._ticket = ticket

    def wait(self) -> Any:
        answer = self._ticket.wait()
        strike()
        return answer

    def __await__(self) -> Any:
        answer = yield from self._ticket.__await__()
        strike()
        return answer
