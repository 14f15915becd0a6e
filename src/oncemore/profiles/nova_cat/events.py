"""The events that `nova-cat` publishes: their topics, and what stands in them.

Every one carries `correlation_id`, and none has a field for an idempotency key (MSG-7, IDEM-15): whoever gets
an event twice tells it by the event's own id. The schemas are JSON Schema; `payload` makes what fits them.
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

_FIELDS: Final[dict[str, dict[str, Any]]] = {
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
    for topic, fields in _FIELDS.items()
}


def emit(topic: str, **fields: Any) -> None:
    """Publish an event of the step around it, with what ties it to all records of that work."""
    assert fields.keys() == _FIELDS[topic].keys()
    attempt = current()
    attempt.emit(topic, {"schema_version": "1", "correlation_id": attempt.correlation_id, **fields})
