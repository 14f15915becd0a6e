"""The read side of a SQLite store: connections, heads, entries and the clock.

Reads use one read-only connection per thread. Every cursor is exhausted: an open one would hold its snapshot
and later reads would be stale.

The clock (`SqliteStore.now`) is the kernel's time since boot, set to the wall clock when the first store is
opened after a boot, and never to less than the stored *mark*: no entry is later than the mark. The writer
keeps the mark a few seconds ahead, so that it is seldom written. A wall clock that once was ahead leaves the
store's clock ahead, but the clock never stops or runs backwards.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import apsw

from oncemore.errors import StoreError
from oncemore.log.record import NOWHERE
from oncemore.log.sqlite import machine, queries
from oncemore.log.sqlite.backup import OBJECTS, sort_objects
from oncemore.log.sqlite.commit import file_changed, file_identity
from oncemore.log.sqlite.files import build_store_error, resolve_path
from oncemore.log.sqlite.queries import (
    ENTITY_CHAIN,
    LAST_SEQ,
    LOG_LIST,
    SELECT_ENTRIES,
    fetch_rows,
    row_to_entry,
    row_to_head,
)
from oncemore.log.sqlite.schema import check_engine, open_connection

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from oncemore.log.store import Entry, Head, HeadQuery

#: Entries that are read at a time.
PAGE = 250
POLL_S = 0.02


class ReaderConnection(threading.local):
    """The read-only connection of a thread.

    commits_seen  number of commits of this process when the thread last loaded a head
    """

    connection: apsw.Connection | None = None
    commits_seen = -1


class SqliteReader:
    """A file of a SQLite store, opened for reading.

    `SqliteStore` adds the writing, the clock, and `load_head`, because that may use the writer's connection.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_engine(apsw.sqlite_lib_version())
        self.path = resolve_path(path)
        machine.check_local(self.path, machine.file_system_type(self.path.parent))
        self.name = ""
        self._closed = False
        self._file = self.display_name = str(self.path)
        self._identity: tuple[int, int] | None = None  # device and inode; None: not known yet
        self._wall_at_boot = 0.0
        self._readers = ReaderConnection()

    def _connect(self, flags: int) -> apsw.Connection:
        """Open the database; refuse another file than the one that was opened first."""
        self._check_identity()
        connection = open_connection(self.path, flags)
        # Again, because the file may have been replaced between the check and the opening.
        try:
            self._check_identity()
        except BaseException:
            connection.close(True)
            raise
        return connection

    def _check_identity(self) -> None:
        if self._identity is not None and file_identity(self._file) != self._identity:
            raise file_changed(self.path)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")

    def _store_error(self, error: apsw.Error) -> StoreError:
        return StoreError(f"{self.path}: {build_store_error(error, self.path)}")

    def query_rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, read on the connection of this thread."""
        self._check_open()
        reader = self._readers
        try:
            if reader.connection is None:
                reader.connection = self._connect(apsw.SQLITE_OPEN_READONLY)
            return fetch_rows(reader.connection, sql, values)
        except apsw.Error as error:
            vars(reader).clear()
            raise self._store_error(error) from error
        except BaseException:  # interrupted: a cursor that is half read must not hold its snapshot
            vars(reader).clear()
            raise

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        """Return the heads that match a query."""
        if query.by_creation:
            return queries.read_all_heads(self.query_rows)
        return map(row_to_head, queries.read_head_rows(query, self.query_rows))

    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in order: of one entity after a version, or of all entities after a `seq`."""
        return self._all_entries(after) if entity is None else self._entity_entries(entity, after)

    def _all_entries(self, after: int) -> Iterator[Entry]:
        # Page by page, because an open statement would hold its snapshot while the caller works.
        while rows := self.query_rows(f"{SELECT_ENTRIES} WHERE seq>? ORDER BY seq LIMIT ?", (after, PAGE)):
            yield from map(row_to_entry, rows)
            after = rows[-1][0]

    def _entity_entries(self, entity: str, after: int) -> Iterator[Entry]:
        """Read the chain backwards from the head to the version `after`, and return it forwards."""
        sql = f"{ENTITY_CHAIN} SELECT {LOG_LIST} FROM chain JOIN log ON seq=at"  # noqa: S608
        # One row more than asked for: it has the previous hash of the first entry.
        prev = NOWHERE
        for row in reversed(self.query_rows(sql, (entity, after))):
            if row[2] > after:
                yield row_to_entry((*row[:3], prev, *row[4:]))
            prev = row[4]

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the log has grown; polls, because other processes write without notifying."""
        ends_at = time.monotonic() + timeout
        while True:
            ((last_seq,),) = self.query_rows(LAST_SEQ)
            left = ends_at - time.monotonic()
            if last_seq > after or left <= 0:
                return int(last_seq)
            # The last seq is one lookup in an index, so polling is cheap.
            time.sleep(min(POLL_S, left))

    def open_reader(self) -> apsw.Connection:
        """Return a new read-only connection; the caller closes it."""
        self._check_open()
        return self._connect(apsw.SQLITE_OPEN_READONLY)

    def sort_objects(self) -> tuple[list[str], list[str]]:
        """Return foreign objects that affect the store's tables, and other tables in the file."""
        return sort_objects(self.query_rows(OBJECTS))
