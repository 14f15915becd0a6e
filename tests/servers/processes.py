"""Processes that run a script of a test's own, and are gone when it ends."""

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
    """Run a script once per tuple of arguments; all have said "open" when the block begins."""
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
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "open\n"
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()
