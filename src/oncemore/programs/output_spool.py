"""Output on its way to become an artifact: on disk, in bounded memory and bounded room.

What is too long keeps its beginning and its end, each half of the room: the first half as it comes, the
second in a ring that is written over. What is left out in between is counted, and a line in its place says
so. The files have no names: nothing is left of them when the process dies.
"""

from __future__ import annotations

import tempfile
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 256 * 1024


class Spool:
    """What one stream of a program has printed."""

    def __init__(self, most: int) -> None:
        self._first, self._ring = most - most // 2, most // 2
        self._head: Any = None
        self._tail: Any = None
        self.bytes = 0
        self.fault = ""

    def write(self, data: bytes) -> None:
        """Take the next bytes; a disk that is full ends the keeping, not the program."""
        at, self.bytes = self.bytes, self.bytes + len(data)
        if self.fault or not (self._first or self._ring):
            return
        try:
            self._keep(at, data)
        except OSError as error:
            self.fault = error.strerror or str(error)
            self.close()

    def _keep(self, at: int, data: bytes) -> None:
        room = self._first - at
        if room > 0:
            self._head = self._head or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as we do
            _write(self._head, data[:room])
            data, at = data[room:], at + room
        if data and self._ring:
            self._tail = self._tail or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            skipped = max(0, len(data) - self._ring)
            data, place = data[skipped:], (at + skipped - self._first) % self._ring
            self._tail.seek(place)
            _write(self._tail, data[: self._ring - place])
            if len(data) > self._ring - place:
                self._tail.seek(0)
                _write(self._tail, data[self._ring - place :])

    @property
    def left_out(self) -> int:
        """How many bytes between beginning and end are not kept."""
        return max(0, self.bytes - self._first - self._ring)

    def read(self, size: int = CHUNK) -> bytes:
        """Return the next part of what is kept; files are read like this, and so are we."""
        self._parts = getattr(self, "_parts", None) or self._all()
        return next(self._parts, b"")

    def _all(self) -> Iterator[bytes]:
        note = b"\n[oncemore: %d bytes are left out here]\n" % self.left_out if self.left_out else b""
        parts = [_part(self._head, 0, self._first), iter([note] if note else [])]
        if self._tail is not None:
            over = (self.bytes - self._first) % self._ring if self.left_out else 0
            parts += [_part(self._tail, over, self._ring), _part(self._tail, 0, over)]
        return chain(*parts)

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._head, self._tail):
            if file is not None:
                file.close()
        self._head = self._tail = None


def _write(file: Any, data: bytes) -> None:
    """Write all of it: a file may take less at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _part(file: Any, start: int, end: int) -> Iterator[bytes]:
    """Return a file from one place to another, or to its end."""
    if file is not None:
        file.seek(start)
        while start < end and (data := file.read(min(CHUNK, end - start))):
            start += len(data)
            yield data
