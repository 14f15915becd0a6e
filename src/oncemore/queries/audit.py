"""Read audit events from a file of JSON lines or from a store: filter, follow and summarize them.

A store holds no audit events of its own: the events of durable runs follow from the entries of the log. So a
program that set up no sink can still be audited.
"""

from __future__ import annotations

import json
import time

from oncemore._values import Value
from oncemore.audit.events import (
    AuditEvent,
    RetryAttempt,
    RetryExhausted,
    RetryRefused,
    RetrySucceeded,
    format_rfc3339,
    parse_event,
)
from oncemore.audit.recorder import default_category
from oncemore.audit.sinks import AuditStream
from oncemore.errors import UsageError
from oncemore.queries import normalize_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

    from oncemore.log.store import Store
    from oncemore.queries.tail import TailLine

POLL_S = 0.2
#: The number of events that a summary holds; older events are dropped, and the summary says so.
MAX_EVENTS = 1_000_000


class EventFilter(Value):
    """The events to select; a field that is None matches every event."""

    event_type: str | None = None
    retry_category: str | None = None
    operation: str | None = None
    tenant_id: str | None = None
    correlation_id: str | None = None

    def matches_event(self, event: AuditEvent) -> bool:
        """Return whether an event has the wanted value in every field."""
        return all(want is None or getattr(event, name) == want for name, want in self._asdict().items())


class AuditTrail:
    """A file of audit events that another process may still append to."""

    def __init__(self, file: IO[str], name: str, wanted: EventFilter) -> None:
        self._file, self.name = file, name
        self._filter = normalize_names(wanted, "tenant_id")
        self._line_number, self._partial_line = 0, ""
        self.torn_lines = 0  # lines that are not JSON, for example cut off by a full disk

    def read_new_events(self) -> Iterator[AuditEvent]:
        """Yield the events that were not read yet.

        Raise `UsageError` for a line that is JSON but not an audit event. An incomplete last line stays
        unread, because its writer may not have finished it.
        """
        for part in self._file:
            self._partial_line += part
            # The last line of a complete file may lack its line end; a closing brace shows that it is whole.
            if self._partial_line.endswith(("\n", "}")):
                line, self._partial_line = self._partial_line, ""
                self._line_number += line.endswith("\n")
                event = self._parse_line(line) if line.strip() else None
                if event is not None and self._filter.matches_event(event):
                    yield event

    def _parse_line(self, line: str) -> AuditEvent | None:
        try:
            plain = json.loads(line)
        except ValueError:
            # A torn line loses one event, and must not hide all later ones.
            self.torn_lines += 1
            return None
        try:
            return parse_event(plain)
        except (UsageError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{self.name}, line {self._line_number}: {error}; give a file that an AuditFile sink wrote"
            ) from None

    def follow_events(self, wait: Callable[[float], object] = time.sleep) -> Iterator[AuditEvent]:
        """Yield events as they are written; never return."""
        while True:
            yield from self.read_new_events()
            wait(POLL_S)


class StoreTrail:
    """The audit events of the durable runs of a store, computed from the entries of its log."""

    torn_lines = 0
    name = "the store"

    def __init__(self, store: Store, wanted: EventFilter) -> None:
        from oncemore.queries.tail import EntryFilter, LogTailer

        self._filter = normalize_names(wanted, "tenant_id")
        # Only these entries give events; the log compares marks before it reads a body.
        marks = ("SOFT_FAIL", "HARD_FAIL", "COMPLETE")
        self._log = LogTailer(
            store, EntryFilter(("run",), marks, tenant=wanted.tenant_id, correlation=wanted.correlation_id)
        )

    def read_last_events(self, count: int) -> list[AuditEvent]:
        """Return the last events that match, oldest first."""
        lines, events = count, list[AuditEvent]()
        # The filter may skip most entries: read further back until there are enough events.
        while count:
            read = self._log.read_last_lines(lines)
            events = [event for line in read for event in self._list_events(line)][-count:]
            if len(events) == count or len(read) < lines:
                break
            lines *= 8
        return events

    def read_new_events(self) -> Iterator[AuditEvent]:
        """Yield all events that the log had when this trail was opened, oldest first."""
        for line in self._log.read_last_lines(max(1, self._log.position)):
            yield from self._list_events(line)

    def follow_events(self) -> Iterator[AuditEvent]:
        """Yield events as their entries are appended; never return."""
        while True:
            for line in self._log.read_new_lines():
                yield from self._list_events(line)

    def _list_events(self, line: TailLine) -> list[AuditEvent]:
        event = make_audit_event(line)
        return [event] if event is not None and self._filter.matches_event(event) else []


def make_audit_event(line: TailLine) -> AuditEvent | None:
    """Return the audit event of an entry of a run; None if the entry ends no attempt."""
    proof: dict[str, Any] = line.body.get("proof") or {}
    policy = proof.get("policy") or {}
    shared: dict[str, Any] = {
        "retry_category": default_category(line.step),
        "operation": line.step,
        "tenant_id": line.tenant or None,
        "correlation_id": line.correlation_id or None,
        "trace_id": None,
        "timestamp": format_rfc3339(line.at),
        # As runs name their policy: with a shortened digest.
        "policy": f"{policy['name']}@{policy['version']}:{policy['digest'][:12]}" if policy else None,
    }
    if "COMPLETE" in line.marks:
        return RetrySucceeded(**shared, total_attempts=line.attempts)
    number = int(proof.get("attempt", line.attempts))
    error = line.body.get("error") or {}
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    if proof.get("action") == "retry":
        return RetryAttempt(
            **shared,
            attempt_number=number,
            max_attempts=int(proof["thresholds"]["max_attempts"]),
            delay_seconds=float(proof["delay_s"]),
            exception_type=kind,
            exception_message=message,
        )
    if line.reason == "max_attempts_exceeded":
        return RetryExhausted(
            **shared, total_attempts=number, final_exception_type=kind, final_exception_message=message
        )
    until = proof.get("not_before")
    return RetryRefused(
        **shared,
        total_attempts=number,
        reason=line.reason,
        not_before=None if until is None else format_rfc3339(until),
        exception_type=kind,
        exception_message=message,
    )


def load_stream(trail: AuditTrail | StoreTrail) -> AuditStream:
    """Return all events of a trail that are written now."""
    return AuditStream(trail.read_new_events(), max_events=MAX_EVENTS)
