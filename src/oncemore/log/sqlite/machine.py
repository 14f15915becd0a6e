"""The machine of a SQLite store: its file system, the locks of its workers, and its clock.

* A network file system is refused: its locks pass every test on one machine and fail on two.
* A worker holds a lock on a file of its own in a folder beside the store. The kernel releases it when the
  process dies in any way, and keeps it while the process is stopped.
* The clock is the kernel's time since boot: no jump of the wall clock affects it, and all processes share it.

The locks are POSIX locks, as the store's own (`log.sqlite.commit`): closing *any* descriptor of a file drops
the process's locks on it, so a process opens the files of its own workers only once.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.errors import StoreError, UsageError
from oncemore.log.sqlite.commit import forget_locks, try_lock
from oncemore.log.sqlite.files import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

REMOTE = ("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs")


def file_system_type(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system of a path, or "" if it is not known."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    nearest, kind = Path(), ""
    for mount, mount_kind in _read_mounts(table):
        # The longest mount point wins, and of equal ones the last: it hides the earlier mount.
        if path.is_relative_to(mount) and len(mount.parts) >= len(nearest.parts):
            nearest, kind = mount, mount_kind
    return kind


def _read_mounts(table: str) -> Iterator[tuple[Path, str]]:
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) > 4:
            point = fields[4].replace("\\040", " ")  # the kernel escapes spaces
            yield Path(point), after.split(" ")[0]


def check_local(path: Path, kind: str) -> None:
    """Refuse a file on a network file system."""
    if kind.removeprefix("fuse.") in REMOTE:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; use a local "
            "disk, or postgresql://, mysql:// or nats:// to share work between machines"
        )


_FLOCK = "hhqqi4x"  # struct flock of Linux on 64 bits: type, whence, start, length, pid
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")
#: Files of dead workers that are checked at a time.
MAX_CHECKED_FILES = 100


class SqliteWorkerLock:
    """The lock of a worker of this process, held until it is closed or the process ends."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    def close(self) -> None:
        """Release the lock and delete its file; does nothing in a forked child: the lock is the parent's."""
        if _own_workers.get(self._path) is self and _own_workers.pop(self._path, None) is self:
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def close_in_child(self) -> None:
        """In a forked child: close the copy of the descriptor; the lock remains the parent's."""
        os.close(self._file)


#: The worker locks of this process: their files must not be opened again, not even to query the lock.
_own_workers: dict[Path, SqliteWorkerLock] = {}


def lock_worker_file(folder: Path, worker: str) -> SqliteWorkerLock:
    """Lock a new file for a worker.

    The caller holds the store's lock: a new file is unlocked for a moment, and would look like a dead worker.
    """
    path = folder / _check_worker_name(worker)
    make_private_folder(folder)
    _remove_dead_worker_files(folder)
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"worker {worker} is already registered; each worker needs its own name") from None
    is_locked = try_lock(file, path)
    assert is_locked, "a new worker file was locked by a process without the store's lock"
    _own_workers[path] = worker_lock = SqliteWorkerLock(path, file)
    return worker_lock


def is_worker_gone(folder: Path, worker: str) -> bool:
    """Whether a worker's process has ended; deletes its file then. The caller holds the store's lock."""
    path = folder / _check_worker_name(worker)
    if path in _own_workers:
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        if not try_lock(file, path):
            return False
        path.unlink(missing_ok=True)  # no race: every other check needs the store's lock
        return True
    finally:
        os.close(file)


def _remove_dead_worker_files(folder: Path) -> None:
    """Delete files of dead workers that no process has checked, a bounded number at a time."""
    for file in islice(folder.iterdir(), MAX_CHECKED_FILES):
        if _NAME.fullmatch(file.name):
            is_worker_gone(folder, file.name)


def _check_worker_name(worker: str) -> str:
    """Return a worker's name; refuse one that is not safe as a file name."""
    if not _NAME.fullmatch(worker):
        raise UsageError(
            f"{worker!r} is not a name for a worker: 1 to 80 of A-Z a-z 0-9 . _ -, not beginning with a dot"
        )
    return worker


def is_unlocked(path: Path) -> bool:
    """Whether no process holds the lock of a file; queries the lock without taking it."""
    if path in _own_workers:  # closing a second descriptor would drop our own lock
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        lock_type, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
        return bool(lock_type == fcntl.F_UNLCK)
    finally:
        os.close(file)


def reset_after_fork() -> None:
    """In a forked child: drop the parent's locks without closing them; its workers are not the child's."""
    forget_locks()
    for worker_lock in _own_workers.values():
        worker_lock.close_in_child()
    _own_workers.clear()


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return the kernel's id of this boot, or "" if the system has none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
