"""How many operations used up their attempts: logged one by one, counted together.

One that is exhausted is an incident of one request. Many of them within some minutes mean an outage of
Core or a database under pressure, which is what the alert is for (G-20: above 5 % over 15 minutes). An
operation that Core itself puts off with a long `Retry-After` is deferred: it has attempts left, and is not
an exhaustion.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.profiles.lit.request_context import Ids

log = logging.getLogger("oncemore.lit")

MOST_KEPT = 100_000
MEANS = "likely upstream outage or database pressure"


class Exhaustion:
    """Counts operations and those that were exhausted, and says when there are too many of them.

    window_s   how far back it looks (15 minutes)
    threshold  the share of exhausted operations above which it alerts (0.05)
    least      how many operations there must be before a share says anything
    on_alert   called with this counter once when an alert begins

    `total`, `total_exhausted` and `total_deferred` count since it was made, whatever the window.
    """

    def __init__(
        self,
        *,
        window_s: float = 900.0,
        threshold: float = 0.05,
        least: int = 5,
        on_alert: Callable[[Exhaustion], object] | None = None,
    ) -> None:
        if not 0 < window_s < float("inf"):
            raise UsageError(f"window_s is {window_s!r}; it must be more than 0, and finite")
        if not 0 <= threshold < 1:
            raise UsageError(f"threshold is {threshold!r}; it must be a share from 0, and below 1")
        if least < 1:
            raise UsageError(f"least is {least!r}; it must be 1 or more")
        self.window_s, self.threshold, self.least = window_s, threshold, least
        self.total = self.total_exhausted = self.total_deferred = self.alerts = 0
        self._on_alert = on_alert
        self._ends: deque[tuple[float, bool]] = deque()
        self._exhausted = 0  # of those in _ends, so that counting one costs the same however many there are
        self._lock = Lock()
        self._alerting = False

    def count(self, *, exhausted: bool, deferred: bool = False) -> None:
        """Count an operation that is over: good, exhausted, deferred, or failed in another way."""
        with self._lock:
            self.total += 1
            self.total_exhausted += exhausted
            self.total_deferred += deferred
            self._ends.append((clocks.current.monotonic(), exhausted))
            self._exhausted += exhausted
            before, self._alerting = self._alerting, self._too_many()
            begins = self._alerting and not before
            self.alerts += begins
        if begins:
            log.error("exhaustion rate %s: ALERT %s", str(self), MEANS, extra=self._fields())
            self._call()

    @property
    def operations(self) -> int:
        """Operations within the window."""
        with self._lock:
            return len(self._recent())

    @property
    def exhausted(self) -> int:
        """Exhausted ones within the window."""
        with self._lock:
            self._recent()
            return self._exhausted

    @property
    def rate(self) -> float:
        """The share of exhausted operations within the window; 0 without any."""
        with self._lock:
            return self._share()

    @property
    def alerting(self) -> bool:
        """Whether there are too many now."""
        with self._lock:
            return self._too_many()

    def __str__(self) -> str:
        return f"{self.exhausted} of {self.operations} operations"

    def _recent(self) -> deque[tuple[float, bool]]:
        oldest = clocks.current.monotonic() - self.window_s
        while self._ends and (self._ends[0][0] < oldest or len(self._ends) > MOST_KEPT):
            self._exhausted -= self._ends.popleft()[1]
        return self._ends

    def _share(self) -> float:
        recent = self._recent()
        return self._exhausted / len(recent) if recent else 0.0

    def _too_many(self) -> bool:
        return self._share() > self.threshold and len(self._ends) >= self.least

    def _fields(self) -> dict[str, Any]:
        return {"oncemore_exhaustion_rate": self.rate, "oncemore_exhausted": self.exhausted}

    def _call(self) -> None:
        if self._on_alert is not None:
            try:
                self._on_alert(self)
            except Exception:
                log.exception("on_alert failed; the operation that was counted is not concerned")


#: The counter of this process, where none is given.
exhaustion = Exhaustion()


def given_up(what: str, attempts: int, ids: Ids, error: str, fields: dict[str, Any]) -> None:
    """Log that an operation used up what it may try, with all that is needed to find it again."""
    log.error(
        "%s after %d attempt%s; request=%s session=%s; %s",
        what, attempts, "" if attempts == 1 else "s", ids.request_id, ids.session_id or "-", error,
        extra={"oncemore_attempts": attempts, "oncemore_error": error, **told(ids), **fields},
    )  # fmt: skip


def told(ids: Ids) -> dict[str, Any]:
    """Return the two ids as fields of a log record."""
    return {"oncemore_request_id": ids.request_id, "oncemore_session_id": ids.session_id}
