"""Keeps the output of one stream on disk until it becomes an artifact, in bounded memory and bounded space.

Output beyond the limit keeps its beginning and its end, half of the space each: the first half as it comes,
the second in a ring buffer that overwrites itself. The bytes in between are counted, and a line in their
place says how many are missing. The files have no names, so a process that dies leaves none behind.
"""

from __future__ import annotations

import tempfile
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 256 * 1024


class OutputSpool:
    """The output of one stream; readable once as a file after the program has ended."""

    def __init__(self, max_bytes: int) -> None:
        self._head_limit, self._tail_limit = max_bytes - max_bytes // 2, max_bytes // 2
        self._head: Any = None
        self._tail: Any = None
        self.total_bytes = 0
        self.error_text = ""

    def write(self, data: bytes) -> None:
        """Append bytes; an error of the disk ends the recording, not the program."""
        at, self.total_bytes = self.total_bytes, self.total_bytes + len(data)
        if self.error_text or not (self._head_limit or self._tail_limit):
            return
        try:
            self._write_bounded(at, data)
        except OSError as error:
            self.error_text = error.strerror or str(error)
            self.close()

    def _write_bounded(self, at: int, data: bytes) -> None:
        free = self._head_limit - at
        if free > 0:
            self._head = self._head or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
            _write_fully(self._head, data[:free])
            data, at = data[free:], at + free
        # The head is full: the rest goes into the ring, where it overwrites the oldest bytes.
        if data and self._tail_limit:
            self._tail = self._tail or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            # Of more bytes than the ring holds, only the last ones can survive.
            skipped = max(0, len(data) - self._tail_limit)
            data, offset = data[skipped:], (at + skipped - self._head_limit) % self._tail_limit
            self._tail.seek(offset)
            _write_fully(self._tail, data[: self._tail_limit - offset])
            if len(data) > self._tail_limit - offset:
                self._tail.seek(0)
                _write_fully(self._tail, data[self._tail_limit - offset :])

    @property
    def omitted_bytes(self) -> int:
        """The number of bytes between beginning and end that were not kept."""
        return max(0, self.total_bytes - self._head_limit - self._tail_limit)

    def read(self, size: int = CHUNK) -> bytes:
        """Return the next part of the kept output; `put_artifact` reads spools like files."""
        self._parts = getattr(self, "_parts", None) or self._iterate_parts()
        return next(self._parts, b"")

    def _iterate_parts(self) -> Iterator[bytes]:
        note = (
            b"\n[oncemore: %d bytes are left out here]\n" % self.omitted_bytes if self.omitted_bytes else b""
        )
        parts = [_read_range(self._head, 0, self._head_limit), iter([note] if note else [])]
        if self._tail is not None:
            # A full ring begins behind its newest byte; one that is not full begins at 0.
            ring_start = (self.total_bytes - self._head_limit) % self._tail_limit if self.omitted_bytes else 0
            parts += [
                _read_range(self._tail, ring_start, self._tail_limit),
                _read_range(self._tail, 0, ring_start),
            ]
        return chain(*parts)

    def close(self) -> None:
        """Close the files, which deletes them."""
        for file in (self._head, self._tail):
            if file is not None:
                file.close()
        self._head = self._tail = None


def _write_fully(file: Any, data: bytes) -> None:
    """Write all bytes; an unbuffered file may accept fewer at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _read_range(file: Any, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from one offset to another, or to its end."""
    if file is not None:
        file.seek(start)
        while start < end and (data := file.read(min(CHUNK, end - start))):
            start += len(data)
            yield data
