"""Finds the executable of a command, before an attempt is counted.

A command that does not exist is a mistake of the caller, not a failure of the work. The checks are those of
the kernel: the file, the permission to execute it, the interpreter in its first line.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from oncemore.errors import UsageError
from oncemore.programs.exit_rules import EXIT_CANNOT_RUN, EXIT_NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_HEAD_BYTES = 256
#: The folders to search if the environment has no PATH; `execvp` uses the same.
_DEFAULT_PATH = "/bin:/usr/bin"


class CommandNotRunnable(UsageError):
    """The command does not exist or cannot be run; `code` is the exit code that a shell would return."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def find_executable(word: str, env: Mapping[str, str], cwd: str | None) -> str:
    """Return the path of a command relative to `cwd`; raise `CommandNotRunnable` if it cannot be run."""
    if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - Path refuses names that are not text
        raise CommandNotRunnable(
            f"--cwd is {cwd!r}, which is not a folder; give an existing one", EXIT_CANNOT_RUN
        )
    if not word:
        raise CommandNotRunnable("the command is empty; write it after --", EXIT_NOT_FOUND)
    if "/" in word:
        return _check_executable(word, word, cwd)
    # As in a shell: a file that cannot be run is only reported if no later folder has one that can.
    first_fault: CommandNotRunnable | None = None
    for folder in env.get("PATH", _DEFAULT_PATH).split(os.pathsep):
        try:
            return _check_executable(word, os.path.join(folder, word), cwd)  # noqa: PTH118
        except CommandNotRunnable as fault:
            first_fault = first_fault or (fault if fault.code == EXIT_CANNOT_RUN else None)
    raise first_fault or CommandNotRunnable(
        f"{word}: there is no such command on the PATH; write its path, or install it", EXIT_NOT_FOUND
    )


def _check_executable(word: str, candidate: str, cwd: str | None) -> str:
    path = os.path.join(cwd or "", candidate)  # noqa: PTH118
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except (OSError, ValueError) as error:
        # A ValueError comes from a zero byte, which no path may hold.
        raise CommandNotRunnable(
            f"{word}: {getattr(error, 'strerror', None) or 'it is not a path'}",
            EXIT_CANNOT_RUN if isinstance(error, PermissionError) else EXIT_NOT_FOUND,
        ) from None
    if not stat.S_ISREG(mode):
        raise CommandNotRunnable(f"{word} is not a file, so it cannot be run", EXIT_CANNOT_RUN)
    if not os.access(path, os.X_OK):
        raise CommandNotRunnable(
            f"{word} may not be executed; allow it with `chmod +x {word}`", EXIT_CANNOT_RUN
        )
    _check_interpreter(word, path)
    return candidate


def _check_interpreter(word: str, path: str) -> None:
    """Refuse a script whose interpreter is missing, or that names none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(_MAX_HEAD_BYTES)
    except OSError:
        return  # the kernel can execute a file that this user may not read
    # The kernel takes the first word after "#!", separated by blanks or tabs, and no more than one line.
    if head.startswith(b"#!"):
        names = [name for name in head[2:].partition(b"\n")[0].replace(b"\t", b" ").split(b" ") if name]
        if not names or not os.access(names[0], os.X_OK):
            name = names[0].decode(errors="replace") if names else ""
            ends_with_return = head.partition(b"\n")[0].endswith(b"\r")
            hint = " (its line ends with a carriage return)" if ends_with_return else ""
            raise CommandNotRunnable(
                f"{word}: its interpreter {name!r} does not exist{hint}; correct its first line",
                EXIT_CANNOT_RUN,
            )
    # An executable without "#!" and without a binary header: the kernel answers ENOEXEC.
    elif head.isascii() and b"\0" not in head:
        raise CommandNotRunnable(
            f"{word} is neither a program nor a script: its first line names no interpreter; begin it with "
            f"#!/bin/sh, or name an interpreter: -- sh {word}",
            EXIT_CANNOT_RUN,
        )
