"""Long computations behind a page: verifying the log, the sums of a period, the comparison of policies.

A page never waits for more than `WAIT_S`. A quick result is on the page at once; a slow one is computed in
one thread, in turn, while the page shows how far it has come, and arrives with a live update. Results are
kept and shown to every user who asks for the same, until they are old; one page that stays open takes at most
a twentieth of a core.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from oncemore._values import Value
from oncemore.errors import Error, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    #: Called with the number of parts that are done, and of all parts.
    Progress = Callable[[int, int], object]
    Work = Callable[[Progress], Any]

#: How long a request waits for a result, and for how long one is shown before it is computed again.
WAIT_S, FRESH_S = 0.15, 30.0
#: A result is shown for at least so many times the time that it took.
MIN_REST = 20.0
#: The number of results that are kept, and of computations that wait for their turn.
MAX_RESULTS, MAX_WAITING = 32, 16


class TaskReport(Value):
    """A computation: waiting (`started_at` is 0), running, or ended with a result or a fault.

    done, total  parts; `total` is 0 as long as it is unknown
    started_at, ended_at  POSIX seconds of this machine
    """

    by: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    done: int = 0
    total: int = 0
    result: Any = None
    fault: str = ""

    @property
    def is_over(self) -> bool:
        """Whether there is a result or a fault."""
        return self.ended_at > 0.0


class BackgroundTasks:
    """The computations of one dashboard, by key; one at a time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._reports: dict[Hashable, TaskReport] = {}
        self._waiting: deque[tuple[Hashable, Work]] = deque()
        self._thread: threading.Thread | None = None
        #: Rises with every change that a page shows; a live page is rendered again after it.
        self.change_number = 0

    def find_report(self, key: Hashable) -> TaskReport | None:
        """Return the computation of a key; None if it was never started or is forgotten."""
        with self._changed:
            return self._reports.get(key)

    def start_task(self, key: Hashable, work: Work, by: str = "") -> bool:
        """Start a computation, unless it waits or runs already; return whether it was started."""
        with self._changed:
            known = self._reports.get(key)
            if known is not None and not known.is_over:
                return False
            if len(self._waiting) >= MAX_WAITING:
                raise UsageError("too many computations wait for their turn; try again in a minute")
            self._forget_oldest()
            # The last result goes; at the end of the table, so that the oldest ones are forgotten first.
            self._reports.pop(key, None)
            self._reports[key] = TaskReport(by)
            self._waiting.append((key, work))
            self.change_number += 1
            if self._thread is None:
                # A daemon: a computation only reads, and must not hold up the end of the process.
                self._thread = threading.Thread(target=self._run_all, name="dashboard-tasks", daemon=True)
                self._thread.start()
        return True

    def compute_report(self, key: Hashable, work: Work) -> TaskReport:
        """Return the computation of a key, started if there is none or if its result is old.

        Waits for `WAIT_S` at most; after that the report of a running computation is returned.
        """
        known = self.find_report(key)
        if known is None or (known.is_over and self._is_old(known)):
            self.start_task(key, work)
        ends_at = time.monotonic() + WAIT_S
        with self._changed:
            while not self._reports[key].is_over:
                left = ends_at - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._reports[key]

    def _is_old(self, report: TaskReport) -> bool:
        rest = max(FRESH_S, MIN_REST * (report.ended_at - report.started_at))
        return self._clock() - report.ended_at > rest

    def _forget_oldest(self) -> None:
        ended = [key for key, report in self._reports.items() if report.is_over]
        for key in ended[: max(0, len(self._reports) - MAX_RESULTS + 1)]:
            del self._reports[key]

    def _run_all(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                key, work = self._waiting.popleft()
                self._update_report(key, started_at=self._clock())
            self._run_one(key, work)

    def _run_one(self, key: Hashable, work: Work) -> None:
        def show_progress(done: int, total: int) -> None:
            with self._changed:
                # A page shows hundredths; every part would wake the pages for nothing.
                if total and 100 * done // total != 100 * self._reports[key].done // total:
                    self._update_report(key, done=done, total=total)

        result, fault = None, ""
        try:
            result = work(show_progress)
        except Error as error:
            fault = str(error)
        except Exception as error:  # noqa: BLE001 - the page shows it; the thread goes on with the next
            fault = f"{type(error).__name__}: {error}"
        with self._changed:
            self._update_report(key, result=result, fault=fault, ended_at=self._clock())

    def _update_report(self, key: Hashable, **fields: Any) -> None:
        """Change the report of a running computation; the caller holds the lock."""
        self._reports[key] = self._reports[key]._replace(**fields)
        self.change_number += 1
        self._changed.notify_all()
