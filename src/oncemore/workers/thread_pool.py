"""Where a worker's runs are carried out: plain work in threads, async work on one event loop.

Both are daemon threads: what does not come back cannot keep a process from ending. A process that ends so
has given back no lease, and whoever takes over does so when it is really gone.
"""

from __future__ import annotations

import threading
from _queue import SimpleQueue
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore.log.interrupt_shield import Shield

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: How long `close` waits for an event loop to end.
END_S = 5.0


class Crew:
    """Threads and an event loop, each started when it is first needed."""

    def __init__(self, most: int) -> None:
        self._most, self._threads = most, 0
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop: Any = None
        self._loop_thread: threading.Thread | None = None
        self._tasks: set[Any] = set()

    def start(self, work: Callable[[], None]) -> None:
        """Have plain work done in a thread."""
        self._todo.put(work)
        if self._threads < self._most:
            self._threads += 1
            name = f"oncemore-worker-{self._threads}"
            with Shield():
                threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (work := self._todo.get()) is not None:
            work()

    def start_awaited(self, work: Coroutine[Any, Any, None]) -> None:
        """Have async work done on the event loop."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=self._loop.run_forever, name="oncemore-worker-loop", daemon=True
            )
            with Shield():
                self._loop_thread.start()
        task = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> bool:
        """Cancel async work, if there is any; what it did until then is written down as for any other."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return bool(tasks)

    def close(self) -> None:
        """Let go of threads and loop; what is still under way in them is not waited for."""
        for _ in range(self._threads):
            self._todo.put(None)
        self._threads = 0
        loop, self._loop = self._loop, None
        if loop is not None and self._loop_thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._loop_thread.join(END_S)
            with suppress(RuntimeError):  # it is still at work that does not give way
                loop.close()
