"""`oncemore` as a person starts it: as a process of its own, with pipes or on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import CompletedProcess

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = [sys.executable, "-W", "error", "-m", "oncemore"]
LEFT_OUT = ("NO_COLOR", "COLUMNS", "PYTHONIOENCODING")


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in LEFT_OUT and not name.startswith("ONCEMORE_")
    }
    return {**kept, "TERM": "xterm", "PYTHONUTF8": "1", "TZ": "UTC", **changes}


def run(*words: str, given: str = "", **changes: str) -> CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, encoding="utf-8", input=given, timeout=100,
        check=False, env=environment(**changes),
    )  # fmt: skip


def told(*words: str, code: int = 0) -> Any:
    """What a command says with --json."""
    ran = run(*words, "--json")
    assert (ran.returncode, ran.stderr) == (code, ""), ran.stderr
    return json.loads(ran.stdout)


def on_a_terminal(*words: str, columns: int = 80, **changes: str) -> str:
    """What a person sees whose terminal has so many columns."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        [*PROGRAM, *words], stdout=theirs, stderr=theirs, stdin=theirs, env=environment(**changes)
    ) as program:
        os.close(theirs)
        seen = b""
        while part := _read(ours):
            seen += part
        program.wait(60)
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # how Linux says that the other side has closed
        return b""
