"""The tables of a SQLite store, and how a file is created, checked and migrated."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import apsw

from oncemore._platform import get_boot_time
from oncemore.errors import StoreError
from oncemore.log.entry_codec import unreadable_format
from oncemore.log.sqlite import machine
from oncemore.log.sqlite.backup import check_objects
from oncemore.log.sqlite.queries import fetch_rows

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 2
#: The SQL that turns a file of that format into one of the next.
MIGRATIONS: dict[int, str] = {}
#: Earlier engines can lose acknowledged commits in WAL mode.
OLDEST_ENGINE = (3, 51, 3)
BUSY_MS = 30_000
#: Size to which SQLite cuts the write-ahead log after a checkpoint has emptied it.
WAL_BYTES = 16 * 1024 * 1024

# `seq` is a rowid, so SQLite assigns one more than the highest; the last row of the log is never deleted, so
# no number is reused. `before` is the seq of the entity's previous entry: the chain of an entity is read
# along it, and the log needs no second index.
SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE head(
    id INTEGER PRIMARY KEY, entity TEXT NOT NULL UNIQUE, version INT NOT NULL, hash BLOB NOT NULL,
    head BLOB NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, due REAL, step TEXT NOT NULL,
    worker TEXT NOT NULL, dataset TEXT NOT NULL, seq INT NOT NULL);
CREATE INDEX head_due ON head(kind, due) WHERE due IS NOT NULL;
CREATE INDEX head_step ON head(kind, step, due, entity) WHERE due IS NOT NULL;
CREATE INDEX head_failed ON head(kind, state, seq) WHERE state IN ('HARD_FAIL', 'HELD');
CREATE TABLE log(
    seq INTEGER PRIMARY KEY, entity TEXT NOT NULL, version INT NOT NULL, before INT NOT NULL,
    hash BLOB NOT NULL, header BLOB NOT NULL, body BLOB, digest BLOB);
"""
#: Indexes that a file may lack because an earlier version created it. Operators search for failed and held
#: runs; as the index has no other rows, a run that succeeds does not pay for it.
ADDED_INDEXES = """
CREATE INDEX IF NOT EXISTS head_failed ON head(kind, state, seq) WHERE state IN ('HARD_FAIL', 'HELD');
"""


def check_engine(version: str) -> None:
    """Refuse a SQLite that can lose acknowledged commits."""
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < OLDEST_ENGINE:
        oldest = ".".join(map(str, OLDEST_ENGINE))
        raise StoreError(
            f"SQLite {version} can lose acknowledged commits (the WAL-reset bug); install an apsw that "
            f"brings {oldest} or newer"
        )


def create_file(path: Path) -> None:
    """Create the file for its owner alone, if it does not exist.

    An existing file is opened by SQLite only: closing any other descriptor would drop SQLite's locks on it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return


def open_connection(path: Path, flags: int) -> apsw.Connection:
    """Open a connection with the settings that every connection to a store has."""
    connection = apsw.Connection(str(path), flags=flags)
    # First of all, because even the query for the journal mode may find the file busy.
    connection.set_busy_timeout(BUSY_MS)
    connection.transaction_mode = "IMMEDIATE"
    connection.pragma("journal_size_limit", WAL_BYTES)
    # Without it, pages that are split would keep bytes that are pruned later.
    connection.pragma("secure_delete", "FAST")
    return connection


def set_up_file(connection: apsw.Connection, path: Path) -> None:
    """Create or migrate the tables, and check that the engine really writes as durably as required."""
    tables = check_objects(connection, path)
    if tables and not tables >= {"meta", "head", "log"}:
        raise StoreError(f"{path}: this is another program's database, not a store of oncemore")
    # SQLite ignores settings that it cannot apply, so each is read back.
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError(f"{path}: SQLite cannot use its write-ahead log here; put the file on a local disk")
    if connection.pragma("synchronous") != 2:
        raise StoreError(f"{path}: SQLite does not wait for the disk (synchronous is not FULL)")
    with connection:
        if not tables:
            connection.execute(SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
        _migrate_file(connection, path)
        connection.execute(ADDED_INDEXES)


def _migrate_file(connection: apsw.Connection, path: Path) -> None:
    """Migrate a file to the current format step by step, in the caller's transaction."""
    ((stored_format,),) = fetch_rows(connection, "SELECT value FROM meta WHERE name='format'")
    if stored_format > FORMAT:
        raise unreadable_format(str(path), stored_format)
    for step in range(stored_format, FORMAT):
        if step not in MIGRATIONS:
            raise unreadable_format(str(path), stored_format)
        connection.execute(MIGRATIONS[step])
        connection.execute("UPDATE meta SET value=? WHERE name='format'", (step + 1,))


def read_boot_time(connection: apsw.Connection) -> float:
    """Return the wall-clock time of this boot; the first store that is opened after a boot records it.

    It is at least the stored mark, so that the clock of the store never runs backwards.
    """
    boot, uptime = machine.boot_id(), get_boot_time()
    with connection:
        meta = dict(fetch_rows(connection, "SELECT name, value FROM meta"))
        wall = max(time.time(), meta.get("mark", 0.0)) - uptime
        if boot and meta.get("boot") == boot:
            wall = meta["wall"]
        else:
            rows = (("boot", boot), ("wall", wall))
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", rows)
    return float(wall)
