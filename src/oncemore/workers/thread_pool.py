"""Threads and an event loop for the runs of a worker.

All of them are daemon threads, so that a run that never returns cannot keep the process alive. Such a process
releases no lease; another worker takes the run over once the process is gone.
"""

from __future__ import annotations

import threading
from _queue import SimpleQueue
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore.log.group_commit import InterruptShield

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: How long `close` waits for the event loop to stop.
LOOP_STOP_S = 5.0


class WorkerThreads:
    """Thread pool and event loop of a worker, started on first use."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads, self._threads = max_threads, 0
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop: Any = None
        self._loop_thread: threading.Thread | None = None
        self._tasks: set[Any] = set()

    def run_in_thread(self, work: Callable[[], None]) -> None:
        """Run plain work in a thread."""
        self._queue.put(work)
        # The worker never has more active runs than threads, so that a queued call never waits for long.
        if self._threads < self._max_threads:
            self._threads += 1
            name = f"oncemore-worker-{self._threads}"
            with InterruptShield():
                threading.Thread(target=self._run_thread, name=name, daemon=True).start()

    def _run_thread(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def run_in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run async work on the event loop."""
        # Imported here: a worker without async steps does not need it.
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=self._loop.run_forever, name="oncemore-worker-loop", daemon=True
            )
            with InterruptShield():
                self._loop_thread.start()
        task = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel_tasks(self) -> bool:
        """Cancel all async work; return whether there was any. Each cancelled run records its attempt."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return bool(tasks)

    def close(self) -> None:
        """Stop the threads and the event loop, without waiting for active work."""
        # One None per thread; each thread ends after its current work.
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0
        loop, self._loop = self._loop, None
        if loop is not None and self._loop_thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._loop_thread.join(LOOP_STOP_S)
            # close() raises while the loop still runs a callback that does not return.
            with suppress(RuntimeError):
                loop.close()
