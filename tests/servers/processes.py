"""Child processes that run a script of a test and end with it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import contextmanager
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
