"""A queue of reports and the thread that makes them, so that a step does not wait for a telemetry library.

A step adds what there is to report and goes on. The thread makes a few hundred reports at once. Its code is
then in the processor's cache: within a step, or a few at a time, the same work takes two to three times as
long, and each change of threads delays the step. Many more would stay in memory for so long that Python's
garbage collector moves them to its oldest generation, and searches all objects of the process more often.

Reports are made in the order in which they were added. `flush()` makes those that wait in the thread of its
caller; the end of the process does so too. A forked child leaves the reports of its parent to the parent.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from oncemore._platform import run_after_fork
from oncemore.log.group_commit import InterruptShield

if TYPE_CHECKING:
    from collections.abc import Callable

    Report = tuple[Callable[..., object], tuple[Any, ...]]

#: The number of reports that are made together; a step of one attempt has three. Measured: ADR 0080.
BATCH_SIZE = 192
#: How long fewer reports than that wait at most, in seconds.
MAX_WAIT_S = 0.1
#: The number of times that the thread finds nothing before it sleeps until a report comes.
IDLE_ROUNDS = 10
#: The number of reports that may wait; a step that adds one more makes all of them itself.
MAX_REPORTS = 10_000


class ReportQueue:
    """Calls functions in a thread of its own, in the order in which they were added.

    after_batch  called after the reports that were made together
    on_error     called with the error of a report or of `after_batch`: none of them ends the work
    """

    def __init__(self, after_batch: Callable[[], object], on_error: Callable[[Exception], object]) -> None:
        self._after_batch, self._on_error = after_batch, on_error
        self._reports: deque[Report] = deque()
        self._thread: threading.Thread | None = None
        self._is_awake = False
        self._is_closed = False
        self._reset_locks()
        _queues.add(self)

    def _reset_locks(self) -> None:
        self._wake = threading.Event()
        # Held while reports are made: `flush` must not return before those that the thread has taken. A
        # report may flush the queue itself, through the library that it calls.
        self._making = threading.RLock()

    def add_report(self, function: Callable[..., object], *values: Any) -> None:
        """Call a function later; at once if the queue is closed."""
        self._reports.append((function, values))
        waiting = len(self._reports)
        if not self._is_awake or waiting % BATCH_SIZE == 0 or self._is_closed:
            self._wake_thread(waiting)

    def flush(self) -> None:
        """Make the reports that were added so far."""
        reports = self._reports
        with self._making:
            # As many as there are now: steps that add more must not keep the caller here. Fewer, if a report
            # has flushed the queue itself.
            left = len(reports)
            while left and reports:
                left -= 1
                function, values = reports.popleft()
                self._call_safely(function, *values)
            self._call_safely(self._after_batch)

    def close(self) -> None:
        """Make the remaining reports, and from now on each one at once."""
        self._is_closed = True
        self.flush()
        self._wake.set()

    def _call_safely(self, function: Callable[..., object], *values: Any) -> None:
        try:
            function(*values)
        except Exception as error:  # noqa: BLE001 - telemetry must not end the work
            self._on_error(error)

    def _wake_thread(self, waiting: int) -> None:
        """Let the thread make the reports; start it if it does not run, or not in this process."""
        # At the limit the thread does not keep up: the steps wait instead of filling the memory.
        if self._is_closed or waiting >= MAX_REPORTS:
            self.flush()
            return
        if self._thread is None or not self._thread.is_alive():
            # Two callers may start one each, which does no harm: both end with the queue.
            thread = self._thread = threading.Thread(
                target=self._run_thread, name="oncemore-telemetry", daemon=True
            )
            flush_at_exit()
            with InterruptShield():
                thread.start()
        if not self._is_awake or waiting >= BATCH_SIZE:
            self._is_awake = True
            self._wake.set()

    def _run_thread(self) -> None:
        """Make reports while there are any; sleep until the next one otherwise."""
        while not self._is_closed:
            self._wake.wait()
            self._wake.clear()
            idle_rounds = 0
            while idle_rounds < IDLE_ROUNDS and not self._is_closed:
                # Cleared before the reports are made: one that is added from now on wakes the thread again.
                if len(self._reports) < BATCH_SIZE:
                    self._wake.wait(MAX_WAIT_S)
                self._wake.clear()
                idle_rounds = 0 if self._reports else idle_rounds + 1
                if self._reports:
                    self.flush()
            self._is_awake = False
            # A report that was added just before did not wake the thread.
            if self._reports:
                self._wake.set()

    def reset_after_fork(self) -> None:
        """In a forked child: leave the parent's reports to the parent; its thread may have held the lock."""
        self._reports.clear()
        self._thread, self._is_awake = None, False
        self._reset_locks()


_queues: weakref.WeakSet[ReportQueue] = weakref.WeakSet()


def flush_at_exit() -> None:
    """Make the reports that wait when the process ends, before the handlers that are registered by now.

    Python calls them last in, first out: what a library registers before must not be shut down before it has
    the last reports.
    """
    atexit.unregister(_flush_queues)
    atexit.register(_flush_queues)


def _flush_queues() -> None:
    for queue in list(_queues):
        queue.flush()


def _reset_queues_after_fork() -> None:
    for queue in list(_queues):
        queue.reset_after_fork()


run_after_fork(_reset_queues_after_fork)
