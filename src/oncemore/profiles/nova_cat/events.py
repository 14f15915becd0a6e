"""The events of `nova-cat`: their topics and the JSON Schemas of their payloads.

Every payload has `correlation_id`, and none has a field for an idempotency key (MSG-7, IDEM-15): a consumer
recognises a repeated event by the event's own id.
"""

from __future__ import annotations

from typing import Any, Final

from oncemore.steps.attempt import current

DISCOVERED: Final = "nova-cat.SpectraProductDiscovered"
VALIDATED: Final = "nova-cat.SpectrumValidated"
LINKED: Final = "nova-cat.ReferenceLinked"

_TEXT: Final = {"type": "string", "minLength": 1}
_UUID: Final = {"type": "string", "format": "uuid"}
_DIGEST: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_NUMBER: Final = {"type": "number"}

_PAYLOAD_FIELDS: Final[dict[str, dict[str, Any]]] = {
    DISCOVERED: {
        "nova_id": _UUID, "data_product_id": _UUID, "provider": _TEXT, "locator": _TEXT, "provenance": _TEXT,
        "sha256": {"anyOf": [_DIGEST, {"type": "null"}]},
    },
    VALIDATED: {
        "nova_id": _UUID, "data_product_id": _UUID, "provider": _TEXT, "sha256": _DIGEST,
        "size": {"type": "integer"}, "profile": _TEXT, "points": {"type": "integer"}, "first_nm": _NUMBER,
        "last_nm": _NUMBER,
    },
    LINKED: {"nova_id": _UUID, "reference_id": _UUID, "title": {"type": "string"}},
}  # fmt: skip

#: The schema of each event's payload, by topic.
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    topic: {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": topic,
        "type": "object",
        "properties": {"schema_version": {"const": "1"}, "correlation_id": _TEXT, **fields},
        "required": ["schema_version", "correlation_id", *fields],
        "additionalProperties": False,
    }
    for topic, fields in _PAYLOAD_FIELDS.items()
}


def emit_event(topic: str, **fields: Any) -> None:
    """Publish an event of the current step, with its correlation id."""
    # A missing field would only be noticed by the consumer that validates the payload.
    assert fields.keys() == _PAYLOAD_FIELDS[topic].keys()
    attempt = current()
    attempt.emit(topic, {"schema_version": "1", "correlation_id": attempt.correlation_id, **fields})
