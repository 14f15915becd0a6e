"""Where events go: a file with one JSON object per line, or the program's own log.

A sink is any function of one event. One that raises is tried again and then passed over, never the
work (`audit.Outlet`), so a sink may simply raise when it cannot write.
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

    from oncemore.audit.events import Event


class JsonLines:
    """Appends each event to a file as one line of JSON, flushed before it returns.

    Takes a path, whose file is opened at once and closed by `close()` or `with`, or an open file, text or
    binary, which stays its owner's. Lines of several threads, and of several processes that append to
    one path, do not mix. A line that was cut off by a full disk is ended before the next one begins.

    version  of the events' form: 2 has the policy of each event
    """

    def __init__(self, to: str | PathLike[str] | IO[str] | IO[bytes], *, version: int = 1) -> None:
        self._version = check_version(version)
        self._lock = Lock()
        self._torn = False
        self._own = isinstance(to, str) or hasattr(to, "__fspath__")
        # Unbuffered and appending: one write is one line, whoever else writes there.
        self._file: Any = Path(to).open("ab", buffering=0) if self._own else to  # type: ignore[arg-type] # noqa: SIM115
        self._text = hasattr(self._file, "encoding")

    def __call__(self, event: Event) -> None:
        """Write one event; raises what the file raises."""
        line = event.json(self._version) + "\n"
        with self._lock:
            line, self._torn = "\n" + line if self._torn else line, True
            self._write(line if self._text else line.encode())
            self._file.flush()
            self._torn = False

    def _write(self, line: str | bytes) -> None:
        while line:
            done = self._file.write(line)
            if done is None and isinstance(self._file, io.RawIOBase):
                raise BlockingIOError("the file takes nothing now, and would lose the event in silence")
            line = line[len(line) if done is None else done :]  # a raw file may take a part only

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._own:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_LEVELS: dict[type[Event], int] = {
    RetrySucceeded: logging.INFO,
    Idempotency: logging.INFO,
    RetryExhausted: logging.ERROR,
    IdempotencyCleared: logging.WARNING,
}


def to_logging(logger: logging.Logger | str = "oncemore.audit") -> Callable[[Event], None]:
    """Return a sink that writes each event to a logger: its JSON as message, its fields as `oncemore_event`.

    Successes and idempotency are INFO, exhaustion is ERROR, all else WARNING.
    """
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def write(event: Event) -> None:
        level = _LEVELS.get(type(event), logging.WARNING)
        if log.isEnabledFor(level):
            log.log(level, "%s", event.json(), extra={"oncemore_event": event.plain()})

    return write
