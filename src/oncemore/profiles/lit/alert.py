"""Logs operations that used up their attempts, and alerts when too many do.

One exhausted operation is an incident of one request. Many within some minutes mean an outage of Core or a
database under pressure, which is the purpose of the alert (G-20: above 5 % over 15 minutes). An operation
that Core defers with a long `Retry-After` has attempts left, so it is not exhausted.
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

    from oncemore.profiles.lit.http import RequestIds

log = logging.getLogger("oncemore.lit")

MAX_KEPT = 100_000
ALERT_MEANING = "likely upstream outage or database pressure"


class ExhaustionAlert:
    """Counts operations and exhausted ones, and alerts when the share of exhausted ones is too high.

    window_s            the length of the window (15 minutes)
    threshold           the share of exhausted operations above which it alerts (0.05)
    minimum_operations  the fewest operations for which a share is meaningful
    on_alert            called with this object once when an alert begins

    `total`, `total_exhausted` and `total_deferred` count since the start, regardless of the window.
    """

    def __init__(
        self,
        *,
        window_s: float = 900.0,
        threshold: float = 0.05,
        minimum_operations: int = 5,
        on_alert: Callable[[ExhaustionAlert], object] | None = None,
    ) -> None:
        if not 0 < window_s < float("inf"):
            raise UsageError(f"window_s is {window_s!r}; it must be more than 0, and finite")
        if not 0 <= threshold < 1:
            raise UsageError(f"threshold is {threshold!r}; it must be a share from 0, and below 1")
        if minimum_operations < 1:
            raise UsageError(f"minimum_operations is {minimum_operations!r}; it must be 1 or more")
        self.window_s, self.threshold, self.minimum_operations = window_s, threshold, minimum_operations
        self.total = self.total_exhausted = self.total_deferred = self.alerts = 0
        self._on_alert = on_alert
        self._ends: deque[tuple[float, bool]] = deque()
        self._exhausted = 0  # the exhausted ones in _ends, kept so that counting takes constant time
        self._lock = Lock()
        self._was_alerting = False

    def count(self, *, exhausted: bool, deferred: bool = False) -> None:
        """Count an operation that has ended: a success, exhausted, deferred, or failed in another way."""
        with self._lock:
            self.total += 1
            self.total_exhausted += exhausted
            self.total_deferred += deferred
            self._ends.append((clocks.current.monotonic(), exhausted))
            self._exhausted += exhausted
            was_alerting, self._was_alerting = self._was_alerting, self._is_alerting_now()
            starts = self._was_alerting and not was_alerting
            self.alerts += starts
        # Outside the lock: a slow hook or log handler must not block other operations.
        if starts:
            log.error("exhaustion rate %s: ALERT %s", str(self), ALERT_MEANING, extra=self._log_fields())
            self._call_on_alert()

    @property
    def operations(self) -> int:
        """The number of operations within the window."""
        with self._lock:
            return len(self._recent_ends())

    @property
    def exhausted(self) -> int:
        """The number of exhausted operations within the window."""
        with self._lock:
            self._recent_ends()
            return self._exhausted

    @property
    def rate(self) -> float:
        """The share of exhausted operations within the window; 0 without operations."""
        with self._lock:
            return self._exhausted_share()

    @property
    def is_alerting(self) -> bool:
        """Whether the share is above the threshold now."""
        with self._lock:
            return self._is_alerting_now()

    def __str__(self) -> str:
        return f"{self.exhausted} of {self.operations} operations"

    def _recent_ends(self) -> deque[tuple[float, bool]]:
        oldest = clocks.current.monotonic() - self.window_s
        # Operations older than the window leave from the front; the limit bounds the memory.
        while self._ends and (self._ends[0][0] < oldest or len(self._ends) > MAX_KEPT):
            self._exhausted -= self._ends.popleft()[1]
        return self._ends

    def _exhausted_share(self) -> float:
        recent = self._recent_ends()
        return self._exhausted / len(recent) if recent else 0.0

    def _is_alerting_now(self) -> bool:
        return self._exhausted_share() > self.threshold and len(self._ends) >= self.minimum_operations

    def _log_fields(self) -> dict[str, Any]:
        return {"oncemore_exhaustion_rate": self.rate, "oncemore_exhausted": self.exhausted}

    def _call_on_alert(self) -> None:
        if self._on_alert is not None:
            # The hook is the caller's code: its error must not fail the operation that was counted.
            try:
                self._on_alert(self)
            except Exception:
                log.exception("on_alert failed; the counted operation is not affected")


#: The counter of this process, used unless another one is given.
exhaustion = ExhaustionAlert()


def log_exhausted(event: str, attempts: int, ids: RequestIds, error: str, fields: dict[str, Any]) -> None:
    """Log the failed end of an operation, with everything that identifies it."""
    subject = f"{event} after {attempts} attempt{'' if attempts == 1 else 's'}"
    log.error(
        "%s; request=%s session=%s; %s",
        subject,
        ids.request_id,
        ids.session_id or "-",
        error,
        extra={"oncemore_attempts": attempts, "oncemore_error": error, **id_fields(ids), **fields},
    )


def id_fields(ids: RequestIds) -> dict[str, Any]:
    """Return the ids as fields of a log record."""
    return {f"oncemore_{name}": value for name, value in ids._asdict().items()}
