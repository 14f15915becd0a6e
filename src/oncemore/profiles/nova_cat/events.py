"""The events of `nova-cat`, with the JSON Schemas of their payloads, and its log lines.

Every payload has `correlation_id`, and none has a field for an idempotency key (MSG-7, IDEM-15): a consumer
recognises a repeated event by the event's own id.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from oncemore.classifiers.classify import classify
from oncemore.profiles.nova_cat import names
from oncemore.steps.attempt import current
from oncemore.steps.context import CONTEXT

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


log = logging.getLogger("oncemore.nova_cat")


class log_failures:  # noqa: N801 - a context manager, named as a function: with log_failures(…)
    """Log the start of an attempt, and its failure with the number of the attempt."""

    def __init__(self, workflow: str, **fields: Any) -> None:
        self._fields = {"workflow": workflow, **fields}

    def __enter__(self) -> None:
        log_note("try", attempt=current().number, **self._fields)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Cancellation and interrupts are not failures of the attempt.
        if isinstance(error, Exception):
            code = classify(error, 0.0).code
            log_note(
                f"failed: {error}", logging.WARNING, attempt=current().number, reason=code, **self._fields
            )


def log_note(text: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a log line with these fields and the current correlation id."""
    fields["correlation_id"] = CONTEXT.get().correlation_id
    log.log(level, "%s: %s", fields.get("workflow", names.PROFILE), text, extra=fields)
