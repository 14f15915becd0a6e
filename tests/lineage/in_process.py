"""Commands in this process, at a fraction of the time of a program of their own."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

from oncemore.cli import run_command


class CommandEnd(NamedTuple):
    """The exit code of a command, and the text that it has written."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*words: str) -> CommandEnd:
    """Run a command in this process."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = run_command(words)
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return CommandEnd(code, *texts)


def report_of(*words: str) -> Any:
    """Return the JSON that a command prints with --json."""
    end = run_here(*words, "--json")
    assert end.returncode == 0, end.stderr
    return json.loads(end.stdout)
