"""Child processes that run a script of a test and end with it, and what servers need to be started."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import textwrap
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def processes(source: str, *argss: tuple[object, ...]) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a script once per tuple of arguments; the block begins after each has printed "open"."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for args in argss
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unprivileged_uid(*names: str) -> int | None:
    """Return the uid of the first user that exists, if this process is root's: servers refuse root."""
    if os.geteuid() == 0:
        for name in names:
            with suppress(KeyError):
                return pwd.getpwnam(name).pw_uid
    return None
