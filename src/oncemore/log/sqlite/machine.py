"""The place of a SQLite file: is it a disk of this machine, whose turn is it, who is there, what time is it.

* A network file system is refused: its locks pass every test on one machine and fail on two.
* The *door* is a lock on a file beside the store. SQLite's own lock is what makes writing correct; the
  door makes it fair between processes, which SQLite's busy handler does not. Waiting at it is bounded.
* A worker that is *here* holds a lock on a file of its own in a folder beside the store. The kernel drops
  it when the process dies, however it dies, and keeps it while the process is stopped.
* The clock of a store on one machine is the kernel's time since boot, which no wall-clock jump touches
  and all processes share, set once per boot.

All locks are POSIX locks: a forked child does not inherit them. Their trap is that closing *any* descriptor
of a file drops the process's locks on it, so a process opens a door or a worker's file of its own once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.errors import StoreError, UsageError
from oncemore.log.sqlite.files import make_private_folder, open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

REMOTE = ("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs")
DOOR_WAIT_S = 30.0
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
PLAINLY_STUCK_S = 2.0
_NOTE = re.compile(rb"([0-9a-f]{32}) ([0-9]{20})\n")


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
        self.enter(bool)

    def enter(self, first: Callable[[], object]) -> None:
        """Wait for the turn; what is to be done before waiting for anybody is done then."""
        if not self._mine.acquire(False):
            first()
            if not self._mine.acquire(timeout=DOOR_WAIT_S):
                raise StoreError(
                    f"another thread has been writing to {self._path.stem} for {DOOR_WAIT_S:g} s"
                )
        try:
            file = self._file
            if file is None:
                file = self._file = open_private(self._path)
            try:
                fcntl.lockf(file, _TRY)
            except OSError:
                first()
                self._knock(file)  # which finds out whether somebody has it or it cannot be locked at all
        except BaseException:
            self._mine.release()
            raise

    def _knock(self, file: int) -> None:
        """Try until the door opens or the time is up; a blocking lock could not be given up.

        All knock at the same rate, or those who have waited long would come last; only when it is plain
        that somebody holds the door and does not work do they save their strength.
        """
        began = time.monotonic()
        while not _locked(file, self._path):
            waited = time.monotonic() - began
            if waited > DOOR_WAIT_S:
                raise StoreError(
                    f"another process has been writing to {self._path.stem} for {DOOR_WAIT_S:g} s; "
                    "is it stopped?"
                )
            pause = 0.0005 if waited < PLAINLY_STUCK_S else 0.01
            from random import uniform  # only who has to wait needs it

            time.sleep(uniform(pause / 5, pause))  # noqa: S311 - only spreads the knocking

    def note(self, store: str, seq: int) -> None:
        """Keep how far a store had come, beside it; not synced: it may be behind, and never ahead."""
        assert self._file is not None
        with suppress(OSError):  # a full disk: it is then behind
            os.pwrite(self._file, f"{store} {seq:020}\n".encode(), 0)

    def noted(self) -> tuple[str, int]:
        """Return which store had come how far, as far as anybody noted it."""
        assert self._file is not None
        found = _NOTE.fullmatch(os.pread(self._file, 100, 0))
        return (found[1].decode(), int(found[2])) if found else ("", 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the next one in."""
        assert self._file is not None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        finally:
            self._mine.release()


#: One door for each file, kept while the process lives: closing a second would drop the lock of the first.
_doors: dict[Path, Door] = {}


def door(path: Path) -> Door:
    """Return this process's door of a store."""
    return _doors.setdefault(path, Door(path.with_name(path.name + "-door")))


_FLOCK = "hhqqi4x"  # struct flock of Linux on 64 bits: type, whence, start, length, pid
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")
MOST_SWEPT = 100


class Here:
    """A worker of this process; its file is locked until it leaves or the process ends."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    def close(self) -> None:
        """Leave; in a forked child, whose parent the worker belongs to, this does nothing."""
        if _here.get(self._path) is self and _here.pop(self._path, None) is self:
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def forget(self) -> None:
        """In a forked child: the lock is the parent's, only the copy of the descriptor goes."""
        os.close(self._file)


#: The workers of this process: their files must not be opened a second time, not even to ask for them.
_here: dict[Path, Here] = {}


def enter(folder: Path, worker: str) -> Here:
    """Lock a new file for a worker. The door must be held: a file is unlocked for a moment when it is new."""
    path = folder / _plain(worker)
    make_private_folder(folder)
    _sweep(folder)
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"worker {worker} is here already; each needs a name of its own") from None
    ours = _locked(file, path)
    assert ours, "a new file was locked by somebody who did not hold the door"
    _here[path] = here = Here(path, file)
    return here


def gone(folder: Path, worker: str) -> bool:
    """Whether a worker's process is dead, or has left; then nothing is left of its file. Needs the door."""
    path = folder / _plain(worker)
    if path in _here:
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        if not _locked(file, path):
            return False
        path.unlink(missing_ok=True)  # nobody else can be asking: they would have to hold the door
        return True
    finally:
        os.close(file)


def _sweep(folder: Path) -> None:
    """Remove what dead workers left that nobody has asked for, some of it at a time."""
    for left in islice(folder.iterdir(), MOST_SWEPT):
        if _NAME.fullmatch(left.name):
            gone(folder, left.name)


def _plain(worker: str) -> str:
    """Return a worker's name, which is also that of a file; one that could point elsewhere is refused."""
    if not _NAME.fullmatch(worker):
        raise UsageError(
            f"{worker!r} is no name for a worker: 1 to 80 of A-Z a-z 0-9 . _ -, not beginning with a dot"
        )
    return worker


def _locked(file: int, path: Path) -> bool:
    """Lock a file if nobody else has it; return whether it is ours now."""
    try:
        fcntl.lockf(file, _TRY)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
    return True


def is_unlocked(path: Path) -> bool:
    """Whether no process holds the lock of a file; the lock is asked for, never taken."""
    if path in _here:  # our own: to close a second descriptor would drop its lock
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        held = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return bool(held[0] == fcntl.F_UNLCK)
    finally:
        os.close(file)


def forked() -> None:
    """In a child: the parent's doors stay open and unused; none of its workers is the child's."""
    _doors.clear()
    for here in _here.values():
        here.forget()
    _here.clear()


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return what tells this boot of the machine from the others."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Return the seconds since boot, sleep of the machine included."""
    return time.clock_gettime(_BOOT_CLOCK)
