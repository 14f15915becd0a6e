"""A sink that runs a program: one message each, as JSON on its standard input.

Never through a shell: the words are given to the program as they are. It runs in a process group of its own,
which is killed as a whole when its time is up, so that nothing it started stays behind. What it prints goes
nowhere; that it ended with 0 is what counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore.errors import TransientError, UsageError
from oncemore.messaging.sinks import LONGEST_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.messaging.message import Message

#: How long a killed program is waited for; one that the kernel cannot end is left to it.
REAP_S = 5.0


class Command:
    """Runs a program for each message; that it ends with 0 means that the message arrived.

    argv     the program and its words; a name without a slash is looked for on the PATH
    timeout  seconds until it is killed, with everything it started in its process group
    """

    def __init__(self, argv: Sequence[str], *, timeout: float = 30.0) -> None:
        words = () if isinstance(argv, str | bytes) else tuple(argv)
        if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
            # The words are not shown: which of them is a password only the program knows.
            raise UsageError(
                f"argv is a {type(argv).__name__}; it takes a list of texts: the program and its words, no "
                "shell's line"
            )
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not number or not 0 < timeout <= LONGEST_TIMEOUT_S:
            raise UsageError(
                f"timeout is {timeout!r}; it takes more than 0 and up to {LONGEST_TIMEOUT_S:g} s"
            )
        self._argv, self._timeout = words, float(timeout)

    def __repr__(self) -> str:
        return f"<oncemore.Command {self._argv[0]}>"  # its other words may hold what is nobody's business

    def __call__(self, message: Message) -> None:
        """Run the program on a message; raise when it does not end with 0, or not in time."""
        line = message.json_line()
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(  # noqa: S603 - no shell, and the words are the operator's
            self._argv, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        try:
            process.communicate(line, timeout=self._timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._argv[0]} did not end within {self._timeout:g} s") from None
        finally:
            if process.poll() is None:
                _end(process)
        if process.returncode:
            raise TransientError(f"{self._argv[0]} ended with {process.returncode}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its whole process group, whose id is its own until it was waited for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
