"""An in-memory stream of audit events: filter, count and summarize them per category.

All figures are computed from the stored events on request. A full stream drops its oldest events and counts
them in `dropped_events`; events that must be kept go to a file (`AuditFile`).
"""

from __future__ import annotations

import json
from collections import deque
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.audit.events import OUTCOME_EVENTS, RetrySucceeded, parse_event
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from oncemore.audit.events import AuditEvent

MAX_EVENTS = 10_000


class AuditSummary(Value):
    """Totals of the operations that ended.

    `success_rate` is the share of successes, `avg_attempts` the number of attempts per operation; both are
    None if no operation has ended yet.
    """

    operations: int
    total_attempts: int
    success_rate: float | None
    avg_attempts: float | None


class AuditStream:
    """Keeps the last `max_events` events in memory; itself a sink.

    `dropped_events` counts the older events that were dropped.
    """

    def __init__(self, events: Iterable[AuditEvent] = (), *, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise UsageError(f"max_events is {max_events!r}; it must be 1 or more")
        self._lock = Lock()
        self._events: deque[AuditEvent] = deque(maxlen=max_events)
        self.dropped_events = 0
        for event in events:
            self(event)

    @classmethod
    def read(cls, path: str | PathLike[str], *, max_events: int = MAX_EVENTS) -> AuditStream:
        """Return the events of a file with one JSON object per line; raise `UsageError` for a bad line."""
        stream = cls(max_events=max_events)
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        stream(parse_event(json.loads(line)))
                    except (ValueError, AttributeError) as error:
                        raise UsageError(f"{path}, line {number}: {error}") from error
        return stream

    def __call__(self, event: AuditEvent) -> None:
        """Store an event; drop the oldest one if the stream is full."""
        with self._lock:
            # Counted before the append: appending to a full deque drops its first event silently.
            self.dropped_events += len(self._events) == self._events.maxlen
            self._events.append(event)

    def __iter__(self) -> Iterator[AuditEvent]:
        # A copy: a deque that another thread appends to raises in the middle of an iteration.
        with self._lock:
            return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def filter(
        self,
        *,
        event_type: str | None = None,
        retry_category: str | None = None,
        operation: str | None = None,
        tenant_id: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> AuditStream:
        """Return a stream of the stored events that have all the given values."""
        options = {
            "event_type": event_type, "retry_category": retry_category, "operation": operation,
            "tenant_id": tenant_id, "correlation_id": correlation_id, "trace_id": trace_id,
        }  # fmt: skip
        wanted = {name: value for name, value in options.items() if value is not None}
        events = [
            event for event in self if all(getattr(event, name) == value for name, value in wanted.items())
        ]
        return AuditStream(events, max_events=max(1, len(events)))

    def newest(self, count: int) -> list[AuditEvent]:
        """Return the newest events, oldest of them first."""
        events = list(self)
        return list(islice(events, max(0, len(events) - count), None))

    @property
    def rate_per_minute(self) -> float:
        """The number of events in the last minute; `count_per_minute` takes another window."""
        return self.count_per_minute()

    def count_per_minute(self, window_s: float = 60.0, now: float | None = None) -> float:
        """Return the number of events per minute in the last `window_s` seconds before `now`."""
        if not window_s > 0:
            raise UsageError(f"window_s is {window_s!r}; it must be more than 0")
        end = clocks.current.wall() if now is None else now
        return sum(end - window_s <= event.posix_time <= end for event in self) * 60.0 / window_s

    def summary(self) -> AuditSummary:
        """Return the totals of all operations that ended, of every category."""
        return _summarize_outcomes([event for event in self if isinstance(event, OUTCOME_EVENTS)])

    def per_category(self) -> dict[str, AuditSummary]:
        """Return the totals of the operations that ended, by category."""
        # Only outcomes count: a hit of a stored result is not an operation that ended.
        outcomes: dict[str, list[AuditEvent]] = {}
        for event in self:
            if isinstance(event, OUTCOME_EVENTS):
                outcomes.setdefault(event.retry_category, []).append(event)
        return {category: _summarize_outcomes(events) for category, events in sorted(outcomes.items())}


def _summarize_outcomes(outcomes: list[AuditEvent]) -> AuditSummary:
    ended = len(outcomes)
    if not ended:
        return AuditSummary(0, 0, None, None)
    attempts = sum(event.total_attempts for event in outcomes)  # type: ignore[attr-defined]
    successes = sum(isinstance(event, RetrySucceeded) for event in outcomes)
    return AuditSummary(ended, attempts, successes / ended, attempts / ended)
