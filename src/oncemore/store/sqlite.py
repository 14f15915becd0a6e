"""The embedded store: one SQLite file in WAL mode, written through apsw.

Writes go through one connection per process, in group commits (`store.combine`), each of them one
`BEGIN IMMEDIATE … COMMIT` behind the door (`store.place`). Within it each batch is a compare-and-set of
its own: one that misses writes nothing and is answered with the head that is there; the log rows of all
that hit go in at the end. A commit is synced if one of its batches asks for it.

Reads use one read-only connection per thread. Every cursor is exhausted: a kept one would hold its
snapshot and show the past.

A storage error is fail-stop: the transaction is rolled back, nobody in it is told that it is stored, and
the connection is dropped; the next batch opens a new one. After a fork the child leaves the inherited
connections alone (closing them would drop the parent's locks) and opens its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from oncemore.core.key import fingerprint
from oncemore.core.record import NOWHERE
from oncemore.errors import StoreError
from oncemore.store import place
from oncemore.store.base import Conflict, Entry, Facts, Head, Index, Stored, check_batch
from oncemore.store.combine import Combiner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.store.base import Batch, Query, Write
    from oncemore.store.combine import Op

FORMAT = 1
OLDEST_ENGINE = (3, 51, 3)  # earlier ones can lose acknowledged commits in WAL mode
BUSY_MS = 30_000
PAGE = 500

SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE head(
    id INTEGER PRIMARY KEY, entity TEXT NOT NULL UNIQUE, version INT NOT NULL, hash BLOB NOT NULL,
    head BLOB NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, due REAL, step TEXT NOT NULL,
    worker TEXT NOT NULL, dataset TEXT NOT NULL, seq INT NOT NULL);
CREATE INDEX head_due ON head(kind, due) WHERE due IS NOT NULL;
CREATE TABLE log(
    seq INTEGER PRIMARY KEY, entity TEXT NOT NULL, version INT NOT NULL, before INT NOT NULL,
    hash BLOB NOT NULL, header BLOB NOT NULL, body BLOB, digest BLOB);
"""

_HEAD = "entity, version, hash, head, kind, state, due, step, worker, dataset, seq"
_LOG = "seq, entity, version, before, hash, header, body, digest"
_INSERT = f"INSERT INTO head({_HEAD}) VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"  # noqa: S608
_UPDATE = (
    "UPDATE head SET version=?, hash=?, head=?, kind=?, state=?, due=?, step=?, worker=?, dataset=?, seq=? "
    "WHERE entity=? AND version=?"
)


class SqliteStore:
    """A store in a file of this machine."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _check_engine(apsw.sqlite_lib_version())
        self.path = Path(path).resolve()
        place.check_local(self.path, place.file_system(self.path.parent))
        self._closed = False
        self._fresh()
        self._prepare()
        _open_stores.add(self)

    def _fresh(self) -> None:
        """Have no connection, no queue and no turn yet: at first, and in a forked child."""
        self._writer: apsw.Connection | None = None
        self._readers = threading.local()
        self._combiner = Combiner(self._transact)
        self._door = place.door(self.path)
        self._synced: bool | None = None

    def forked(self) -> None:
        """In a forked child: leave what was inherited alone, and make everything anew."""
        _left_alone.append((self._writer, self._readers, self._combiner))
        self._fresh()

    def append(self, batch: Batch) -> Op:
        """Ask for a batch to be stored."""
        check_batch(batch)
        return self._combiner.submit(batch)

    def _transact(self, ops: list[Op]) -> None:
        """Store what queued batches ask for in one transaction; answer each when the disk has it."""
        self._check_open()
        try:
            with self._door:
                connection = self._connection(sync=any(op.batch.sync for op in ops))
                connection.execute("BEGIN IMMEDIATE")
                answers = _apply(connection, [op.batch for op in ops])
                connection.execute("COMMIT")
        except apsw.Error as error:
            self._drop()
            raise StoreError(f"{self.path}: {_fault(error)}") from error
        except BaseException:
            self._drop()
            raise
        for op, answer in zip(ops, answers, strict=True):
            op.answer = answer

    def _connection(self, *, sync: bool) -> apsw.Connection:
        """Return the writer's connection, told how much the coming commit must wait for the disk."""
        if self._writer is None:
            self._writer = _connect(self.path, apsw.SQLITE_OPEN_READWRITE)
            self._synced = None
        if self._synced != sync:
            self._writer.pragma("synchronous", "FULL" if sync else "NORMAL")
            self._synced = sync
        return self._writer

    def _drop(self) -> None:
        """Let go of a connection that failed; what it had not committed is gone with it."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(True)

    def _reader(self) -> apsw.Connection:
        self._check_open()
        connection: apsw.Connection | None = getattr(self._readers, "connection", None)
        if connection is None:
            connection = self._readers.connection = _connect(self.path, apsw.SQLITE_OPEN_READONLY)
        return connection

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return _rows(self._reader(), sql, values)
        except apsw.Error as error:
            self._readers = threading.local()
            raise StoreError(f"{self.path}: {_fault(error)}") from error

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity."""
        rows = self._read(f"SELECT {_HEAD} FROM head WHERE entity=?", (entity,))  # noqa: S608
        return _head(rows[0]) if rows else None

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""
        where, values = ["kind=?"], [query.kind]
        for column in ("state", "step", "worker", "dataset"):
            wanted = getattr(query, column)
            if wanted is not None:
                where.append(f"{column}=?")
                values.append(wanted)
        if query.due_by is not None:
            where.append("due IS NOT NULL AND due<=?")
            values.append(query.due_by)  # type: ignore[arg-type]
        sql = (
            f"SELECT {_HEAD} FROM head WHERE {' AND '.join(where)} "  # noqa: S608
            "ORDER BY due IS NULL, due, entity LIMIT ?"
        )
        return (_head(row) for row in self._read(sql, (*values, query.limit)))

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order."""
        return self._all_entries(after) if entity is None else self._entries_of(entity, after)

    def _all_entries(self, after: int) -> Iterator[Entry]:
        sql = f"SELECT {_LOG}, (SELECT hash FROM log p WHERE p.seq=log.before) FROM log "  # noqa: S608
        while rows := self._read(sql + "WHERE seq>? ORDER BY seq LIMIT ?", (after, PAGE)):
            yield from map(_entry, rows)
            after = rows[-1][0]

    def _entries_of(self, entity: str, after: int) -> Iterator[Entry]:
        """Walk back from the head to the entry asked for, then tell them forwards."""
        rows = self._read("SELECT seq FROM head WHERE entity=?", (entity,))
        seq, found = (rows[0][0] if rows else 0), []
        while seq:
            sql = f"SELECT {_LOG}, (SELECT hash FROM log p WHERE p.seq=log.before) FROM log WHERE seq=?"  # noqa: S608
            (row,) = self._read(sql, (seq,))
            if row[2] <= after:
                break
            found.append(_entry(row))
            seq = row[3]
        return reversed(found)

    def now(self) -> float:
        """Return the time since boot, set to the wall clock when this boot's first store was opened."""
        return self._wall_at_boot + place.since_boot()

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown; other processes' writes are seen by looking."""
        ends = time.monotonic() + timeout
        while True:
            ((last,),) = self._read("SELECT coalesce(max(seq), 0) FROM log")
            left = ends - time.monotonic()
            if last > after or left <= 0:
                return int(last)
            time.sleep(min(0.02, left))

    def facts(self) -> Facts:
        """Say which engine writes, and what survives what."""
        return Facts(
            f"sqlite:///{self.path}",
            f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}), WAL",
            "an acknowledged entry survives the death of the process; with sync, power loss too, "
            "if the disk honours flushes",
            (f"file system: {place.file_system(self.path.parent) or 'unknown'}",),
        )

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
        if not self._closed:
            self._closed = True
            self._combiner.stop()
            self._drop()
            self._readers = threading.local()
            _open_stores.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")

    def _prepare(self) -> None:
        """Make or check the file: mode, format, durability, clock."""
        try:
            _create(self.path)
            with self._door:
                connection = self._connection(sync=True)
                _set_up(connection, self.path)
                self._wall_at_boot = _clock(connection)
        except apsw.Error as error:
            self._drop()
            raise StoreError(f"{self.path}: {_fault(error)}") from error
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error


def _apply(connection: apsw.Connection, batches: list[Batch]) -> list[Stored | Conflict]:
    """Compare and set each batch in turn; then write the log rows of all that hit."""
    ((last,),) = _rows(connection, "SELECT coalesce(max(seq), 0) FROM log")
    answers: list[Stored | Conflict] = []
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        missed = _missed(connection, batch)
        if missed is not None:
            answers.append(missed)
            continue
        seqs = tuple(range(last + 1, last + 1 + len(batch.writes)))
        for seq, write in zip(seqs, batch.writes, strict=True):
            rows.append(_set(connection, write, seq))
        last += len(batch.writes)
        answers.append(Stored(seqs))
    connection.executemany(f"INSERT INTO log({_LOG}) VALUES (?,?,?,?,?,?,?,?)", rows)  # noqa: S608
    return answers


def _missed(connection: apsw.Connection, batch: Batch) -> Conflict | None:
    """Return the conflict of a batch whose entities are not as it expects; before it writes anything."""
    expected = {**batch.guards, **{write.entity: write.expect for write in batch.writes}}
    for entity, version in expected.items():
        rows = _rows(connection, "SELECT version FROM head WHERE entity=?", (entity,))
        if (rows[0][0] if rows else 0) != version:
            found = _rows(connection, f"SELECT {_HEAD} FROM head WHERE entity=?", (entity,))  # noqa: S608
            return Conflict(entity, _head(found[0]) if found else None)
    return None


def _set(connection: apsw.Connection, write: Write, seq: int) -> tuple[Any, ...]:
    """Move a head whose version was just compared; return the row of the log."""
    version, by, before = write.expect + 1, write.by, 0
    if write.expect:
        ((before,),) = _rows(connection, "SELECT seq FROM head WHERE entity=?", (write.entity,))
        connection.execute(_UPDATE, (version, write.hash, write.head, *by, seq, write.entity, write.expect))
    else:
        connection.execute(_INSERT, (write.entity, version, write.hash, write.head, *by, seq))
    assert connection.changes() == 1, "a head moved inside the transaction that compared it"
    return seq, write.entity, version, before, write.hash, write.header, write.body, None


def _rows(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Return all rows: a cursor that is kept holds its snapshot and would show the past."""
    return connection.execute(sql, values).fetchall()


def _head(row: tuple[Any, ...]) -> Head:
    entity, version, digest, head, kind, state, due, step, worker, dataset, seq = row
    return Head(entity, version, digest, head, Index(kind, state, due, step, worker, dataset), seq)


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, entity, version, _, digest, header, body, kept, prev = row
    body_digest = fingerprint(body) if body is not None else kept
    return Entry(seq, entity, version, prev or NOWHERE, digest, header, body, body_digest)


def _connect(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(BUSY_MS)  # before anything else: even to ask for the mode may be busy
    return connection


def _create(path: Path) -> None:
    """Make the file for its owner alone; one that exists is never opened by any other means than SQLite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return


def _set_up(connection: apsw.Connection, path: Path) -> None:
    """Read back what the engine really does, and make or check the tables."""
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError(f"{path}: SQLite cannot use its write-ahead log here")
    if connection.pragma("synchronous") != 2:
        raise StoreError(f"{path}: SQLite does not wait for the disk (synchronous is not FULL)")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _rows(connection, "SELECT 1 FROM sqlite_master WHERE name='meta'"):
            connection.execute(SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
        rows = _rows(connection, "SELECT value FROM meta WHERE name='format'")
        if rows[0][0] > FORMAT:
            raise StoreError(
                f"{path} has format {rows[0][0]}, which a newer oncemore wrote; this one reads up to {FORMAT}"
            )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _clock(connection: apsw.Connection) -> float:
    """Return the wall time at boot that all processes of this boot go by; never earlier than before."""
    boot = place.boot_id()
    wall = time.time() - place.since_boot()
    connection.execute("BEGIN IMMEDIATE")
    known = dict(_rows(connection, "SELECT name, value FROM meta WHERE name IN ('boot', 'wall')"))
    if known.get("boot") == boot and boot:
        wall = known["wall"]
    else:
        rows = (("boot", boot), ("wall", wall))
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", rows)
    connection.execute("COMMIT")
    return float(wall)


def _check_engine(version: str) -> None:
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < OLDEST_ENGINE:
        oldest = ".".join(map(str, OLDEST_ENGINE))
        raise StoreError(
            f"SQLite {version} can lose acknowledged commits (the WAL-reset bug); install an apsw that "
            f"brings {oldest} or newer"
        )


def _fault(error: apsw.Error) -> str:
    """Say what the engine reported, and what to do about it where that is known."""
    name = type(error).__name__
    advice = {
        "FullError": "the disk is full; nothing was stored, make room and go on",
        "BusyError": "another program holds the file",
        "ReadOnlyError": "the file or its folder cannot be written",
        "CantOpenError": "the file cannot be opened",
        "NotADBError": "this is not a store of oncemore",
        "CorruptError": "the file is damaged; restore a backup",
        "IOError": "the disk failed; nothing was stored",
    }.get(name, "")
    return f"{advice or 'SQLite refused'} ({name}: {error})"


_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_left_alone: list[object] = []


def _after_fork() -> None:
    """In the child: what was inherited is neither used nor closed, and everything is made anew."""
    place.forget_doors()
    for store in list(_open_stores):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
