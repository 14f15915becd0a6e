"""Reads a policy file: a regular one, of a bounded size, without ever waiting.

A pipe, a device or a folder is refused by what it is, not by what happens when somebody reads it. What
identifies a file's content without reading it (its `Stamp`) is taken from the open file itself.
"""

from __future__ import annotations

import errno
import os
import stat

from oncemore._values import Value
from oncemore.policy.files.faults import Mark, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

#: The largest profile of ours has 5 KiB. The limit is what is read in less than a tenth of a second.
MOST_BYTES: Final = 32 * 1024

_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_WHY: Final = {
    errno.ENOENT: "there is no such file",
    errno.EACCES: "this user may not read it",
    errno.EPERM: "this user may not read it",
    errno.ELOOP: "its links lead in a circle",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ENXIO: "it is a socket, not a file",
}


class Stamp(Value):
    """What tells that a file may have changed."""

    path: str
    device: int
    inode: int
    size: int
    modified: int
    changed: int


def read(path: str) -> tuple[bytes, Stamp]:
    """Return the bytes of a policy file and its stamp, or refuse it with the reason."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        raise refuse(Mark(path), f"cannot be read: {_why(error)}") from error
    except ValueError as error:
        raise refuse(Mark(repr(path)), "cannot be read: no file can have this name") from error
    try:
        facts = os.fstat(handle)
        _check(path, facts)
        data = _all(handle, path)
    finally:
        os.close(handle)
    return data, _stamp(path, facts)


def stamp(path: str) -> Stamp | None:
    """Return the stamp of a file as it is now, or None when it is gone."""
    try:
        return _stamp(path, os.stat(path))  # noqa: PTH116 - a path here is a string
    except (OSError, ValueError):
        return None


def _all(handle: int, path: str) -> bytes:
    """Read to the end, but never more than the limit: the file may grow meanwhile."""
    parts, left = [], MOST_BYTES + 1
    try:
        while left > 0 and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise refuse(Mark(path), f"cannot be read: {_why(error)}") from error
    if left <= 0:
        raise refuse(Mark(path), f"is larger than {MOST_BYTES // 1024} KiB")
    return b"".join(parts)


def _check(path: str, facts: os.stat_result) -> None:
    kind = stat.S_IFMT(facts.st_mode)
    if kind != stat.S_IFREG:
        raise refuse(Mark(path), f"is {_KINDS.get(kind, 'something')}, not a file")
    if facts.st_size > MOST_BYTES:
        raise refuse(Mark(path), f"is larger than {MOST_BYTES // 1024} KiB")


def _why(error: OSError) -> str:
    return _WHY.get(error.errno or 0) or error.strerror or "the system refused"


def _stamp(path: str, facts: os.stat_result) -> Stamp:
    return Stamp(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
