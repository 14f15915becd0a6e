"""Copies and backups of a SQLite file, and the files beside it.

**A copy** of a log must not continue by itself: effects of the original since then would happen twice. Three
facts reveal one, and each is checked when the file is opened:

    the mark      a backup is marked as one
    the inode     the file stores its own inode: a copied, restored or sent file has another one; a file that
                  was renamed or moved within its disk has not
    the progress  the lock file beside the store records the last synced entry: a file that was put back in
                  place with its inode is behind it

None of them reveals a whole disk or machine that was reset to an earlier state, lock file included. The
finding is stored in the file until an operator acknowledges it.

**A backup** is made by SQLite's online backup from one snapshot, while other processes write. The copy is
written under a temporary name, then marked, checked and synced before it gets its real name. The next backup
deletes the leftovers of a killed one.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw

from oncemore._platform import sync_folder
from oncemore.errors import InProgress, StoreError, UsageError
from oncemore.log.sqlite.files import build_store_error, check_links, companions_alone
from oncemore.log.sqlite.machine import is_unlocked
from oncemore.log.sqlite.queries import (
    HEAD_LIST,
    LAST_SEQ,
    SELECT_ENTRIES,
    fetch_rows,
    row_to_entry,
    row_to_head,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from oncemore.log.sqlite.commit import FairFileLock
    from oncemore.log.sqlite.store import SqliteStore
    from oncemore.log.store import CopyCheck

#: Pages that are copied at a time.
PAGES = 256
#: Suffixes of the files beside a database: those of SQLite, then ours.
COMPANIONS = ("-wal", "-shm", "-door", "-reserve", "-workers", "-programs")

#: Our tables, and the query for all objects in the file: type, name, and the table it belongs to.
TABLES = frozenset({"meta", "head", "log"})
OBJECTS = "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name"

_PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")


def identify_file(connection: apsw.Connection, path: Path, lock: FairFileLock) -> str:
    """Return the name of the store in a file, and record in the file whether it is a copy.

    The caller holds the store's lock.
    """
    with connection:
        meta = dict(fetch_rows(connection, "SELECT name, value FROM meta"))
        ((last_seq,),) = fetch_rows(connection, LAST_SEQ)
        name: Any = meta.get("store")
        (recorded_name, recorded_seq), inode = lock.read_progress(), path.stat().st_ino
        reason = meta.get("copied", "")
        if name is None:
            name = os.urandom(16).hex()
        elif not reason:
            recorded_seq = recorded_seq if recorded_name == name else 0
            reason = _copy_evidence(path, inode != meta["home"], recorded_seq, last_seq)
        identity = {"store": name, "home": inode, "copied": reason}
        is_new = any(meta.get(field) != value for field, value in identity.items())
        if is_new:
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", identity.items())
    if is_new:
        # Into the database file: a copy made without the write-ahead log must be recognised too.
        connection.pragma("wal_checkpoint", "PASSIVE")
    if not reason:
        lock.write_progress(name, last_seq)
    return str(name)


def _copy_evidence(path: Path, has_other_inode: bool, recorded_seq: int, last_seq: int) -> str:
    """Return the reason why a file is a copy, or "" if it is not."""
    if has_other_inode:
        return f"{path} was copied or restored: it is not the file that was written before"
    if recorded_seq > last_seq:
        return (
            f"{path} was put back to an earlier state: entry {recorded_seq} had been written, and its last "
            f"entry is {last_seq}"
        )
    return ""


def format_utc(seconds: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def write_backup(
    store: SqliteStore, to: Path, check: CopyCheck, progress: Callable[[int, int], object]
) -> None:
    """Copy, mark, check and sync the file of a store, then name the copy; an existing file is kept."""
    if to.exists():
        raise UsageError(f"{to} exists; a backup never overwrites, give a new name")
    part = to.with_name(f".{to.name}.{os.urandom(4).hex()}.part")
    try:
        _remove_leftovers(to.parent)
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error.strerror}") from error
    try:
        # The lock tells `_remove_leftovers` that this backup is still running.
        fcntl.flock(file, fcntl.LOCK_EX)
        _copy_pages(store, part, progress)
        _check_copy(part, check)
        os.fsync(file)
        _publish_backup(part, to)
    except apsw.Error as error:
        raise StoreError(f"{to}: {build_store_error(error, part)}") from error
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error.strerror}") from error
    finally:
        for leftover in (part, *part.parent.glob(f"{part.name}-*")):
            leftover.unlink(missing_ok=True)
        os.close(file)  # last: closing any descriptor of a file drops SQLite's locks on it


def _copy_pages(store: SqliteStore, part: Path, progress: Callable[[int, int], object]) -> None:
    """Copy one snapshot of the file, page by page, and mark it; other processes may write meanwhile."""
    source = store.open_reader()
    copy = apsw.Connection(str(part))
    try:
        # One read transaction: without it every commit would restart the backup.
        source.execute("BEGIN")
        ((last_seq,),) = fetch_rows(source, LAST_SEQ)
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(PAGES)
                progress(backup.page_count - backup.remaining, backup.page_count)
        source.execute("ROLLBACK")
        copy.pragma("journal_mode", "delete")  # a single file, without a write-ahead log
        taken_at = format_utc(store.now())
        reason = f"it is a backup of {store.path}, taken at {taken_at}; its last entry is {last_seq}"
        with copy:
            copy.execute("INSERT OR REPLACE INTO meta VALUES ('copied', ?)", (reason,))
        ((finding,),) = fetch_rows(copy, "PRAGMA integrity_check(1)")
        if finding != "ok":
            raise StoreError(f"{store.path} is damaged, so it cannot be backed up: {finding}")
    finally:
        copy.close(True)
        source.close(True)


def check_file(path: Path) -> None:
    """Refuse links to the database and to its companions, and companions without their database.

    A backup names its copy by a second hard link; the leftover of one that was killed there is deleted first.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            _remove_leftovers(path.parent)
    for suffix in ("", *COMPANIONS):
        check_links(path.with_name(path.name + suffix))
    companions = find_companions(path)
    # The database is checked last: a starting process creates it before its companions.
    if companions and not path.exists():
        raise companions_alone(path, [file.name for file in companions])


def find_companions(path: Path) -> list[Path]:
    """Return the existing companion files of a database."""
    paths = (path.with_name(path.name + suffix) for suffix in COMPANIONS)
    return [file for file in paths if file.exists()]


def check_objects(connection: apsw.Connection, path: Path) -> set[str]:
    """Refuse foreign triggers and views on our tables; return the names of all objects."""
    rows = fetch_rows(connection, OBJECTS)
    foreign, _ = sort_objects(rows)
    if foreign:
        raise StoreError(
            f"{path}: {foreign[0]}, created by another program: it could change the entries of the log. "
            "Remove it, and run `oncemore store verify`"
        )
    return {name for _, name, _ in rows}


def sort_objects(rows: Iterable[tuple[str, str, str]]) -> tuple[list[str], list[str]]:
    """Return the foreign objects that affect our tables, and the other tables in the file.

    `on_commit()` may create tables in the file, with their own indexes and triggers.
    """
    foreign, other_tables = [], []
    for kind, name, table in rows:
        # SQLite compares names without case.
        if kind == "trigger" and table.lower() in TABLES:
            foreign.append(f"trigger {name} is on the table {table}")
        elif name.lower() in TABLES and kind != "table":
            foreign.append(f"{name} is a {kind}")
        elif kind in ("table", "view") and name.lower() not in TABLES:
            other_tables.append(name)
    return foreign, other_tables


def remove_companions(path: Path) -> list[Path]:
    """Delete the companion files of a missing database; return their paths.

    Refused while a worker is registered: its process still uses the deleted file.
    """
    if path.exists():
        raise UsageError(f"{path} exists, and its companions belong to it; nothing was removed")
    companions = find_companions(path)
    # The lock files are the only trace of processes that still use the deleted file.
    for lock in path.with_name(path.name + "-workers").glob("*"):
        if not is_unlocked(lock):
            raise InProgress(f"a process still works on the former {path}: stop worker {lock.name} first")
    for companion in companions:
        if companion.is_dir():
            for file in companion.iterdir():
                file.unlink()
            companion.rmdir()
        else:
            companion.unlink()
    return companions


def _publish_backup(part: Path, to: Path) -> None:
    """Give a finished copy its name, unless a file of that name exists; then sync the folder."""
    try:
        # A hard link, because a rename would replace an existing file.
        os.link(part, to)
    except FileExistsError:
        raise UsageError(f"{to} was created by another process meanwhile; give a new name") from None
    sync_folder(to.parent)


def _remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of killed backups in a folder: the ones that no process has locked."""
    for part in [file for file in folder.glob(".*.part") if _PART.fullmatch(file.name)]:
        with suppress(OSError):
            file = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for leftover in (part, *part.parent.glob(f"{part.name}-*")):
                    leftover.unlink(missing_ok=True)
            finally:
                os.close(file)


def _check_copy(copy: Path, check: CopyCheck) -> None:
    """Call the caller's check with the entries and heads of a copy."""
    connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        entries = connection.execute(f"{SELECT_ENTRIES} ORDER BY seq")
        heads = connection.execute(f"SELECT {HEAD_LIST}, NULL FROM head")  # noqa: S608
        check(map(row_to_entry, entries), map(row_to_head, heads))
    finally:
        connection.close(True)
