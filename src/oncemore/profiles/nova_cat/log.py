"""Log lines of `nova-cat`, whose fields, the correlation id among them, are attributes of the record."""

from __future__ import annotations

import json
import logging
from typing import Any

from oncemore.classifiers.classify import classify
from oncemore.profiles.nova_cat import names
from oncemore.steps.attempt import current
from oncemore.steps.context import CONTEXT

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
    # The fields are set twice: one by one for formatters, and as a group for `JsonLogFormatter`.
    fields["correlation_id"] = CONTEXT.get().correlation_id
    log.log(
        level, "%s: %s", fields.get("workflow", names.PROFILE), text, extra={"nova_cat": fields, **fields}
    )


class JsonLogFormatter(logging.Formatter):
    """Formats each log line as one JSON object: time, level, message, and the fields of the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event_fields = getattr(record, "nova_cat", {})
        fields = {
            "at": record.created,
            "level": record.levelname,
            "message": record.getMessage(),
            **event_fields,
        }
        return json.dumps(fields, default=str)
