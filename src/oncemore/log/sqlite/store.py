"""The embedded store: one SQLite file in WAL mode, written through apsw.

Writes go through one connection per process, in group commits (`log.group_commit`), each of them one
`BEGIN IMMEDIATE … COMMIT` behind the door (`log.sqlite.machine`). Within it each batch is a compare-and-set
of
its own: one that misses writes nothing and is answered with the head that is there. A lone write compares
by writing; a batch with several writes or guards first compares them all. A commit is synced if one of its
batches asks for it.

`seq` is what SQLite gives to a new row of the log: one more than the highest, which is never deleted.
`before` leads from each entry to the entity's last, so that the log needs no second index.

Reads use one read-only connection per thread. Every cursor is exhausted: a kept one would hold its
snapshot and show the past.

Time is the kernel's since boot, set to the wall clock when a boot's first store is opened, and never to
less than the *mark*, which no stored entry is later than. It is kept a few seconds ahead, so that it is
written seldom. A wall clock that once ran ahead leaves the store ahead, but never standing still.

A storage error is fail-stop: the transaction is rolled back, nobody in it is told that it is stored, and
the connection is dropped; the next batch opens a new one. After a fork the child leaves the inherited
connections alone (closing them would drop the parent's locks) and opens its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import apsw

from oncemore._values import make
from oncemore.errors import StoreError, UsageError
from oncemore.log.group_commit import Combiner
from oncemore.log.interrupt_shield import Shield
from oncemore.log.record import NOWHERE
from oncemore.log.sqlite import machine, queries
from oncemore.log.sqlite.backup import (
    OBJECTS,
    SqliteHouse,
    check_file,
    check_objects,
    identify,
    left,
    sort_objects,
)
from oncemore.log.sqlite.disk_reserve import BYTES, Reserve, begins, ends
from oncemore.log.sqlite.files import file_changed, file_identity, resolve_path
from oncemore.log.sqlite.joined import join
from oncemore.log.store import AlsoFailed, Conflict, Entry, Facts, Head, Index, Stored, check_batch
from oncemore.policy.canonical_json import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.group_commit import Op
    from oncemore.log.sqlite.machine import Here
    from oncemore.log.store import Batch, Checked, Query, Write

    Answer = Stored | Conflict | AlsoFailed

T = TypeVar("T")
FORMAT = 1
#: What turns a file of that format into one of the next.
MIGRATIONS: dict[int, str] = {}
OLDEST_ENGINE = (3, 51, 3)  # earlier ones can lose acknowledged commits in WAL mode
BUSY_MS = 30_000
PAGE = 500
MARK_AHEAD_S = 5.0
SCARCE = 64 * 1024  # with less left on its disk, a file that fails has failed because of that
LEAST_ROOM = 2 * BYTES  # what new work waits for: the reserve, and as much again to work with
WAL_BYTES = 16 * 1024 * 1024  # to which the write-ahead file is cut when a checkpoint has emptied it

SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE head(
    id INTEGER PRIMARY KEY, entity TEXT NOT NULL UNIQUE, version INT NOT NULL, hash BLOB NOT NULL,
    head BLOB NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, due REAL, step TEXT NOT NULL,
    worker TEXT NOT NULL, dataset TEXT NOT NULL, seq INT NOT NULL);
CREATE INDEX head_due ON head(kind, due) WHERE due IS NOT NULL;
CREATE INDEX head_step ON head(kind, step, due, entity) WHERE due IS NOT NULL;
CREATE TABLE log(
    seq INTEGER PRIMARY KEY, entity TEXT NOT NULL, version INT NOT NULL, before INT NOT NULL,
    hash BLOB NOT NULL, header BLOB NOT NULL, body BLOB, digest BLOB);
"""

_HEAD = "entity, version, hash, head, kind, state, due, step, worker, dataset, seq"
_LOG = "seq, entity, version, before, hash, header, body, digest"
_HEAD_OF = f"SELECT {_HEAD}, (SELECT body FROM log WHERE log.seq=head.seq) FROM head WHERE entity=?"  # noqa: S608
_EVERY = f"SELECT {_LOG}, (SELECT hash FROM log p WHERE p.seq=log.before) FROM log"  # noqa: S608

#: The entries of an entity (?1) from its last back to the version ?2, by their back pointers.
_CHAIN = """
WITH RECURSIVE chain(at, number, next) AS (
    SELECT seq, version, before FROM log WHERE seq=(SELECT seq FROM head WHERE entity=?1)
    UNION ALL SELECT seq, version, before FROM chain JOIN log ON seq=next WHERE number>?2)
"""

# A write is two statements that both do something or both do nothing: what the second finds depends on
# the first. The head comes first where there is none, and last where the log needs the one before.
_FIRST = f"""
INSERT INTO head({_HEAD}) VALUES (?,1,?,?,?,?,?,?,?,?,(SELECT coalesce(max(seq), 0) + 1 FROM log))
    ON CONFLICT DO NOTHING;
INSERT INTO log SELECT NULL, ?, 1, 0, ?, ?, ?, NULL WHERE changes()
"""  # noqa: S608
_NEXT = """
INSERT INTO log SELECT NULL, entity, version + 1, seq, ?, ?, ?, NULL FROM head WHERE entity=? AND version=?;
UPDATE head SET version=version+1, hash=?, head=?, kind=?, state=?, due=?, step=?, worker=?, dataset=?,
    seq=last_insert_rowid() WHERE entity=? AND version=?
"""
#: The same under a guard, by its entity and its version (or NULL). A statement that asks the table which it
#: writes makes a table of its own for that, which costs more than all else; so it is the log's that asks, and
#: where the head came first, a guard that does not hold is an entry without an entity, which is refused.
_GUARD = "(SELECT version FROM head WHERE entity=?) IS ?"
_FIRST_GUARDED = f"""
INSERT INTO head({_HEAD}) VALUES (?,1,?,?,?,?,?,?,?,?,(SELECT coalesce(max(seq), 0) + 1 FROM log))
    ON CONFLICT DO NOTHING;
INSERT INTO log SELECT NULL, CASE WHEN {_GUARD} THEN ? END, 1, 0, ?, ?, ?, NULL WHERE changes()
"""  # noqa: S608
_NEXT_GUARDED = f"""
INSERT INTO log SELECT NULL, entity, version + 1, seq, ?, ?, ?, NULL FROM head
    WHERE entity=? AND version=? AND {_GUARD};
UPDATE head SET version=version+1, hash=?, head=?, kind=?, state=?, due=?, step=?, worker=?, dataset=?,
    seq=last_insert_rowid() WHERE entity=? AND version=? AND changes()
"""  # noqa: S608


class _Sql(NamedTuple):
    """How one write is stored: the first of its entity, the next, and both under a guard."""

    first: str
    then: str
    first_guarded: str
    then_guarded: str


_IN_ONE = _Sql(_FIRST, _NEXT, _FIRST_GUARDED, _NEXT_GUARDED)
#: The same as whole transactions: what a lone write needs is one call of the engine.
_ALONE = _Sql(*(f"BEGIN IMMEDIATE;{sql};COMMIT" for sql in _IN_ONE))
_MARK = "INSERT INTO meta VALUES ('mark', ?) ON CONFLICT DO UPDATE SET value=max(value, excluded.value)"


_NO_ANSWERS: Sequence[Answer] = ()


class _Reader(threading.local):
    """What a thread reads by.

    seen  how many commits this process had made when the thread last looked at a head
    """

    connection: apsw.Connection | None = None
    seen = -1


class SqliteStore:
    """A store in a file of this machine."""

    joins = True
    sees_deaths = True
    looks_late = False
    #: Whether a look at a head that is cut off leaves nothing behind: nobody else has to see to that.
    calm = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _check_engine(apsw.sqlite_lib_version())
        self.path = resolve_path(path)
        machine.check_local(self.path, machine.file_system(self.path.parent))
        self._workers = self.path.with_name(self.path.name + "-workers")
        self._closed = False
        self.name = ""
        self._file = str(self.path)
        self._identity: tuple[int, int] | None = None  # of the database; None: not checked
        self._reserve = Reserve(self.path.with_name(self.path.name + "-reserve"))
        # Without a boot's id every opening counts as one: each would set the clock ahead a little more.
        self._ahead = MARK_AHEAD_S if machine.boot_id() else 0.0
        self._fresh()
        self._prepare()
        _open_stores.add(self)

    def _fresh(self) -> None:
        """Have no connection, no queue and no turn yet: at first, and in a forked child."""
        self._writer: apsw.Cursor | None = None
        self._mark = 0.0  # in seconds since boot; until then nothing needs to be written about the time
        self._readers = _Reader()
        self._commits = 0
        self._combiner = Combiner(self._transact)
        self._door = machine.door(self.path)
        self._synced: bool | None = None
        self._here: list[Here] = []

    def forked(self) -> None:
        """In a forked child: leave what was inherited alone, and make everything anew."""
        _left_alone.append((self._writer, self._readers, self._combiner))
        self._fresh()

    def append(self, batch: Batch) -> Op:
        """Ask for a batch to be stored."""
        writes, guards, *_ = batch
        if len(writes) != 1 or (guards and writes[0].entity in guards):
            check_batch(batch)
        return self._combiner.submit(batch)

    def _transact(self, ops: list[Op]) -> None:
        """Store what queued batches ask for in one transaction; answer each when the disk has it."""
        if self._closed:
            self._check_open()
        if self._reserve.given and not self._reserve.make():
            ops = self._refuse(ops, [op for op in ops if begins(op.batch) and not ends(op.batch)])
        try:
            self._commit(ops)
        except apsw.FullError as error:
            last = [op for op in ops if ends(op.batch)]
            if not last or not self._reserve.give():
                raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error
            self._refuse(ops, [op for op in ops if op not in last])
            self._transact_last(last)
        except apsw.Error as error:
            raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error

    def _transact_last(self, ops: list[Op]) -> None:
        """Store what ends something, in the room that the reserve has given up."""
        try:
            self._commit(ops)
        except apsw.Error as error:
            raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error

    def _refuse(self, ops: list[Op], refused: list[Op]) -> list[Op]:
        """Refuse some, because the disk is full; return the others."""
        for op in refused:
            op.error = StoreError(f"{self.path}: {_full(self.path)}")
        return [op for op in ops if op not in refused]

    def _commit(self, ops: list[Op]) -> None:
        """Store batches in one transaction; after an error nothing of it is kept, not even the connection."""
        door, answers = self._door, _NO_ANSWERS
        try:
            door.enter(self._combiner.tell)
            try:
                if len(ops) == 1 and _is_alone(ops[0].batch) and machine.since_boot() <= self._mark:
                    answers = (self._alone(ops[0].batch),)
                elif ops:
                    answers = self._together([op.batch for op in ops])
            finally:
                door.leave()
            if file_identity(self._file) != self._identity:  # after the commit, or it could go between both
                self._readers = _Reader()  # or who asks whether it is stored would read it in the former file
                raise file_changed(self.path)
        except (TypeError, ValueError, OverflowError, apsw.TooBigError) as error:
            self._drop()
            raise UsageError(f"a batch holds what SQLite cannot store: {error}") from error
        except BaseException:
            self._drop()
            raise
        self._commits += 1
        for op, answer in zip(ops, answers, strict=True):
            if type(answer) is AlsoFailed:
                op.error = answer
            else:
                op.answer = answer  # type: ignore[assignment]

    def _alone(self, batch: Batch) -> Answer:
        """Store a batch that is one write, in a transaction of its own."""
        (write,), guards, sync, *_ = batch
        cursor = self._cursor(sync=sync)
        self._combiner.tell()
        seq = (_set_guarded if guards else _set)(cursor, write, guards, _ALONE)
        return make(Stored, ((seq,),)) if seq else _refused(cursor, batch)

    def _together(self, batches: list[Batch]) -> list[Answer]:
        """Store batches in one transaction, and the time with them where it is due."""
        cursor = self._cursor(sync=any(batch.sync for batch in batches))
        cursor.execute("BEGIN IMMEDIATE")
        answers = _apply(cursor, batches)
        moved = machine.since_boot() > self._mark
        if moved:
            self._move_mark(cursor)
        self._combiner.tell()
        cursor.execute("COMMIT")
        if moved and self._synced:
            self._note(answers)
        return answers

    def _note(self, answers: Sequence[Answer]) -> None:
        """Keep beside the file how far the log has come: what is synced cannot be lost again."""
        seqs = [seq for answer in answers if isinstance(answer, Stored) for seq in answer.seqs]
        if seqs:
            self._door.note(self.name, max(seqs))

    def _cursor(self, *, sync: bool) -> apsw.Cursor:
        """Return the writer's cursor, told how much the coming commit must wait for the disk."""
        if self._writer is None:
            self._writer = self._connect(apsw.SQLITE_OPEN_READWRITE).cursor()
            self._synced = None
        if self._synced is not sync:
            self._writer.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
            self._synced = sync
        return self._writer

    def _move_mark(self, cursor: apsw.Cursor) -> None:
        """Keep a time that no entry is later than until it has come; another process may be further."""
        mark = machine.since_boot() + self._ahead
        cursor.execute(_MARK, (self._wall_at_boot + mark,))
        self._mark = mark

    def _drop(self) -> None:
        """Let go of a connection that failed; what it had not committed, the mark too, is gone with it."""
        writer, self._writer = self._writer, None
        self._mark = 0.0
        if writer is not None:
            writer.connection.close(True)

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        self._check_open()
        reader = self._readers
        try:
            if reader.connection is None:
                reader.connection = self._connect(apsw.SQLITE_OPEN_READONLY)
            return _rows(reader.connection, sql, values)
        except apsw.Error as error:
            vars(reader).clear()
            raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error
        except BaseException:  # cut off: what is half read must not hold its snapshot
            vars(reader).clear()
            raise

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity."""
        reader, commits = self._readers, self._commits
        if reader.seen == commits:
            rows = self._read(_HEAD_OF, (entity,))
        else:
            with Shield():
                rows = self._read_warm(_HEAD_OF, (entity,))
            reader.seen = commits
        return _head(rows[0]) if rows else None

    def _read_warm(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Read through the writer's connection if nobody writes: its pages are at hand.

        Every commit makes a reader's pages void, which it then has to fetch anew. So who looks for the first
        time since then looks here, and who looks again has a reader of his own.
        """
        if self._writer is None or not self._combiner.take_turn():
            return self._read(sql, values)
        try:
            writer = self._writer
            return self._read(sql, values) if writer is None else _rows(writer, sql, values)
        except apsw.Error as error:
            self._drop()
            raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error
        finally:
            self._combiner.give_turn()

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""
        return (_head(row) for row in queries.rows(query, self._read))

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order."""
        return self._all_entries(after) if entity is None else self._entries_of(entity, after)

    def _all_entries(self, after: int) -> Iterator[Entry]:
        while rows := self._read(f"{_EVERY} WHERE seq>? ORDER BY seq LIMIT ?", (after, PAGE)):
            yield from map(_entry, rows)
            after = rows[-1][0]

    def _entries_of(self, entity: str, after: int) -> Iterator[Entry]:
        """Walk back from the head to the entry before the first asked for, then tell them forwards."""
        sql = f"{_CHAIN} SELECT {_LOG} FROM chain JOIN log ON seq=at"  # noqa: S608
        prev = NOWHERE
        for row in reversed(self._read(sql, (entity, after))):
            if row[2] > after:
                yield _entry((*row, prev))
            prev = row[4]

    def now(self) -> float:
        """Return the time since boot, from what it was when this boot's first store was opened."""
        return self._wall_at_boot + machine.since_boot()

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown; other processes' writes are seen by looking."""
        ends = time.monotonic() + timeout
        while True:
            ((last,),) = self._read("SELECT coalesce(max(seq), 0) FROM log")
            left = ends - time.monotonic()
            if last > after or left <= 0:
                return int(last)
            time.sleep(min(0.02, left))

    def prune(self, before: Mapping[str, int]) -> None:
        """Forget bodies, in the files too: they are overwritten, and the write-ahead log is emptied.

        Somebody who is reading at that moment keeps the latter as it is, until a later checkpoint.
        """
        self.aside(lambda connection: _prune(connection, before))

    def drop(self, at: Mapping[str, int]) -> int:
        """Remove entities that are at these versions. The last entry of all must not be among them."""
        return self.aside(lambda connection: _drop(connection, at))

    def aside(self, do: Callable[[apsw.Connection], T]) -> T:
        """Do something rare behind the door, on a connection of its own."""
        self._check_open()
        try:
            with self._door:
                connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
                try:
                    answer = do(connection)
                finally:
                    connection.close(True)
                self._check_identity()
                return answer
        except apsw.Error as error:
            if isinstance(error, apsw.FullError) and not self._reserve.given and self._reserve.give():
                return self.aside(do)  # most often it makes room
            raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error

    def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there."""
        return self.aside(lambda connection: queries.mend(connection, heads, upto))

    def adopt(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Take over entries of another log."""
        self.aside(lambda connection: queries.adopt(connection, entries, heads))

    def enter(self, worker: str) -> Here:
        """Hold the lock of a worker's file until it is closed, or this store is, or the process ends."""
        self._check_open()
        try:
            with self._door:
                here = machine.enter(self._workers, worker)
        except OSError as error:
            raise StoreError(f"{self._workers}: {error.strerror}") from error
        self._here.append(here)
        return here

    def gone(self, worker: str) -> bool:
        """Whether nobody holds the lock of a worker's file; a stopped process still does."""
        self._check_open()
        try:
            with self._door:
                return machine.gone(self._workers, worker)
        except OSError as error:
            raise StoreError(f"{self._workers}: {error.strerror}") from error

    def facts(self) -> Facts:
        """Say which engine writes, and what survives what."""
        return Facts(
            f"sqlite:///{self.path}",
            f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}), WAL",
            "an acknowledged entry survives the death of the process; with sync, power loss too, "
            "if the disk honours flushes",
            (
                f"file system: {machine.file_system(self.path.parent) or 'unknown'}",
                f"clock: {self.now() - time.time():+.0f} s from the wall clock",
            ),
        )

    # For the house ----------------------------------------------------------------------------------

    def house(self) -> SqliteHouse:
        """Return what keeps house here."""
        return SqliteHouse(self)

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        """Return what a statement reads."""
        return self._read(sql)

    def sort_objects(self) -> tuple[list[str], list[str]]:
        """Return foreign objects that touch our tables, and the tables of others in the file."""
        return sort_objects(self._read(OBJECTS))

    def reader(self) -> apsw.Connection:
        """Return a connection for reading, the caller's to close."""
        self._check_open()
        return self._connect(apsw.SQLITE_OPEN_READONLY)

    def renamed(self, name: str, last: int) -> None:
        """Be known by another name from now on; behind the door."""
        self.name = name
        self._door.note(name, last)

    def proved(self, copy: Path, check: Checked) -> None:
        """Have the entries and heads of a copy checked."""
        connection = _connect(copy, apsw.SQLITE_OPEN_READONLY)
        try:
            entries = connection.execute(f"{_EVERY} ORDER BY seq")
            heads = connection.execute(f"SELECT {_HEAD}, NULL FROM head")  # noqa: S608
            check(map(_entry, entries), map(_head, heads))
        finally:
            connection.close(True)

    def fault(self, error: apsw.Error, path: Path | None = None) -> str:
        """Say what the engine reported about a file, and what to do about it."""
        return _fault(error, path or self.path)

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
        if not self._closed:
            self._readers = _Reader()  # first: the last connection to close empties the write-ahead file
            self._combiner.stop(self._shut)
            for here in self._here:
                here.close()
            _open_stores.discard(self)

    def _shut(self) -> None:
        self._closed = True
        if self._writer is not None:
            with suppress(apsw.Error, StoreError), self._door:
                writer = self._cursor(sync=True)
                _rows(writer, "PRAGMA wal_checkpoint(PASSIVE)")  # also what was not synced yet is on disk now
                ((last,),) = _rows(writer, "SELECT coalesce(max(seq), 0) FROM log")
                self._door.note(self.name, last)
        self._drop()

    def _connect(self, flags: int) -> apsw.Connection:
        """Open the database; refuse another file than the one that was opened first."""
        self._check_identity()
        connection = _connect(self.path, flags)
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

    def _prepare(self) -> None:
        """Make or check the file: mode, format, durability, clock."""
        try:
            check_file(self.path)
            _create(self.path)
            self._identity = file_identity(self._file)
            with self._door:
                self._wall_at_boot = self._set_up()
            self._reserve.given = not self._reserve.make()
        except apsw.Error as error:
            raise StoreError(f"{self.path}: {_fault(error, self.path)}") from error
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error

    def _set_up(self) -> float:
        try:
            connection = self._cursor(sync=True).connection
            _set_up(connection, self.path)
            self.name = identify(connection, self.path, self._door)
            return _clock(connection)
        except BaseException:
            self._drop()
            raise


def _apply(cursor: apsw.Cursor, batches: list[Batch]) -> list[Answer]:
    """Compare and set each batch in turn."""
    return [
        _store(cursor, batch, _IN_ONE) if batch.also is None else _join(cursor, batch) for batch in batches
    ]


def _is_alone(batch: Batch) -> bool:
    """Whether a batch is one write that depends on one other thing at most."""
    writes, guards, _, also, _ = batch
    return len(writes) == 1 and len(guards) < 2 and also is None


def _join(cursor: apsw.Cursor, batch: Batch) -> Answer:
    """Store a batch together with what it brings along, or nothing of both."""
    assert batch.also is not None
    cursor.execute("SAVEPOINT batch")
    answer: Answer = _store(cursor, batch, _IN_ONE)
    if isinstance(answer, Stored):
        try:
            join(cursor, batch.also)
        except AlsoFailed as error:
            cursor.execute("ROLLBACK TO batch")
            answer = error
    cursor.execute("RELEASE batch")
    return answer


def _store(cursor: apsw.Cursor, batch: Batch, sql: _Sql) -> Stored | Conflict:
    """Store a batch, or say what stands in its way; a lone write finds that out by itself."""
    writes, guards = batch.writes, batch.guards
    if len(writes) == 1 and len(guards) < 2:
        seq = (_set_guarded if guards else _set)(cursor, writes[0], guards, sql)
        return make(Stored, ((seq,),)) if seq else _refused(cursor, batch)
    missed = _missed(cursor, batch)
    if missed is not None:
        return missed
    seqs = tuple([_set(cursor, write, guards, sql) for write in writes])
    assert 0 not in seqs, "a head moved inside the transaction that compared it"
    return make(Stored, (seqs,))


def _refused(cursor: apsw.Cursor, batch: Batch) -> Conflict:
    """Return what stands in the way of a lone write that was not stored."""
    return (_missed(cursor, batch) if batch.guards else None) or _conflict(cursor, batch.writes[0].entity)


def _missed(cursor: apsw.Cursor, batch: Batch) -> Conflict | None:
    """Return the conflict of a batch whose entities are not as it expects; before it writes anything."""
    expected = {**batch.guards, **{write.entity: write.expect for write in batch.writes}}
    for entity, version in expected.items():
        rows = _rows(cursor, "SELECT version FROM head WHERE entity=?", (entity,))
        if (rows[0][0] if rows else 0) != version:
            return _conflict(cursor, entity)
    return None


def _conflict(cursor: apsw.Cursor, entity: str) -> Conflict:
    found = _rows(cursor, _HEAD_OF, (entity,))
    return Conflict(entity, _head(found[0]) if found else None)


def _set_guarded(cursor: apsw.Cursor, write: Write, guards: Mapping[str, int], sql: _Sql) -> int:
    """Do as `_set`, if what guards it has the version that it had."""
    entity, expect, header, body, digest, head, by = write
    ((name, version),) = guards.items()
    guard = (name, version or None)
    if expect:
        entry = (digest, header, body, entity, expect, *guard)
        cursor.execute(sql.then_guarded, (*entry, digest, head, *by, entity, expect))
    else:
        try:
            cursor.execute(
                sql.first_guarded, (entity, digest, head, *by, *guard, entity, digest, header, body)
            )
        except apsw.ConstraintError:  # the guard has moved: nothing of this write is kept
            undo = ("ROLLBACK", ()) if sql is _ALONE else ("DELETE FROM head WHERE entity=?", (entity,))
            cursor.execute(*undo)
            return 0
    connection = cursor.connection
    return connection.last_insert_rowid() if connection.changes() else 0


def _set(cursor: apsw.Cursor, write: Write, guards: Mapping[str, int], sql: _Sql) -> int:
    """Move a head that has the expected version, and log it; return its seq, 0 when it has another.

    What guards it has been compared, or there is nothing.
    """
    entity, expect, header, body, digest, head, by = write
    if expect:
        entry = (digest, header, body, entity, expect)
        cursor.execute(sql.then, (*entry, digest, head, *by, entity, expect))
    else:
        cursor.execute(sql.first, (entity, digest, head, *by, entity, digest, header, body))
    connection = cursor.connection
    return connection.last_insert_rowid() if connection.changes() else 0


def _prune(connection: apsw.Connection, before: Mapping[str, int]) -> None:
    """Replace bodies by their digests, without leaving them in free space or in the write-ahead log."""
    connection.pragma("secure_delete", "ON")
    sql = f"{_CHAIN} SELECT at FROM chain WHERE number<?3"  # noqa: S608
    with connection:
        for entity, version in before.items():
            for (seq,) in _rows(connection, sql, (entity, 0, version)):
                ((body,),) = _rows(connection, "SELECT body FROM log WHERE seq=?", (seq,))
                if body is not None:
                    forgotten = (fingerprint(body), seq)
                    connection.execute("UPDATE log SET body=NULL, digest=? WHERE seq=?", forgotten)
    connection.set_busy_timeout(100)  # somebody may be reading: a later checkpoint does it then
    connection.pragma("wal_checkpoint", "TRUNCATE")


def _drop(connection: apsw.Connection, at: Mapping[str, int]) -> int:
    """Remove entries and head of each entity that is at its version."""
    connection.pragma("secure_delete", "ON")
    gone = 0
    with connection:
        for entity, version in at.items():
            if _rows(connection, "SELECT 1 FROM head WHERE entity=? AND version=?", (entity, version)):
                seqs = _rows(connection, f"{_CHAIN} SELECT at FROM chain", (entity, 0))  # noqa: S608
                connection.executemany("DELETE FROM log WHERE seq=?", seqs)
                connection.execute("DELETE FROM head WHERE entity=?", (entity,))
                gone += 1
    return gone


def _rows(source: apsw.Connection | apsw.Cursor, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Return all rows: a cursor that is not exhausted holds its snapshot and would show the past."""
    return source.execute(sql, values).fetchall()


def _head(row: tuple[Any, ...]) -> Head:
    return make(Head, (*row[:4], make(Index, row[4:10]), *row[10:]))


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, entity, version, _, digest, header, body, kept, prev = row
    try:
        body_digest = fingerprint(body) if body is not None else kept
    except TypeError:
        raise StoreError(f"entry {seq} ({entity}) was altered: its body is not made of bytes") from None
    return Entry(seq, entity, version, prev or NOWHERE, digest, header, body, body_digest)


def _connect(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(BUSY_MS)  # before anything else: even to ask for the mode may be busy
    connection.transaction_mode = "IMMEDIATE"
    connection.pragma("journal_size_limit", WAL_BYTES)
    connection.pragma("secure_delete", "FAST")  # or pages that are split would keep what is pruned later
    return connection


def _create(path: Path) -> None:
    """Make the file for its owner alone; one that exists is never opened by any other means than SQLite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return


def _set_up(connection: apsw.Connection, path: Path) -> None:
    """Read back what the engine really does, and make, check or renew the tables."""
    tables = check_objects(connection, path)
    if tables and not tables >= {"meta", "head", "log"}:
        raise StoreError(f"{path}: this is another program's database, not a store of oncemore")
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError(f"{path}: SQLite cannot use its write-ahead log here")
    if connection.pragma("synchronous") != 2:
        raise StoreError(f"{path}: SQLite does not wait for the disk (synchronous is not FULL)")
    with connection:
        if not tables:
            connection.execute(SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
        _migrate(connection, path)


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """Bring a file of an older format to this one, step by step; all of it or nothing."""
    ((found,),) = _rows(connection, "SELECT value FROM meta WHERE name='format'")
    if found > FORMAT:
        raise StoreError(
            f"{path} has format {found}, which a newer oncemore wrote; this one reads up to {FORMAT}: "
            "install the newer one"
        )
    for step in range(found, FORMAT):
        if step not in MIGRATIONS:
            raise StoreError(f"{path} has format {found}, which is too old for this oncemore")
        connection.execute(MIGRATIONS[step])
        connection.execute("UPDATE meta SET value=? WHERE name='format'", (step + 1,))


def _clock(connection: apsw.Connection) -> float:
    """Return the time at boot that all processes of this boot go by: the wall's, at least the mark's."""
    boot, since = machine.boot_id(), machine.since_boot()
    with connection:
        known = dict(_rows(connection, "SELECT name, value FROM meta"))
        wall = max(time.time(), known.get("mark", 0.0)) - since
        if boot and known.get("boot") == boot:
            wall = known["wall"]
        else:
            rows = (("boot", boot), ("wall", wall))
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", rows)
    return float(wall)


def _check_engine(version: str) -> None:
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < OLDEST_ENGINE:
        oldest = ".".join(map(str, OLDEST_ENGINE))
        raise StoreError(
            f"SQLite {version} can lose acknowledged commits (the WAL-reset bug); install an apsw that "
            f"brings {oldest} or newer"
        )


def _full(path: Path) -> str:
    return (
        f"the disk of {path.parent} is full: {left(path) or 0:,} bytes are left, and {LEAST_ROOM:,} or more "
        "are needed; nothing was stored, make room and call again"
    )


def _fault(error: apsw.Error, path: Path) -> str:
    """Say what the engine reported, and what to do about it where that is known."""
    name, room = type(error).__name__, left(path)
    if name in ("IOError", "CantOpenError") and room is not None and room < SCARCE:
        name = "FullError"
    if name == "FullError":
        return f"{_full(path)} ({type(error).__name__}: {error})"
    advice = {
        "BusyError": "another program holds the file",
        "ReadOnlyError": "the file or its folder cannot be written",
        "CantOpenError": "the file cannot be opened",
        "NotADBError": "this is not a store of oncemore",
        "CorruptError": "the file is damaged; restore a backup",
        "IOError": "the disk failed; what was stored must be read again",
    }.get(name, "")
    return f"{advice or 'SQLite refused'} ({name}: {error})"


_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_left_alone: list[object] = []


def _after_fork() -> None:
    """In the child: what was inherited is neither used nor closed, and everything is made anew."""
    machine.forked()
    for store in list(_open_stores):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
