"""The output of a program, on its way to the caller, to the spool on disk and to the matcher.

Bytes are passed on as they arrive and written to the spool at the same time, so memory holds no more than one
chunk. A slow reader slows the program down, as any pipe does. A reader that has closed its end does not stop
the program: its work continues, and its output is kept until it becomes an artifact.

Output beyond the limit of the spool keeps its beginning and its end, half of the space each: the first half
as it comes, the second in a ring buffer that overwrites itself. The bytes in between are counted, and a line
in their place says how many are missing. The files have no names, so a process that dies leaves none behind.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.programs import output_match

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How many bytes are read from a pipe, and from the spool.
CHUNK_BYTES, SPOOL_CHUNK_BYTES = 64 * 1024, 256 * 1024
#: How long, in all, an expression may stall the program, and how long it may take at the end.
MATCH_TIMEOUT_S = 5.0


class OutputStream:
    """Reads one stream of a program and passes it on.

    read_fd    where the bytes come from
    target_fd  where they are passed on to; None passes nothing on
    matcher    searches the bytes for expressions; None searches nothing
    number     0 for standard output, 1 for standard error
    """

    def __init__(
        self,
        read_fd: int,
        spool: OutputSpool,
        target_fd: int | None,
        matcher: OutputMatcher | None,
        number: int,
    ) -> None:
        self.read_fd, self.note = read_fd, ""
        self._spool, self._target_fd, self._matcher, self._number = spool, target_fd, matcher, number
        os.set_blocking(read_fd, False)

    def read_available(self) -> bool:
        """Pass on and keep the bytes that have arrived; return whether more can come."""
        try:
            data = os.read(self.read_fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        # The spool comes first: the output is kept even if the caller's terminal blocks for good.
        self._spool.write(data)
        if self._matcher is not None:
            self._matcher.feed_output(self._number, data)
        if self._target_fd is not None:
            self._write_through(self._target_fd, data)
        return True

    def read_rest(self) -> None:
        """Read until the pipe is empty; a process that still holds the other end is not waited for."""
        while select.select([self.read_fd], [], [], 0)[0] and self.read_available():
            continue

    def _write_through(self, target_fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(target_fd, left) :]
            except BlockingIOError:  # another process that shares the terminal made it non-blocking
                select.select([], [target_fd], [], 1.0)
            except BrokenPipeError:
                self._target_fd = None  # the reader has closed its end, as `head` does
                return
            except OSError as error:
                self._target_fd = None
                self.note = f"output could not be passed on: {error.strerror}"
                return


class OutputMatcher:
    """Searches output for expressions in a separate process, which can be stopped while `re` runs."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", str(Path(output_match.__file__))],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        # Non-blocking, so that a slow expression cannot stall the program for longer than the timeout.
        self._stdin_fd = self._process.stdin.fileno()
        os.set_blocking(self._stdin_fd, False)
        self._stalled_s, self._accepts_input = 0.0, True
        self._send_bytes(json.dumps({"patterns": patterns}).encode() + b"\n")

    def feed_output(self, number: int, data: bytes) -> None:
        """Send the next bytes of a stream to the process."""
        if self._accepts_input:
            self._send_bytes(bytes([number]) + len(data).to_bytes(4, "big") + data)

    def _send_bytes(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._accepts_input:
            try:
                left = left[os.write(self._stdin_fd, left) :]
            except BlockingIOError:
                # A slow expression stalls the program, but for no longer than the timeout over all chunks.
                began = time.monotonic()
                select.select([], [self._stdin_fd], [], max(0.0, MATCH_TIMEOUT_S - self._stalled_s))
                self._stalled_s += time.monotonic() - began
                self._accepts_input = self._stalled_s < MATCH_TIMEOUT_S
            except BrokenPipeError:
                self._accepts_input = False  # the process exits at the first match

    def finish_search(self, notes: list[str]) -> bool:
        """Return whether a line matched; an expression that takes too long adds a note and does not match."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        # The end of its input makes the process search the last line and exit.
        process.stdin.close()
        self._accepts_input = False
        try:
            return process.wait(max(0.1, MATCH_TIMEOUT_S - self._stalled_s)) == output_match.EXIT_MATCH
        except subprocess.TimeoutExpired:
            notes.append(
                f"--retry-on-output took more than {MATCH_TIMEOUT_S:g} s and was stopped; write a "
                "simpler expression"
            )
            return False

    def close(self) -> None:
        """Kill the process and reap it."""
        if self._process is not None:
            self._process.kill()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


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

    def read(self, size: int = SPOOL_CHUNK_BYTES) -> bytes:
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
        while start < end and (data := file.read(min(SPOOL_CHUNK_BYTES, end - start))):
            start += len(data)
            yield data
