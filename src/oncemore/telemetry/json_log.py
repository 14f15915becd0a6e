"""Log records as lines of JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

#: The attributes that every log record has; the remaining ones are fields that the caller has added.
_PLAIN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLogFormatter(logging.Formatter):
    """Formats each log record as one JSON object on one line, with all fields that the record carries.

    The fields are `at` (POSIX seconds), `level`, `logger`, `message`, `traceback`
    if there is one, and the extra fields of the record without the prefix `oncemore_`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            # A field of the caller must not hide the level or the text of the line.
            if name not in _PLAIN_ATTRIBUTES:
                line.setdefault(name.removeprefix("oncemore_"), value)
        # Any other object as its text: a value of the caller must not cost the line.
        return json.dumps(line, default=str, skipkeys=True)
