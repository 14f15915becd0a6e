"""What `nova-cat` writes to the log: lines whose fields stand beside them, the correlation id among them."""

from __future__ import annotations

import json
import logging
from typing import Any

from oncemore.classifiers.classify import classify
from oncemore.profiles.nova_cat import names
from oncemore.steps.attempt import current
from oncemore.steps.context import CONTEXT

log = logging.getLogger("oncemore.nova_cat")


class told:  # noqa: N801 - used as a word: with told(…)
    """Have what fails inside told in the log, with the number of the try."""

    def __init__(self, workflow: str, **fields: Any) -> None:
        self._fields = {"workflow": workflow, **fields}

    def __enter__(self) -> None:
        note("try", attempt=current().number, **self._fields)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            code = classify(error, 0.0).code
            note(f"failed: {error}", logging.WARNING, attempt=current().number, reason=code, **self._fields)


def note(text: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a line to the log; its fields stand beside it, the correlation id among them."""
    fields["correlation_id"] = CONTEXT.get().correlation_id
    log.log(
        level, "%s: %s", fields.get("workflow", names.PROFILE), text, extra={"nova_cat": fields, **fields}
    )


class JsonLines(logging.Formatter):
    """Writes each log line as one JSON object: time, level, message, and all fields that stand beside it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        own = getattr(record, "nova_cat", {})
        told = {"at": record.created, "level": record.levelname, "message": record.getMessage(), **own}
        return json.dumps(told, default=str)
