"""Where a command is, and whether it can be run: asked before an attempt is counted.

A command that does not exist is a mistake of whoever typed it, not a failure of the work. What the kernel
would say is found out beforehand: the file, the right to run it, the interpreter in its first line.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from oncemore.errors import UsageError
from oncemore.programs.exit_rules import CANNOT_RUN, NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_LINE = 256
#: Where commands are looked for when nobody says, as `execvp` does.
_PATH = "/bin:/usr/bin"


class CannotRun(UsageError):
    """A command is not there, or cannot be run; `code` is what a shell would end with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def find(word: str, env: Mapping[str, str], cwd: str | None) -> str:
    """Return the path of a command, seen from where it runs; say why it cannot be run."""
    if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - bytes that are no text have no Path
        raise CannotRun(f"--cwd is {cwd!r}, which is no folder", CANNOT_RUN)
    if not word:
        raise CannotRun("the command is empty; write it after --", NOT_FOUND)
    if "/" in word:
        return _checked(word, word, cwd)
    barred: CannotRun | None = None
    for folder in env.get("PATH", _PATH).split(os.pathsep):
        try:
            return _checked(word, os.path.join(folder, word), cwd)  # noqa: PTH118
        except CannotRun as fault:
            barred = barred or (fault if fault.code == CANNOT_RUN else None)
    raise barred or CannotRun(
        f"{word}: there is no such command on the PATH; write its path, or install it", NOT_FOUND
    )


def _checked(word: str, seen: str, cwd: str | None) -> str:
    path = os.path.join(cwd or "", seen)  # noqa: PTH118
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except (OSError, ValueError) as error:
        barred = isinstance(error, PermissionError)
        raise CannotRun(
            f"{word}: {getattr(error, 'strerror', None) or 'it is no path'}",
            CANNOT_RUN if barred else NOT_FOUND,
        ) from None
    if not stat.S_ISREG(mode):
        raise CannotRun(f"{word} is no file that could be run", CANNOT_RUN)
    if not os.access(path, os.X_OK):
        raise CannotRun(f"{word} may not be executed; `chmod +x {word}` allows it", CANNOT_RUN)
    _check_head(word, path)
    return seen


def _check_head(word: str, path: str) -> None:
    """Refuse a script whose interpreter is missing, or that names none; what cannot be read may be run."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(_LONGEST_LINE)
    except OSError:
        return
    if head.startswith(b"#!"):
        names = [name for name in head[2:].partition(b"\n")[0].replace(b"\t", b" ").split(b" ") if name]
        if not names or not os.access(names[0], os.X_OK):
            name = names[0].decode(errors="replace") if names else ""
            hint = (
                " (its line ends with a carriage return)" if head.partition(b"\n")[0].endswith(b"\r") else ""
            )
            raise CannotRun(f"{word}: its interpreter {name!r} is not there{hint}", CANNOT_RUN)
    elif head.isascii() and b"\0" not in head:
        raise CannotRun(
            f"{word} is neither a program nor a script: its first line names no interpreter; begin it with "
            "#!/bin/sh, or run it with one: -- sh " + word,
            CANNOT_RUN,
        )
