"""Waking the callers of appends: threads by their locks, tasks of asyncio or trio through their loop."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from oncemore.log.group_commit import PendingBatch

    Wake = Callable[[], object]
    CallSoon = Callable[[Callable[[list[Wake]], object], list[Wake]], object]


async def wait_in_task(op: PendingBatch, hand_over: Callable[[PendingBatch], object]) -> None:
    """Hand a pending batch to another thread, and wait for it in this task of asyncio or trio."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        event = trio.Event()
        op.call_soon, op.wake = trio.lowlevel.current_trio_token().run_sync_soon, event.set
        hand_over(op)
        await event.wait()
    else:
        # From sys.modules: a program without an event loop does not pay for importing asyncio.
        loop = sys.modules["asyncio"].get_running_loop()
        future = loop.create_future()
        op.call_soon, op.wake = loop.call_soon_threadsafe, partial(_set_done, future)
        hand_over(op)
        await future


def wake_waiters(ops: list[PendingBatch]) -> None:
    """Wake the callers of a commit: each thread by its lock, each event loop once."""
    loops: dict[CallSoon, list[Wake]] = {}
    for op in ops:
        if op.call_soon is not None and op.wake is not None:
            loops.setdefault(op.call_soon, []).append(op.wake)
        elif op.wake_lock is not None and not op.leads:
            op.wake_lock.release()
    for call_soon, wakes in loops.items():
        with suppress(RuntimeError):  # the loop is closed, so no task waits in it
            call_soon(_wake_all, wakes)


def _wake_all(wakes: list[Wake]) -> None:
    for wake in wakes:
        wake()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
