"""AUDIT: events that a sink has written, one JSON object a line: read, filtered, followed, summed up."""

from __future__ import annotations

import json
import time

from oncemore._values import Value
from oncemore.audit.events import event_from
from oncemore.audit.stream import AuditStream
from oncemore.errors import UsageError
from oncemore.queries.names import normalize_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from oncemore.audit.events import Event

LOOK_S = 0.2
#: How many events are summed up or counted back at most: those before are forgotten, and it is said.
MOST = 1_000_000


class Wanted(Value):
    """Which events are told; what is None is not asked for."""

    event_type: str | None = None
    retry_category: str | None = None
    operation: str | None = None
    tenant_id: str | None = None
    correlation_id: str | None = None

    def has(self, event: Event) -> bool:
        """Whether an event is one of them."""
        return all(want is None or getattr(event, name) == want for name, want in self._asdict().items())


class Trail:
    """A file of events that may still be written to."""

    def __init__(self, file: IO[str], name: str, wanted: Wanted) -> None:
        self._file, self._name = file, name
        self._wanted = normalize_names(wanted, "tenant_id")
        self._number, self._rest = 0, ""
        self.torn = 0  # lines that are no JSON: a full disk cuts one off

    def new(self) -> Iterator[Event]:
        """Return the events that were not read yet; a line that is none is named.

        The last line may be one that somebody is writing just now: it is left for later unless it is whole.
        """
        for part in self._file:
            self._rest += part
            if self._rest.endswith(("\n", "}")):
                line, self._rest = self._rest, ""
                self._number += line.endswith("\n")
                event = self._event(line) if line.strip() else None
                if event is not None and self._wanted.has(event):
                    yield event

    def _event(self, line: str) -> Event | None:
        try:
            plain = json.loads(line)
        except ValueError:
            self.torn += 1
            return None
        try:
            return event_from(plain)
        except (UsageError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{self._name}, line {self._number}: {error}; it takes what a JsonLines sink writes"
            ) from None

    def follow(self, wait: Callable[[float], object] = time.sleep) -> Iterator[Event]:
        """Return events as they come, for ever."""
        while True:
            yield from self.new()
            wait(LOOK_S)


def kept(trail: Trail) -> AuditStream:
    """Return all events of a trail that there are now, to be looked at together."""
    return AuditStream(trail.new(), most=MOST)
