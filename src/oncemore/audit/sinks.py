"""Audit sinks: a file with one JSON object per line, a logger, and a stream in memory.

A sink is any function of one event. It raises if it cannot write; `SinkWriter` retries it and then logs the
event, so that the error never reaches the audited work. The stream filters, counts and summarizes events per
category, from the stored events on request; a full one drops its oldest events and counts them.
"""

from __future__ import annotations

import io
import json
import logging
from collections import deque
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.audit.events import (
    OUTCOME_EVENTS,
    Idempotency,
    IdempotencyCleared,
    RetryExhausted,
    RetrySucceeded,
    check_version,
    parse_event,
)
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike
    from typing import Any, Self

    from oncemore.audit.events import AuditEvent, FormVersion
MAX_EVENTS = 10_000


class AuditFile:
    """Appends each event to a file as one line of JSON, flushed before it returns.

    `file` is a path, opened at once and closed by `close()` or `with`, or an open file, text or binary, which
    the caller closes. Lines of several threads, and of several processes that append to one path, do not mix.
    A line that a full disk cut off is terminated before the next one.

    version  of the events' form: version 2 includes the policy of each event
    """

    def __init__(self, file: str | PathLike[str] | IO[str] | IO[bytes], *, version: FormVersion = 1) -> None:
        check_version(version)
        self._version = version
        self._lock = Lock()
        self._has_torn_line = False
        self._owns_file = isinstance(file, str) or hasattr(file, "__fspath__")
        # Unbuffered and appending: one write is one line, also if another process appends to the file.
        self._file: Any = Path(file).open("ab", buffering=0) if self._owns_file else file  # type: ignore[arg-type] # noqa: SIM115
        self._is_text = hasattr(self._file, "encoding")

    def __call__(self, event: AuditEvent) -> None:
        """Write one event; raise the error of the file."""
        line = event.to_json(self._version) + "\n"
        with self._lock:
            if self._has_torn_line:
                line = "\n" + line
            # Set until the flush returns: if writing raises, the file may end in a part of this line.
            self._has_torn_line = True
            self._write_line(line if self._is_text else line.encode())
            self._file.flush()
            self._has_torn_line = False

    def _write_line(self, line: str | bytes) -> None:
        while line:
            written = self._file.write(line)
            # A raw file in non-blocking mode returns None if it wrote nothing.
            if written is None and isinstance(self._file, io.RawIOBase):
                raise BlockingIOError("the audit file is not ready for writing; the event was not written")
            # A raw file may write a part only; a file-like object of the caller may return None for all.
            line = line[len(line) if written is None else written :]

    def close(self) -> None:
        """Close the file if this sink opened it."""
        if self._owns_file:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_LEVELS: dict[type[AuditEvent], int] = {
    RetrySucceeded: logging.INFO,
    Idempotency: logging.INFO,
    RetryExhausted: logging.ERROR,
    IdempotencyCleared: logging.WARNING,
}


def to_logging(logger: logging.Logger | str = "oncemore.audit") -> Callable[[AuditEvent], None]:
    """Return a sink that writes each event to a logger: its JSON as message, its fields as `oncemore_event`.

    Successes and idempotency are logged as INFO, exhaustion as ERROR, all other events as WARNING.
    """
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def log_event(event: AuditEvent) -> None:
        level = _LEVELS.get(type(event), logging.WARNING)
        if log.isEnabledFor(level):
            log.log(level, "%s", event.to_json(), extra={"oncemore_event": event.to_dict()})

    return log_event


# In memory ------------------------------------------------------------------------------------------


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
        values = {name: value for name, value in options.items() if value is not None}
        events = [
            event for event in self if all(getattr(event, name) == value for name, value in values.items())
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
