"""The files that a store creates: each has one name, and none of them is reached through a link.

Locks, the write-ahead file and the reserve of a SQLite store are found by the name of its database. A file
with two hard links would have two sets of them, and two processes would do the same work. A symbolic link in
the last component would let another user choose which file we write to. Links in parent folders are
resolved, because all names that go through them lead to the same folder.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from oncemore.errors import StoreError


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file whose parent folders are resolved; refuse a symbolic link."""
    absolute = Path(path).absolute()
    found = absolute.parent.resolve() / absolute.name
    if found.is_symlink():
        raise StoreError(f"{found} is a symbolic link to {found.resolve()}; name the target itself")
    return found


def file_identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file at a path, or None when no file can be seen there."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def file_changed(path: Path) -> StoreError:
    """Return the error of a process whose database is no longer the file at its path."""
    replaced = file_identity(str(path)) is not None
    return StoreError(
        f"{path} was {'replaced by another file' if replaced else 'deleted or moved'} while this process "
        "had it open: what is written now could not be found again, so nothing is acknowledged. Stop all "
        "processes that use it, put the file back, and start them again"
    )


def companions_alone(path: Path, companions: list[str]) -> StoreError:
    """Return the error of a start that finds companions of a database without the database."""
    return StoreError(
        f"{path} is missing, but {', '.join(companions)} of it are here: the database was deleted or moved. "
        f"Put it back, or remove the companions (oncemore doctor --store {path} --remove-companions) and "
        "then restore a backup, or begin an empty store, which runs all work again"
    )


def check_links(path: Path) -> None:
    """Refuse a file that is a symbolic link or has a second hard link; a missing file is fine."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise _symbolic(path)
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        raise _hard(path, status.st_nlink)


def open_private(path: Path, flags: int = 0, mode: int = 0o600) -> int:
    """Open a file, follow no link, and create it for its owner alone unless `mode` says otherwise."""
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _symbolic(path) from None
        raise
    links = os.fstat(file).st_nlink
    if links > 1:
        os.close(file)
        raise _hard(path, links)
    return file


def make_private_folder(folder: Path) -> None:
    """Make a folder for its owner alone; refuse one in which another user could change something.

    A folder whose name can be guessed, in the temporary directory, may have been made by another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise _symbolic(folder)
    if status.st_uid not in (os.geteuid(), folder.parent.stat().st_uid):
        raise StoreError(f"{folder} belongs to another user (uid {status.st_uid}); remove it, or set TMPDIR")
    if status.st_mode & 0o022:
        raise StoreError(f"{folder} can be written to by other users; chmod 700 {folder}")


def _symbolic(path: Path) -> StoreError:
    return StoreError(f"{path} is a symbolic link; remove it, and a file of its own takes its place")


def _hard(path: Path, links: int) -> StoreError:
    return StoreError(
        f"{path} has {links} hard links: under a second name the same work would run twice; remove the other "
        f"name (find it with: find FOLDER -samefile {path})"
    )
