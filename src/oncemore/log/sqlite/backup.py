"""The house of a SQLite file: is it the original, how large is it, how is it copied.

**A copy** of a log must not go on by itself: effects that the original has had since would be had twice.
Three things tell one, each of them looked at whenever the file is opened:

    the mark     a backup says of itself that it is one
    the inode    the file remembers its own: one that was copied, restored or sent has another; one that
                 was only renamed or moved within its disk has not
    the note     the door beside the file keeps how far the log had come: a file that was put back in place,
                 inode and all, is behind it

What none of them can tell is a whole disk or machine that was put back to an earlier state, door and all.
Once noticed it is written into the file, where it stays until somebody acknowledges it.

**A backup** is made by SQLite's own way of copying, from one snapshot while others write, under a name that
nobody looks for; it is marked, checked and synced before it gets its real one. What a killed one leaves is
removed by the next.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw

from oncemore.errors import InProgress, StoreError, UsageError
from oncemore.log.sqlite.files import check_links, companions_alone
from oncemore.log.sqlite.machine import is_unlocked
from oncemore.log.store import Room, Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from oncemore.log.sqlite.machine import Door
    from oncemore.log.sqlite.store import SqliteStore
    from oncemore.log.store import Checked

PAGES = 256  # copied at a time
TIDY_MS = 100
#: What lies next to a database, by what its name adds: files of SQLite, then ours.
COMPANIONS = ("-wal", "-shm", "-door", "-reserve", "-workers", "-programs")

#: Our tables, and what there is in the file: type, name, and the table that it belongs to.
TABLES = frozenset({"meta", "head", "log"})
OBJECTS = "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name"

_PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")
_LAST = "SELECT coalesce(max(seq), 0) FROM log"
_WEIGHTS = """
SELECT substr(entity, 1, instr(entity || '/', '/') - 1), sum(n), sum(m), sum(size) FROM (
    SELECT entity, 1 n, 0 m, length(head) size FROM head UNION ALL
    SELECT entity, 0, 1, length(header) + coalesce(length(body), 0) FROM log) GROUP BY 1
"""


def identify(connection: apsw.Connection, path: Path, door: Door) -> str:
    """Know a file again, or take it for a copy; return its name. The door must be held."""
    with connection:
        known = dict(_rows(connection, "SELECT name, value FROM meta"))
        ((last,),) = _rows(connection, _LAST)
        name: Any = known.get("store")
        noted, here = door.noted(), path.stat().st_ino
        why = known.get("copied", "")
        if name is None:
            name = os.urandom(16).hex()
        elif not why:
            why = _noticed(path, here != known["home"], noted[1] if noted[0] == name else 0, last)
        now = {"store": name, "home": here, "copied": why}
        new = any(known.get(field) != value for field, value in now.items())
        if new:
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", now.items())
    if new:  # into the file itself: one that is copied without what stands before it is to be known too
        connection.pragma("wal_checkpoint", "PASSIVE")
    if not why:
        door.note(name, last)
    return str(name)


def _noticed(path: Path, moved: bool, noted: int, last: int) -> str:
    """Say what shows that a file is a copy, or nothing."""
    if moved:
        return f"{path} was copied or restored: it is not the file that was written before"
    if noted > last:
        return (
            f"{path} was put back to an earlier state: entry {noted} had been written, and {last} is its last"
        )
    return ""


def utc(seconds: float) -> str:
    """Return a time for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class SqliteHouse:
    """The house of a store in a file of this machine."""

    def __init__(self, store: SqliteStore) -> None:
        self._store, self._path = store, store.path

    def held(self) -> str:
        """Say why the file is taken for a copy; empty if it is not."""
        rows = self._store.look("SELECT value FROM meta WHERE name='copied'")
        return str(rows[0][0]) if rows else ""

    def acknowledge(self) -> None:
        """Take this copy for the store from now on, under a name of its own."""
        self._store.aside(self._renamed)

    def _renamed(self, connection: apsw.Connection) -> None:
        name = os.urandom(16).hex()
        with connection:
            connection.execute("UPDATE meta SET value='' WHERE name='copied'")
            connection.execute("UPDATE meta SET value=? WHERE name='store'", (name,))
        ((last,),) = _rows(connection, _LAST)
        self._store.renamed(name, last)

    def weights(self) -> dict[str, Weight]:
        """Count everything."""
        return {kind: Weight(*counted) for kind, *counted in self._store.look(_WEIGHTS)}

    def room(self) -> Room:
        """Return the sizes of the file and of its write-ahead file, and what the disk has left."""
        return Room(
            _size(self._path), _size(self._path.with_name(self._path.name + "-wal")), left(self._path)
        )

    def spare(self) -> int:
        """Return the bytes of the file's free pages."""
        ((pages,),) = self._store.look("PRAGMA freelist_count")
        ((size,),) = self._store.look("PRAGMA page_size")
        return int(pages) * int(size)

    def tidy(self) -> str:
        """Empty the write-ahead file, or say who is in the way."""
        return self._store.aside(_tidied)

    def backup(self, to: Path, check: Checked, progress: Callable[[int, int], object]) -> None:
        """Copy, mark, check and sync; then give the copy its name, which nobody may have had before."""
        if to.exists():
            raise UsageError(f"{to} exists; a backup never overwrites, give a new name")
        part = to.with_name(f".{to.name}.{os.urandom(4).hex()}.part")
        try:
            _sweep(to.parent)
            file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{to} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._copied(part, progress)
            self._store.proved(part, check)
            os.fsync(file)
            _named(part, to)
        except apsw.Error as error:
            raise StoreError(f"{to}: {self._store.fault(error, part)}") from error
        except OSError as error:
            raise StoreError(f"{to} cannot be written: {error.strerror}") from error
        finally:
            for rest in (part, *part.parent.glob(f"{part.name}-*")):
                rest.unlink(missing_ok=True)
            os.close(file)  # last: closing any descriptor of a file drops SQLite's locks on it

    def _copied(self, part: Path, progress: Callable[[int, int], object]) -> None:
        """Copy one snapshot of the file, page by page, and mark it; others may write meanwhile."""
        source = self._store.reader()
        copy = apsw.Connection(str(part))
        try:
            source.execute("BEGIN")
            ((last,),) = _rows(source, _LAST)
            with copy.backup("main", source, "main") as backup:
                while not backup.done:
                    backup.step(PAGES)
                    progress(backup.page_count - backup.remaining, backup.page_count)
            source.execute("ROLLBACK")
            copy.pragma("journal_mode", "delete")  # one file, that anything can read
            why = (
                f"it is a backup of {self._path}, taken at {utc(self._store.now())}; its last entry is {last}"
            )
            with copy:
                copy.execute("INSERT OR REPLACE INTO meta VALUES ('copied', ?)", (why,))
            ((fine,),) = _rows(copy, "PRAGMA integrity_check(1)")
            if fine != "ok":
                raise StoreError(f"{self._path} is damaged, so that no good copy can be made: {fine}")
        finally:
            copy.close(True)
            source.close(True)


def check_file(path: Path) -> None:
    """Refuse links to the database and to its companions, and companions without their database.

    A backup gives its copy a name by a second hard link; one that was killed there is tidied up first.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            _sweep(path.parent)
    for suffix in ("", *COMPANIONS):
        check_links(path.with_name(path.name + suffix))
    companions = find_companions(path)
    if companions and not path.exists():  # looked for last: a database is created before its companions
        raise companions_alone(path, [each.name for each in companions])


def find_companions(path: Path) -> list[Path]:
    """Return the companions of a database that exist."""
    paths = (path.with_name(path.name + suffix) for suffix in COMPANIONS)
    return [each for each in paths if each.exists()]


def check_objects(connection: apsw.Connection, path: Path) -> set[str]:
    """Refuse foreign triggers and views that would change what we write; return the names of all objects."""
    rows = _rows(connection, OBJECTS)
    foreign, _ = sort_objects(rows)
    if foreign:
        raise StoreError(
            f"{path}: {foreign[0]}, which another program has put there: it could change what we write. "
            "Remove it, and run `oncemore verify`"
        )
    return {name for _, name, _ in rows}


def sort_objects(rows: Iterable[tuple[str, str, str]]) -> tuple[list[str], list[str]]:
    """Return the objects of a file that touch our tables and are not ours, and the tables of others.

    `on_commit()` may create tables in the file, with indexes and triggers of their own.
    """
    foreign, others = [], []
    for kind, name, table in rows:
        if kind == "trigger" and table.lower() in TABLES:
            foreign.append(f"trigger {name} is on the table {table}")
        elif name.lower() in TABLES and kind != "table":
            foreign.append(f"{name} is a {kind}")
        elif kind in ("table", "view") and name.lower() not in TABLES:
            others.append(name)
    return foreign, others


def remove_companions(path: Path) -> list[Path]:
    """Remove the companions of a database that is missing; return them.

    Refused while a process has a worker there: it still works on the deleted file.
    """
    if path.exists():
        raise UsageError(f"{path} is here, with its companions; nothing was removed")
    found = find_companions(path)
    for lock in path.with_name(path.name + "-workers").glob("*"):
        if not is_unlocked(lock):
            raise InProgress(f"a process still works on the former {path}: stop worker {lock.name} first")
    for each in found:
        if each.is_dir():
            for inner in each.iterdir():
                inner.unlink()
            each.rmdir()
        else:
            each.unlink()
    return found


def _named(part: Path, to: Path) -> None:
    """Give a finished copy its name, unless somebody else took it meanwhile; both survive a power cut."""
    try:
        os.link(part, to)
    except FileExistsError:
        raise UsageError(f"{to} was made by somebody else meanwhile; give a new name") from None
    folder = os.open(to.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sweep(folder: Path) -> None:
    """Remove what killed backups left in a folder, of whatever name: what nobody holds the lock of."""
    for part in [found for found in folder.glob(".*.part") if _PART.fullmatch(found.name)]:
        with suppress(OSError):
            file = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for rest in (part, *part.parent.glob(f"{part.name}-*")):
                    rest.unlink(missing_ok=True)
            finally:
                os.close(file)


def _tidied(connection: apsw.Connection) -> str:
    connection.set_busy_timeout(TIDY_MS)
    try:
        ((busy, pages, moved),) = _rows(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.BusyError:
        busy, pages, moved = 1, 0, 0
    if not busy:
        return ""
    return (
        f"somebody has been reading since before the last entries were written ({moved} of {pages} pages "
        "could be moved): a long query, a backup or another program with the file open; it shrinks when they "
        "are done"
    )


def _rows(connection: apsw.Connection, sql: str) -> list[Any]:
    return connection.execute(sql).fetchall()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def left(path: Path) -> int | None:
    """Return how many bytes the disk of a file has left for us."""
    try:
        there = os.statvfs(path.parent)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize
