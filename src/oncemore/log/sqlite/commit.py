"""The parts of every commit in SQLite: the lock file, the compare-and-set of batches, the file's identity.

**The lock file** beside the store serialises writers. SQLite's own lock makes writing correct; the lock file
makes it fair between processes, unlike SQLite's busy handler. Waiting for it is bounded. It is a POSIX lock:
a forked child does not inherit it, and closing *any* descriptor of the file drops it, so a process opens the
file only once.

**A write** is two statements that both change a row or both change nothing, because the second depends on the
result of the first. So a lone write compares by writing. A batch with several writes or guards compares all
of them before it writes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from contextlib import suppress
from ctypes import addressof, c_int
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from oncemore._values import make
from oncemore.errors import StoreError
from oncemore.log.sqlite.files import open_private
from oncemore.log.sqlite.joined import run_joined_write
from oncemore.log.sqlite.queries import HEAD_LIST, SELECT_HEAD, fetch_rows, row_to_head
from oncemore.log.store import Conflict, JoinedWriteFailed, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from oncemore.log.store import Batch, EntryWrite

    Answer = Stored | Conflict | JoinedWriteFailed

LOCK_WAIT_S = 30.0
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
#: After this time the holder of a lock is taken for stuck, and waiters poll less often.
STUCK_S = 2.0
#: Name of the store and its last synced seq, as the lock file holds them.
_PROGRESS = re.compile(rb"([0-9a-f]{32}) ([0-9]{20})\n")

# For a new entity the head is inserted first, and `changes()` tells the log whether that succeeded. For an
# existing entity the log comes first, because its `before` is the seq of the head that the update replaces.
_FIRST = f"""
INSERT INTO head({HEAD_LIST}) VALUES (?,1,?,?,?,?,?,?,?,?,(SELECT coalesce(max(seq), 0) + 1 FROM log))
    ON CONFLICT DO NOTHING;
INSERT INTO log SELECT NULL, ?, 1, 0, ?, ?, ?, NULL WHERE changes()
"""  # noqa: S608
_NEXT = """
INSERT INTO log SELECT NULL, entity, version + 1, seq, ?, ?, ?, NULL FROM head WHERE entity=? AND version=?;
UPDATE head SET version=version+1, hash=?, head=?, kind=?, state=?, due=?, step=?, worker=?, dataset=?,
    seq=last_insert_rowid() WHERE entity=? AND version=?
"""
# The same under one guard or two, each given as entity and version (or NULL). A statement that queries the
# table that it writes makes SQLite build a temporary table, the most expensive part by far. So the statement
# on the log checks the guards; where the head was inserted first, a guard that fails makes the entity of the
# log row NULL, and the NOT NULL constraint rejects it.
_GUARD = "(SELECT version FROM head WHERE entity=?) IS ?"
_TWO_GUARDS = f"{_GUARD} AND {_GUARD}"
_FIRST_GUARDED = f"""
INSERT INTO head({HEAD_LIST}) VALUES (?,1,?,?,?,?,?,?,?,?,(SELECT coalesce(max(seq), 0) + 1 FROM log))
    ON CONFLICT DO NOTHING;
INSERT INTO log SELECT NULL, CASE WHEN {_GUARD} THEN ? END, 1, 0, ?, ?, ?, NULL WHERE changes()
"""  # noqa: S608
_NEXT_GUARDED = f"""
INSERT INTO log SELECT NULL, entity, version + 1, seq, ?, ?, ?, NULL FROM head
    WHERE entity=? AND version=? AND {_GUARD};
UPDATE head SET version=version+1, hash=?, head=?, kind=?, state=?, due=?, step=?, worker=?, dataset=?,
    seq=last_insert_rowid() WHERE entity=? AND version=? AND changes()
"""  # noqa: S608
#: The most guards that the statements of one write can compare: the switches, and the dataset of an attempt.
MAX_GUARDS = 2


class WriteStatements(NamedTuple):
    """The statements of one write by its number of guards: the first entry of an entity, and a later one."""

    first: tuple[str, ...]
    then: tuple[str, ...]


_IN_TRANSACTION = WriteStatements(
    (_FIRST, _FIRST_GUARDED, _FIRST_GUARDED.replace(_GUARD, _TWO_GUARDS)),
    (_NEXT, _NEXT_GUARDED, _NEXT_GUARDED.replace(_GUARD, _TWO_GUARDS)),
)
#: The same as whole transactions, so that a lone write is one call of the engine.
ALONE = WriteStatements(
    *(tuple(f"BEGIN IMMEDIATE;{sql};COMMIT" for sql in statements) for statements in _IN_TRANSACTION)
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
        while not try_lock(file, self._path):
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


def forget_locks() -> None:
    """In a forked child: forget the parent's locks without closing their files."""
    _locks.clear()


def try_lock(file: int, path: Path) -> bool:
    """Lock a file if no other process has locked it; return whether this process has it now."""
    try:
        fcntl.lockf(file, _TRY)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
    return True


def file_identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if it does not exist or cannot be read."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class MovedFileCheck:
    """Asks SQLite whether the file of a connection was deleted, moved or replaced since it was opened.

    It costs a system call, as `file_identity` does, but no result with twenty fields; every commit is
    followed by it. One thread at a time may use it.
    """

    def __init__(self) -> None:
        self._answer = c_int()  # SQLite writes its answer there
        self._address = addressof(self._answer)

    def has_moved(self, cursor: apsw.Cursor) -> bool:
        """Return whether the path of the database no longer leads to the file that the cursor writes to."""
        cursor.connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, self._address)
        return self._answer.value != 0


def file_changed(path: Path) -> StoreError:
    """Return the error for a database that was replaced or deleted while this process had it open."""
    replaced = file_identity(str(path)) is not None
    return StoreError(
        f"{path} was {'replaced by another file' if replaced else 'deleted or moved'} while this process "
        "had it open: entries written now would be lost, so nothing is acknowledged. Stop all "
        "processes that use it, put the file back, and start them again"
    )


def apply_batches(cursor: apsw.Cursor, batches: list[Batch]) -> list[Answer]:
    """Store batches one by one in the open transaction; each is stored or refused by itself."""
    return [
        _store_batch(cursor, batch) if batch.joined_write is None else _store_with_joined_write(cursor, batch)
        for batch in batches
    ]


def _store_with_joined_write(cursor: apsw.Cursor, batch: Batch) -> Answer:
    """Store a batch together with its joined write, or neither."""
    assert batch.joined_write is not None
    # A savepoint, because other batches share the transaction and must not be rolled back with this one.
    cursor.execute("SAVEPOINT batch")
    answer: Answer = _store_batch(cursor, batch)
    if isinstance(answer, Stored):
        try:
            run_joined_write(cursor, batch.joined_write)
        except JoinedWriteFailed as error:
            cursor.execute("ROLLBACK TO batch")
            answer = error
    cursor.execute("RELEASE batch")
    return answer


def _store_batch(cursor: apsw.Cursor, batch: Batch) -> Stored | Conflict:
    """Store a batch, or return the conflict that prevents it."""
    if len(batch.writes) == 1 and len(batch.guards) <= MAX_GUARDS:
        return store_single_write(cursor, batch, _IN_TRANSACTION)
    conflict = _find_conflict(cursor, batch)
    if conflict is not None:
        return conflict
    # Under no guard: all of them have just been compared.
    seqs = tuple([_write_entry(cursor, write, {}, _IN_TRANSACTION) for write in batch.writes])
    assert 0 not in seqs, "a head moved inside the transaction that compared it"
    return make(Stored, (seqs,))


def store_single_write(cursor: apsw.Cursor, batch: Batch, sql: WriteStatements) -> Stored | Conflict:
    """Store a batch of one write with at most `MAX_GUARDS`: the statements that write also compare."""
    seq = _write_entry(cursor, batch.writes[0], batch.guards, sql)
    if seq:
        return make(Stored, ((seq,),))
    conflict = _find_conflict(cursor, batch) if batch.guards else None
    return conflict or _build_conflict(cursor, batch.writes[0].entity)


def _find_conflict(cursor: apsw.Cursor, batch: Batch) -> Conflict | None:
    """Return a conflict if an entity or guard of a batch does not have the expected version."""
    expected = {**batch.guards, **{write.entity: write.expect for write in batch.writes}}
    for entity, version in expected.items():
        rows = fetch_rows(cursor, "SELECT version FROM head WHERE entity=?", (entity,))
        if (rows[0][0] if rows else 0) != version:
            return _build_conflict(cursor, entity)
    return None


def _build_conflict(cursor: apsw.Cursor, entity: str) -> Conflict:
    rows = fetch_rows(cursor, SELECT_HEAD, (entity,))
    return Conflict(entity, row_to_head(rows[0]) if rows else None)


def _write_entry(
    cursor: apsw.Cursor, write: EntryWrite, guards: Mapping[str, int], sql: WriteStatements
) -> int:
    """Update the head if it and the guards have their versions, and log the entry; return its seq, or 0."""
    entity, expect, header, body, own_hash, head, index = write
    guard_values: Sequence[Any] = ()
    if guards:  # an entry that ends an attempt has none
        guard_values = [value for name, version in guards.items() for value in (name, version or None)]
    if expect:
        entry = (own_hash, header, body, entity, expect)
        values: tuple[Any, ...] = (*entry, *guard_values, own_hash, head, *index, entity, expect)
        cursor.execute(sql.then[len(guards)], values)
    else:
        values = (entity, own_hash, head, *index, *guard_values, entity, own_hash, header, body)
        try:
            cursor.execute(sql.first[len(guards)], values)
        except apsw.ConstraintError:
            if not guards:
                raise
            # A guard has moved: undo the head that was inserted first.
            undo = ("ROLLBACK", ()) if sql is ALONE else ("DELETE FROM head WHERE entity=?", (entity,))
            cursor.execute(*undo)
            return 0
    connection = cursor.connection
    return connection.last_insert_rowid() if connection.changes() else 0
