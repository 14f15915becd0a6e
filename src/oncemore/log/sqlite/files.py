"""The files of a SQLite store: their links and permissions, the reserve of disk space, and their errors.

Locks, the write-ahead log and the reserve of a store are found by the name of its database. A file with two
hard links would have two sets of them, and two processes would do the same work. A symbolic link in the last
component would let another user choose the file that the store writes. Links in parent folders are resolved,
because all names that go through them lead to the same folder.

**The reserve.** A disk that is full when an attempt starts does no harm: nothing has happened. One that is
full when an attempt ends does: the effect exists and cannot be recorded. So the reserve file occupies a
megabyte. When the disk is full it is deleted, and the results of running attempts are written into the freed
space; new attempts are refused until the reserve could be allocated again.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    import apsw

    from oncemore.log.store import Batch

#: Size of the reserve file.
RESERVE_BYTES = 1024 * 1024
#: Free space that new work needs: the reserve, and as much again to write.
MIN_FREE_BYTES = 2 * RESERVE_BYTES
#: With less free space than this, an I/O error is reported as a full disk.
SCARCE_BYTES = 64 * 1024

#: States in which an attempt runs: a batch that leads to one of them needs space for a later batch.
RUNNING_STATES = ("RUNNING", "SENDING")
#: Kinds of entities whose final batches may use the reserve.
RESERVED_KINDS = ("run", "event")

_ADVICE = {
    "BusyError": "another program holds the file",
    "ReadOnlyError": "the file or its folder cannot be written",
    "CantOpenError": "the file cannot be opened",
    "NotADBError": "this is not a store of oncemore",
    "CorruptError": "the file is damaged; restore a backup",
    "IOError": "the disk failed; read the state again to learn what was stored",
}


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file with its parent folders resolved; refuse a symbolic link."""
    absolute = Path(path).absolute()
    resolved = absolute.parent.resolve() / absolute.name
    if resolved.is_symlink():
        raise StoreError(f"{resolved} is a symbolic link to {resolved.resolve()}; name the target itself")
    return resolved


def companions_alone(path: Path, companions: list[str]) -> StoreError:
    """Return the error for companion files whose database is missing."""
    return StoreError(
        f"{path} is missing, but {', '.join(companions)} of it are here: the database was deleted or moved. "
        f"Put it back, or remove the companions (oncemore store doctor --store {path} --remove-companions) "
        "and then restore a backup, or begin an empty store, which runs all work again"
    )


def check_links(path: Path) -> None:
    """Refuse a file that is a symbolic link or has a second hard link; a missing file is fine."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise _symlink_error(path)
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        raise _hard_link_error(path, status.st_nlink)


def open_private(path: Path, flags: int = 0, mode: int = 0o600) -> int:
    """Open a file without following links; create it for its owner alone unless `mode` says otherwise."""
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _symlink_error(path) from None
        raise
    # Of the opened file, not of the path: the path could be replaced in between.
    links = os.fstat(file).st_nlink
    if links > 1:
        os.close(file)
        raise _hard_link_error(path, links)
    return file


def make_private_folder(folder: Path) -> None:
    """Create a folder for its owner alone; refuse one that another user owns or can write to.

    A predictable name in the temporary directory may have been created by another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise _symlink_error(folder)
    if status.st_uid not in (os.geteuid(), folder.parent.stat().st_uid):
        raise StoreError(f"{folder} belongs to another user (uid {status.st_uid}); remove it, or set TMPDIR")
    if status.st_mode & 0o022:
        raise StoreError(f"{folder} can be written to by other users; chmod 700 {folder}")


def _symlink_error(path: Path) -> StoreError:
    return StoreError(f"{path} is a symbolic link; remove it, and the store creates a file in its place")


def _hard_link_error(path: Path, links: int) -> StoreError:
    return StoreError(
        f"{path} has {links} hard links: under a second name the same work would run twice; remove the other "
        f"name (find it with: find FOLDER -samefile {path})"
    )


def disk_space_left(path: Path) -> int | None:
    """Return the free bytes of the disk of a file, or None if they cannot be read."""
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def disk_full_error(path: Path) -> str:
    """Return the message for a full disk."""
    return (
        f"the disk of {path.parent} is full: {disk_space_left(path) or 0:,} bytes are left, and "
        f"{MIN_FREE_BYTES:,} or more are needed; nothing was stored, free some space and call again"
    )


def build_store_error(error: apsw.Error, path: Path) -> str:
    """Return a message with the error of SQLite and, if it is known, the remedy."""
    name, free = type(error).__name__, disk_space_left(path)
    # SQLite reports some writes on a full disk as I/O errors.
    if name in ("IOError", "CantOpenError") and free is not None and free < SCARCE_BYTES:
        name = "FullError"
    if name == "FullError":
        return f"{disk_full_error(path)} ({type(error).__name__}: {error})"
    return f"{_ADVICE.get(name, 'SQLite refused')} ({name}: {error})"


class DiskReserve:
    """The reserve file of a store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_released = False

    def allocate_file(self) -> bool:
        """Allocate the file, unless it is allocated; return whether it is."""
        try:
            file = open_private(self._path)
        except OSError:
            return False
        try:
            if os.fstat(file).st_size < RESERVE_BYTES:
                # Not truncate(): a sparse file would reserve nothing.
                os.posix_fallocate(file, 0, RESERVE_BYTES)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)
        self.is_released = False
        return True

    def release_file(self) -> bool:
        """Delete the file to free its space; return whether it existed."""
        self.is_released = True
        with suppress(OSError):
            self._path.unlink()
            return True
        return False


def begins_attempt(batch: Batch) -> bool:
    """Whether a batch creates an entity or starts an attempt, and does not end another one.

    Such a batch can be refused without loss while the reserve is used up.
    """
    starts = any(write.by.state in RUNNING_STATES or not write.expect for write in batch.writes)
    return starts and not ends_attempt(batch)


def ends_attempt(batch: Batch) -> bool:
    """Whether a batch ends an attempt: its effect has happened, so it must be recorded."""
    return any(
        write.expect and write.by.kind in RESERVED_KINDS and write.by.state not in RUNNING_STATES
        for write in batch.writes
    )
