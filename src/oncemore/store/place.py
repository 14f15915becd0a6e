"""The place of a SQLite file: is it a disk of this machine, whose turn is it, what time is it there.

* A network file system is refused: its locks pass every test on one machine and fail on two.
* The *door* is a lock on a file beside the store. SQLite's own lock is what makes writing correct; the
  door makes it fair between processes, which SQLite's busy handler does not. Waiting at it is bounded.
* The clock of a store on one machine is the kernel's time since boot, which no wall-clock jump touches
  and all processes share, set to the wall clock once per boot.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

REMOTE = ("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs")
DOOR_WAIT_S = 30.0


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that a path is on, or nothing where that cannot be told."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    where, kind = Path(), ""
    for mount, fstype in _mounts(table):
        if path.is_relative_to(mount) and len(mount.parts) >= len(where.parts):
            where, kind = mount, fstype
    return kind


def _mounts(table: str) -> Iterator[tuple[Path, str]]:
    for line in table.splitlines():
        before, found, after = line.partition(" - ")
        fields = before.split(" ")
        if found and len(fields) > 4:
            point = fields[4].replace("\\040", " ")
            yield Path(point), after.split(" ")[0]


def check_local(path: Path, kind: str) -> None:
    """Refuse a file on another machine's disk."""
    if kind.removeprefix("fuse.") in REMOTE:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; use a local "
            "disk, or postgresql:// or nats:// to share work between machines"
        )


class Door:
    """A fair lock between processes and threads; `with door:` waits for its turn, at most 30 s."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine = threading.Lock()  # POSIX locks do not exclude the threads of one process
        self._file: int | None = None

    def __enter__(self) -> None:
        if not self._mine.acquire(timeout=DOOR_WAIT_S):
            raise StoreError(f"another thread has been writing to {self._path.stem} for {DOOR_WAIT_S:g} s")
        try:
            self._lock()
        except BaseException:
            self._mine.release()
            raise

    def _lock(self) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        ends = time.monotonic() + DOOR_WAIT_S
        while not self._try():
            if time.monotonic() > ends:
                raise StoreError(
                    f"another process has been writing to {self._path.stem} for {DOOR_WAIT_S:g} s; "
                    "is it stopped?"
                )
            time.sleep(random.uniform(0.0001, 0.0005))  # noqa: S311 - only spreads the knocking

    def _try(self) -> bool:
        assert self._file is not None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise StoreError(f"{self._path} cannot be locked: {error.strerror}") from error
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        finally:
            self._mine.release()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


#: One door for each file in a process: closing a second descriptor would drop the lock of the first.
_doors: dict[Path, Door] = {}


def door(path: Path) -> Door:
    """Return this process's door of a store."""
    return _doors.setdefault(path, Door(path.with_name(path.name + "-door")))


def forget_doors() -> None:
    """In a forked child: the parent's descriptors stay open and unused, the child makes its own."""
    _doors.clear()


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return what tells this boot of the machine from the others."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def since_boot() -> float:
    """Return the seconds since boot, sleep of the machine included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
