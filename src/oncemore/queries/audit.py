"""Read audit events from a file of JSON lines: filter them, follow the file, and summarize it."""

from __future__ import annotations

import json
import time

from oncemore._values import Value
from oncemore.audit.events import parse_event
from oncemore.audit.sinks import AuditStream
from oncemore.errors import UsageError
from oncemore.queries import normalize_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from oncemore.audit.events import AuditEvent

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
        self._file, self._name = file, name
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
                f"{self._name}, line {self._line_number}: {error}; give a file that an AuditFile sink wrote"
            ) from None

    def follow_events(self, wait: Callable[[float], object] = time.sleep) -> Iterator[AuditEvent]:
        """Yield events as they are written; never return."""
        while True:
            yield from self.read_new_events()
            wait(POLL_S)


def load_stream(trail: AuditTrail) -> AuditStream:
    """Return all events of a trail that are written now."""
    return AuditStream(trail.read_new_events(), max_events=MAX_EVENTS)
