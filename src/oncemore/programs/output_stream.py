"""One stream of a program's output on its way to the caller, the spool and the matcher.

Bytes are passed on as they arrive and written to the spool at the same time, so memory holds no more than one
chunk. A slow reader slows the program down, as any pipe does. A reader that has closed its end does not stop
the program: its work continues, and its output is kept.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.programs import output_match

if TYPE_CHECKING:
    from oncemore.programs.output_spool import OutputSpool

CHUNK = 64 * 1024
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
            data = os.read(self.read_fd, CHUNK)
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
