"""The machine of a SQLite store: its file system, the store's lock, the locks of workers, and the clock.

* A network file system is refused: its locks pass every test on one machine and fail on two.
* The lock file beside the store serialises writers. SQLite's own lock makes writing correct; the lock file
  makes it fair between processes, unlike SQLite's busy handler. Waiting for it is bounded.
* A worker holds a lock on a file of its own in a folder beside the store. The kernel releases it when the
  process dies in any way, and keeps it while the process is stopped.
* The clock is the kernel's time since boot: no jump of the wall clock affects it, and all processes share it.

All locks are POSIX locks: a forked child does not inherit them. Closing *any* descriptor of a file drops the
process's locks on it, so a process opens the lock file and the files of its own workers only once.
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
LOCK_WAIT_S = 30.0
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
#: After this time the holder of a lock is taken for stuck, and waiters poll less often.
STUCK_S = 2.0
#: Name of the store and its last synced seq, as the lock file holds them.
_PROGRESS = re.compile(rb"([0-9a-f]{32}) ([0-9]{20})\n")


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
            "disk, or postgresql:// or nats:// to share work between machines"
        )


class FairFileLock:
    """A fair lock between processes and threads; `with lock:` waits at most `LOCK_WAIT_S`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread_lock = threading.Lock()  # POSIX locks do not exclude the threads of one process
        self._file: int | None = None

    def __enter__(self) -> None:
        self.acquire_lock(bool)

    def acquire_lock(self, before_wait: Callable[[], object]) -> None:
        """Acquire the lock; call `before_wait` if it is held by another thread or process."""
        if not self._thread_lock.acquire(False):
            before_wait()
            if not self._thread_lock.acquire(timeout=LOCK_WAIT_S):
                raise StoreError(
                    f"another thread has been writing to {self._path.stem} for {LOCK_WAIT_S:g} s"
                )
        try:
            # Opened once and kept: closing it would drop the lock that another thread may hold.
            file = self._file
            if file is None:
                file = self._file = open_private(self._path)
            try:
                fcntl.lockf(file, _TRY)
            except OSError:
                before_wait()
                # It also tells a lock that is held from a file that cannot be locked at all.
                self._wait_for_lock(file)
        except BaseException:
            self._thread_lock.release()
            raise

    def _wait_for_lock(self, file: int) -> None:
        """Poll until the lock is free or the time is up; a blocking call could not be abandoned.

        All waiters poll at the same rate: with a growing pause, the longest waiting would come last. They
        poll less often only when the holder seems stuck.
        """
        started = time.monotonic()
        while not _try_lock(file, self._path):
            waited = time.monotonic() - started
            if waited > LOCK_WAIT_S:
                raise StoreError(
                    f"another process has been writing to {self._path.stem} for {LOCK_WAIT_S:g} s; "
                    "is it stopped?"
                )
            pause = 0.0005 if waited < STUCK_S else 0.01
            from random import uniform  # imported here, because most processes never wait

            time.sleep(uniform(pause / 5, pause))  # noqa: S311 - only spreads the polling

    def write_progress(self, store: str, seq: int) -> None:
        """Record the last synced seq of a store; not synced itself, so it may be behind and never ahead."""
        assert self._file is not None
        with suppress(OSError):  # on a full disk the record is behind, and nothing else happens
            os.pwrite(self._file, f"{store} {seq:020}\n".encode(), 0)

    def read_progress(self) -> tuple[str, int]:
        """Return the name of the store and its recorded seq; ("", 0) if nothing is recorded."""
        assert self._file is not None
        match = _PROGRESS.fullmatch(os.pread(self._file, 100, 0))
        return (match[1].decode(), int(match[2])) if match else ("", 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release_lock()

    def release_lock(self) -> None:
        """Release the lock."""
        assert self._file is not None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        finally:
            self._thread_lock.release()


#: One lock for each file, kept while the process lives: closing a second would drop the lock of the first.
_locks: dict[Path, FairFileLock] = {}


def store_lock(path: Path) -> FairFileLock:
    """Return this process's lock of a store."""
    return _locks.setdefault(path, FairFileLock(path.with_name(path.name + "-door")))


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
    is_locked = _try_lock(file, path)
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
        if not _try_lock(file, path):
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


def _try_lock(file: int, path: Path) -> bool:
    """Lock a file if no other process has locked it; return whether this process has it now."""
    try:
        fcntl.lockf(file, _TRY)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
    return True


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
    _locks.clear()
    for worker_lock in _own_workers.values():
        worker_lock.close_in_child()
    _own_workers.clear()


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return the kernel's id of this boot, or "" if the system has none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """Return the seconds since boot, including the time that the machine slept."""
    return time.clock_gettime(_BOOT_CLOCK)
