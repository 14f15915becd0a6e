"""A message: an event as it leaves the building, as a value and as JSON.

The JSON (`message.v1.json` beside this file is its schema) is the same bytes in every attempt: whoever gets
a message twice gets it twice the same. The number of the attempt therefore stands beside it and not in it
(`Oncemore-Attempt`), except in files, which have no place beside.

    id              the event's own, the same in every attempt: drop what you have seen
    topic           what it is about
    payload         what the step gave to `emit()`, in JSON's own words: tuples and sets are lists, times are
                    RFC 3339, bytes are Base64, decimals and UUIDs are texts
    correlation_id  what ties it to all records of the work that gave it away
    tenant          whose it is, or null
    created         when it was given away, in POSIX seconds
    lane            messages of one lane come in their order; it stands for the run's key, and does not
                    hold it
    sequence        rises within a lane

There is no field for an idempotency key (IDEM-15): keys are between a step and its store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value
from oncemore.errors import PermanentError
from oncemore.log.tagged_json import untag
from oncemore.policy.canonical_json import digest

if TYPE_CHECKING:
    from oncemore.log.record import Outgoing

SCHEMA = Path(__file__).with_name("message.v1.json")
#: The most events that one run can give away, and so the distance between the sequences of two runs.
PER_RUN = 1000
_json = msgspec.json.Encoder(order="deterministic")


class Message(Value):
    """An event as it leaves the building."""

    id: str
    topic: str
    payload: Any
    correlation_id: str
    tenant: str
    created: float
    lane: str
    sequence: int
    attempt: int

    def envelope(self) -> dict[str, Any]:
        """Return what is written of it: everything but the number of the attempt."""
        fields = dict(zip(self._fields, self, strict=True))
        del fields["attempt"]
        return {**fields, "tenant": self.tenant or None}

    def json(self) -> bytes:
        """Return its JSON, the same bytes in every attempt; refuse a payload that JSON cannot hold."""
        return _written(self.envelope(), self)

    def json_line(self) -> bytes:
        """Return its JSON for a file, with the number of the attempt, as one line."""
        return _written({**self.envelope(), "attempt": self.attempt}, self) + b"\n"


def message_of(event: Outgoing, life: int, payload: Any) -> Message:
    """Return the message of an event that the `life`-th run of its entity gave away."""
    return Message(
        event.event_id, event.topic, untag(payload), event.correlation_id, event.tenant, event.created,
        digest({"lane": event.run})[:32], life * PER_RUN + event.ordinal, event.attempt,
    )  # fmt: skip


def _written(plain: dict[str, Any], message: Message) -> bytes:
    try:
        return _json.encode(plain)
    except (TypeError, ValueError) as fault:
        raise PermanentError(
            f"the payload of {message.topic!r} has no form in plain JSON: {fault}; take a sink of your own"
        ) from None
