"""Audit sinks: a file with one JSON object per line, and a logger.

A sink is any function of one event. It raises if it cannot write; `SinkWriter` retries it and then logs the
event, so that the error never reaches the audited work.
"""

from __future__ import annotations

import io
import logging
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING

from oncemore.audit.events import (
    Idempotency,
    IdempotencyCleared,
    RetryExhausted,
    RetrySucceeded,
    check_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from types import TracebackType
    from typing import Any, Self

    from oncemore.audit.events import AuditEvent


class AuditFile:
    """Appends each event to a file as one line of JSON, flushed before it returns.

    `file` is a path, opened at once and closed by `close()` or `with`, or an open file, text or binary, which
    the caller closes. Lines of several threads, and of several processes that append to one path, do not mix.
    A line that a full disk cut off is terminated before the next one.

    version  of the events' form: version 2 includes the policy of each event
    """

    def __init__(self, file: str | PathLike[str] | IO[str] | IO[bytes], *, version: int = 1) -> None:
        self._version = check_version(version)
        self._lock = Lock()
        self._has_torn_line = False
        self._owns_file = isinstance(file, str) or hasattr(file, "__fspath__")
        # Unbuffered and appending: one write is one line, also if another process appends to the file.
        self._file: Any = Path(file).open("ab", buffering=0) if self._owns_file else file  # type: ignore[arg-type] # noqa: SIM115
        self._is_text = hasattr(self._file, "encoding")

    def __call__(self, event: AuditEvent) -> None:
        """Write one event; raise the error of the file."""
        line = event.to_json(self._version) + "\n"
        with self._lock:
            if self._has_torn_line:
                line = "\n" + line
            # Set until the flush returns: if writing raises, the file may end in a part of this line.
            self._has_torn_line = True
            self._write_line(line if self._is_text else line.encode())
            self._file.flush()
            self._has_torn_line = False

    def _write_line(self, line: str | bytes) -> None:
        while line:
            written = self._file.write(line)
            # A raw file in non-blocking mode returns None if it wrote nothing.
            if written is None and isinstance(self._file, io.RawIOBase):
                raise BlockingIOError("the audit file is not ready for writing; the event was not written")
            # A raw file may write a part only; a file-like object of the caller may return None for all.
            line = line[len(line) if written is None else written :]

    def close(self) -> None:
        """Close the file if this sink opened it."""
        if self._owns_file:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_LEVELS: dict[type[AuditEvent], int] = {
    RetrySucceeded: logging.INFO,
    Idempotency: logging.INFO,
    RetryExhausted: logging.ERROR,
    IdempotencyCleared: logging.WARNING,
}


def to_logging(logger: logging.Logger | str = "oncemore.audit") -> Callable[[AuditEvent], None]:
    """Return a sink that writes each event to a logger: its JSON as message, its fields as `oncemore_event`.

    Successes and idempotency are logged as INFO, exhaustion as ERROR, all other events as WARNING.
    """
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def log_event(event: AuditEvent) -> None:
        level = _LEVELS.get(type(event), logging.WARNING)
        if log.isEnabledFor(level):
            log.log(level, "%s", event.to_json(), extra={"oncemore_event": event.to_dict()})

    return log_event
