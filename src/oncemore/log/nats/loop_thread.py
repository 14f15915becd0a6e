"""A thread that runs an asyncio loop on behalf of other threads.

nats-py needs a loop that keeps running, while callers of a store block or run loops of their own. All
requests of a store are therefore made in the loop of one thread.
"""

from __future__ import annotations

import asyncio
import threading
from _thread import allocate_lock
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, UsageError
from oncemore.log.group_commit import InterruptShield

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Work = Callable[[], Coroutine[Any, Any, Any]]
    #: Runs in the loop; a coroutine that it returns is continued as a task.
    ScheduledCall = Callable[[], Coroutine[Any, Any, Any] | None]


class LoopRequest:
    """A coroutine that runs in the loop while another thread waits for its result."""

    def __init__(self, work: Work) -> None:
        self._work, self._done = work, allocate_lock()
        self._done.acquire()
        self._result: Any = None
        self._error: BaseException | None = None

    async def __call__(self) -> None:
        """Run the coroutine and wake the waiting thread."""
        try:
            self._result = await self._work()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
        finally:
            self._done.release()

    def wait_result(self) -> Any:
        """Block until the coroutine has ended; return its result or raise its error."""
        self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._result


class LoopThread:
    """A thread with a loop, started at first use; `owner` is the name of the store in messages."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = allocate_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._scheduled: deque[ScheduledCall] = deque()
        self._after_scheduled: list[Callable[[], object]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_wakeup_pending = False
        self._is_closed = False

    # Called from any thread

    def run_in_loop(self, work: Work) -> Any:
        """Run a coroutine in the loop and block until it has ended."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                f"{self._owner}: the thread of this store cannot wait for itself; call it from another thread"
            )
        request = LoopRequest(work)
        self.schedule_in_loop(request)
        return request.wait_result()

    def schedule_in_loop(self, call: ScheduledCall) -> None:
        """Schedule a call in the loop and return at once.

        Calls that were scheduled before `close()` are completed; later ones raise `StoreError`.
        """
        with self._lock:
            if self._is_closed:
                raise StoreError(f"{self._owner}: the store is closed")
            loop = self._loop or self._start_thread()
            self._scheduled.append(call)
            # Waking the loop writes to a pipe, so one wake-up serves all calls that are scheduled before it.
            if not self._is_wakeup_pending:
                self._is_wakeup_pending = True
                try:
                    loop.call_soon_threadsafe(self._run_scheduled)
                except BaseException:  # interrupted: the next caller must wake the loop
                    self._is_wakeup_pending = False
                    raise

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="oncemore-nats", daemon=True)
        # A KeyboardInterrupt between the two would leave a running thread that no store knows.
        with InterruptShield():
            self._thread.start()
            self._loop = loop
        return loop

    def close(self) -> None:
        """Complete the scheduled calls, release what the loop holds, and end the thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._finish_work(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    # Called in the loop

    async def _finish_work(self) -> None:
        """Complete what was scheduled; the last coroutine that runs in the loop."""
        self._run_scheduled()
        while self._has_work():
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=0.01)
            else:
                await asyncio.sleep(0.002)

    def _has_work(self) -> bool:
        return bool(self._tasks)

    def _run_scheduled(self) -> None:
        self._is_wakeup_pending = False
        with suppress(IndexError):
            while True:
                work = self._scheduled.popleft()()
                if work is not None:
                    self.create_task(work)
        while self._after_scheduled:
            self._after_scheduled.pop()()

    def run_after_scheduled(self, call: Callable[[], object]) -> None:
        """Run a function after all calls of the current wake-up; for use by such a call."""
        self._after_scheduled.append(call)

    def create_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a task that `close()` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop holds only weak references to its tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
