"""A stream of events to look at: filtered, counted, summed up per category.

Everything is computed from the events that are kept, when it is asked for. A stream that is full
forgets its oldest events and says how many; what must be kept goes to a file (`sinks.JsonLines`).
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
from oncemore.audit.events import OUTCOMES, RetrySucceeded, event_from
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from oncemore.audit.events import Event

MOST_EVENTS = 10_000


class Summary(Value):
    """What came of the operations that ended.

    `success_rate` is the share that came good, `avg_attempts` how many calls one took; both are None
    when nothing has ended yet.
    """

    operations: int
    total_attempts: int
    success_rate: float | None
    avg_attempts: float | None


class AuditStream:
    """Keeps the last events in memory; itself a sink.

    `dropped` counts the older events that made room.
    """

    def __init__(self, events: Iterable[Event] = (), *, most: int = MOST_EVENTS) -> None:
        if most < 1:
            raise UsageError(f"most is {most!r}; it must be 1 or more")
        self._lock = Lock()
        self._events: deque[Event] = deque(maxlen=most)
        self.dropped = 0
        for event in events:
            self(event)

    @classmethod
    def read(cls, path: str | PathLike[str], *, most: int = MOST_EVENTS) -> AuditStream:
        """Return the events of a file with one JSON object per line; name the line that is none."""
        stream = cls(most=most)
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        stream(event_from(json.loads(line)))
                    except (ValueError, AttributeError) as error:
                        raise UsageError(f"{path}, line {number}: {error}") from error
        return stream

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        with self._lock:
            self.dropped += len(self._events) == self._events.maxlen
            self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
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
        """Return a stream of the events kept so far that have all these values."""
        wanted = {
            "event_type": event_type, "retry_category": retry_category, "operation": operation,
            "tenant_id": tenant_id, "correlation_id": correlation_id, "trace_id": trace_id,
        }  # fmt: skip
        asked = {name: value for name, value in wanted.items() if value is not None}
        found = [
            event for event in self if all(getattr(event, name) == value for name, value in asked.items())
        ]
        return AuditStream(found, most=max(1, len(found)))

    def last(self, count: int) -> list[Event]:
        """Return the newest events, oldest of them first."""
        events = list(self)
        return list(islice(events, max(0, len(events) - count), None))

    @property
    def rate_per_minute(self) -> float:
        """How many events there were in the last minute; `count_per_minute` takes another window."""
        return self.count_per_minute()

    def count_per_minute(self, window_s: float = 60.0, now: float | None = None) -> float:
        """Return how many events a minute there were in the last `window_s` seconds before `now`."""
        if not window_s > 0:
            raise UsageError(f"window_s is {window_s!r}; it must be more than 0")
        end = clocks.current.wall() if now is None else now
        return sum(end - window_s <= event.posix <= end for event in self) * 60.0 / window_s

    def summary(self) -> Summary:
        """Sum up all operations that ended, whatever their category."""
        return _summed([event for event in self if isinstance(event, OUTCOMES)])

    def per_category(self) -> dict[str, Summary]:
        """Sum up the operations that ended, by category; computed from outcomes, never from hits."""
        outcomes: dict[str, list[Event]] = {}
        for event in self:
            if isinstance(event, OUTCOMES):
                outcomes.setdefault(event.retry_category, []).append(event)
        return {category: _summed(events) for category, events in sorted(outcomes.items())}


def _summed(outcomes: list[Event]) -> Summary:
    ended = len(outcomes)
    if not ended:
        return Summary(0, 0, None, None)
    attempts = sum(event.total_attempts for event in outcomes)  # type: ignore[attr-defined]
    good = sum(isinstance(event, RetrySucceeded) for event in outcomes)
    return Summary(ended, attempts, good / ended, attempts / ended)
