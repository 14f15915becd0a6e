"""The envelope of an outgoing event, and its forms: plain JSON and CloudEvents 1.0.

The bytes are the same in every attempt, so that a consumer can compare and drop repeats. The number of the
attempt is therefore sent beside the body (`Oncemore-Attempt`); only files, which have no header fields, have
it in the line. `message.v1.json` beside this module is the schema of the plain form. No form has a field for
an idempotency key (IDEM-15): keys are internal to a step and its store.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from oncemore._values import Value
from oncemore.errors import PermanentError, UsageError
from oncemore.log.tagged_json import untag_value
from oncemore.policy.canonical_json import canonical_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.record import EventRecord

    EncodedMessage = tuple[dict[str, str], bytes]

SCHEMA = Path(__file__).with_name("message.v1.json")
#: The most events that one run can emit, and so the distance between the sequences of two runs.
MAX_EVENTS_PER_RUN = 1000
STRUCTURED_TYPE = "application/cloudevents+json"
# A path is the only value of a payload that msgspec does not know.
_json = msgspec.json.Encoder(order="deterministic", enc_hook=PurePath.as_posix)
#: The characters that CloudEvents leave unquoted in a header field: "!" to "~" without the quote and "%".
_UNQUOTED_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class EventMessage(Value):
    """An event as it is sent to a sink.

    id              the event's id, the same in every attempt; consumers drop repeats by it
    topic           the topic that the step gave to `emit()`
    payload         the value given to `emit()`, as plain JSON: tuples and sets are lists, times are RFC 3339,
                    bytes are Base64, decimals and UUIDs are strings
    correlation_id  the id that all records of the emitting work share
    tenant          the tenant, or an empty string; null in the JSON
    created         when it was emitted, in POSIX seconds
    lane            a digest of the run's key; events of one lane are sent in order
    sequence        rises within a lane
    attempt         the number of this attempt to send it; not part of the JSON
    """

    id: str
    topic: str
    payload: Any
    correlation_id: str
    tenant: str
    created: float
    lane: str
    sequence: int
    attempt: int

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the number of the attempt."""
        fields = dict(zip(self._fields, self, strict=True))
        del fields["attempt"]
        return {**fields, "tenant": self.tenant or None}

    def to_json(self) -> bytes:
        """Return the JSON, the same bytes in every attempt; raise if JSON cannot hold the payload."""
        return _encode_json(self.to_dict(), self)

    def to_json_line(self) -> bytes:
        """Return the JSON with the number of the attempt, as one line of a file."""
        return _encode_json({**self.to_dict(), "attempt": self.attempt}, self) + b"\n"


def make_message(event: EventRecord, run_number: int, payload: Any) -> EventMessage:
    """Return the message of an event that the given run of its entity emitted."""
    return EventMessage(
        id=event.event_id,
        topic=event.topic,
        payload=untag_value(payload),
        correlation_id=event.correlation_id,
        tenant=event.tenant,
        created=event.created_at,
        # A digest: the entity contains the run's key, which must not leave the store.
        lane=canonical_digest({"lane": event.run_entity})[:32],
        sequence=run_number * MAX_EVENTS_PER_RUN + event.ordinal,
        attempt=event.attempt,
    )


# Forms ----------------------------------------------------------------------------------------------


def build_attributes(message: EventMessage, source: str) -> dict[str, str]:
    """Return the CloudEvents attributes of a message; consumers drop repeats by `source` and `id`."""
    attributes = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": message.topic,
        "time": datetime.fromtimestamp(message.created, UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "correlationid": message.correlation_id,
        "partitionkey": message.lane,
        # Padded: the extension `sequence` is a string, and compared as one.
        "sequence": f"{message.sequence:020d}",
        "tenant": message.tenant,
    }
    # An attribute of a CloudEvent is never empty: left out if there is no value.
    return {name: value for name, value in attributes.items() if value}


def encode_structured(message: EventMessage, source: str) -> EncodedMessage:
    """Return the header fields and body of a CloudEvent that is one JSON document."""
    document = {**build_attributes(message, source), "data": message.payload}
    return {"Content-Type": STRUCTURED_TYPE}, _encode_json(document, message)


def encode_binary(message: EventMessage, source: str) -> EncodedMessage:
    """Return the header fields and body of a CloudEvent with its attributes in header fields."""
    attributes = build_attributes(message, source)
    fields = {"Content-Type": attributes.pop("datacontenttype")}
    for name, value in attributes.items():
        fields[f"ce-{name}"] = quote(value, safe=_UNQUOTED_CHARACTERS)
    return fields, _encode_json(message.payload, message)


def encode_plain(message: EventMessage, source: str) -> EncodedMessage:
    """Return the header fields and body of a message in the plain form."""
    return {"Content-Type": "application/json"}, message.to_json()


ENCODERS: dict[str, Callable[[EventMessage, str], EncodedMessage]] = {
    "message": encode_plain,
    "cloudevents": encode_structured,
    "cloudevents-binary": encode_binary,
}


def make_encoder(form: str, source: str) -> Callable[[EventMessage], EncodedMessage]:
    """Return the function that encodes messages in a form; raise for an unknown form or a bad source."""
    if form not in ENCODERS:
        raise UsageError(f"form is {form!r}; the choices are {', '.join(ENCODERS)}")
    if not isinstance(source, str) or not source or any(char.isspace() for char in source):
        raise UsageError(f"source is {source!r}; it takes the sender's URI: /shop, https://example.org")
    encode = ENCODERS[form]
    return lambda message: encode(message, source)


def _encode_json(plain: Any, message: EventMessage) -> bytes:
    try:
        return _json.encode(plain)
    except (TypeError, ValueError) as error:
        # Permanent: the stored payload does not change, so another attempt cannot succeed.
        raise PermanentError(
            f"the payload of {message.topic!r} cannot be encoded as plain JSON: {error}; use your own sink"
        ) from None
