"""The embedded store: one SQLite file in WAL mode, written through apsw.

Writes go through one connection per process, in group commits (`log.group_commit`). Each is one
`BEGIN IMMEDIATE … COMMIT` under the store's lock file, in which every batch is a compare-and-set of its own
(`log.sqlite.commit`). A commit is synced if one of its batches asks for it.

A storage error is fail-stop: the transaction is rolled back, no caller in it gets `Stored`, and the
connection is closed; the next batch opens a new one. After a fork the child does not touch the inherited
connections (closing them would drop the parent's locks) and opens its own.
"""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from oncemore._platform import BOOT_CLOCK, get_boot_time, run_after_fork
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import unreadable_format
from oncemore.log.group_commit import GroupCommit, InterruptShield
from oncemore.log.read_only import ReadOnlyMixin
from oncemore.log.sqlite import machine, schema
from oncemore.log.sqlite.backup import check_file, identify_file
from oncemore.log.sqlite.commit import (
    ALONE,
    MAX_GUARDS,
    MovedFileCheck,
    apply_batches,
    file_changed,
    file_identity,
    store_lock,
    store_single_write,
)
from oncemore.log.sqlite.files import DiskReserve, begins_attempt, disk_full_error, ends_attempt
from oncemore.log.sqlite.maintenance import SqliteMaintenance
from oncemore.log.sqlite.queries import LAST_SEQ, SELECT_HEAD, fetch_rows, row_to_head
from oncemore.log.sqlite.reader import ReaderConnection, SqliteReader
from oncemore.log.store import JoinedWriteFailed, Stored

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from oncemore.log.group_commit import PendingBatch
    from oncemore.log.sqlite.commit import Answer
    from oncemore.log.sqlite.machine import SqliteWorkerLock
    from oncemore.log.store import Batch, Head, MaintenanceStore

T = TypeVar("T")
#: How far the stored clock mark is ahead of the clock, in seconds.
MARK_AHEAD_S = 5.0

_WRITE_MARK = "INSERT INTO meta VALUES ('mark', ?) ON CONFLICT DO UPDATE SET value=max(value, excluded.value)"
_NO_ANSWERS: Sequence[Answer] = ()


class SqliteStore(SqliteReader):
    """A store in a file of this machine."""

    supports_joined_writes = True
    detects_dead_workers = True
    checks_guards_late = False
    #: `load_head` shields itself from Ctrl-C where that is needed; callers need not do it.
    shields_reads = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._workers = self.path.with_name(self.path.name + "-workers")
        self._reserve = DiskReserve(self.path.with_name(self.path.name + "-reserve"))
        # Without a boot id every opening counts as a new boot, and each would move the clock ahead.
        self._ahead = MARK_AHEAD_S if machine.boot_id() else 0.0
        self._reset_state()
        self._prepare_file()
        _open_stores.add(self)

    def _reset_state(self) -> None:
        """Start without connections, queue or lock: at the opening, and in a forked child."""
        self._writer: apsw.Cursor | None = None
        self._moved_file = MovedFileCheck()
        self._mark = 0.0  # in seconds since boot; 0 makes the next commit write the mark
        self._readers = ReaderConnection()
        self._commits = 0
        self._combiner = GroupCommit(self._store_batches)
        self._lock = store_lock(self.path)
        self._synced: bool | None = None  # the connection's setting of synchronous; None: not set yet
        self._worker_locks: list[SqliteWorkerLock] = []

    def reset_after_fork(self) -> None:
        """In a forked child: keep the inherited objects unused and unclosed, and start again."""
        _inherited.append((self._writer, self._readers, self._combiner))
        self._reset_state()

    def append(self, batch: Batch) -> PendingBatch:
        """Submit a batch; waiting for the ticket commits it."""
        return self._combiner.submit_batch(batch)

    def _store_batches(self, group: list[PendingBatch]) -> None:
        """Store the queued batches in one transaction, and set the answer of each after the commit."""
        if self._closed:
            self._check_open()
        # While the reserve is used up, a batch that starts an attempt is refused: there might be no space
        # left for the end of it.
        if self._reserve.is_released and not self._reserve.allocate_file():
            group = self._refuse_batches(
                group, [pending for pending in group if begins_attempt(pending.batch)]
            )
        try:
            self._commit_batches(group)
        except apsw.FullError as error:
            ending = [pending for pending in group if ends_attempt(pending.batch)]
            if not ending or not self._reserve.release_file():
                raise self._store_error(error) from error
            self._refuse_batches(group, [pending for pending in group if pending not in ending])
            self._store_with_reserve(ending)
        except apsw.Error as error:
            raise self._store_error(error) from error

    def _store_with_reserve(self, group: list[PendingBatch]) -> None:
        """Store batches that end attempts, in the disk space of the released reserve."""
        try:
            self._commit_batches(group)
        except apsw.Error as error:
            raise self._store_error(error) from error

    def _refuse_batches(self, group: list[PendingBatch], refused: list[PendingBatch]) -> list[PendingBatch]:
        """Set the error of the refused batches because the disk is full; return the remaining ones."""
        for pending in refused:
            pending.error = StoreError(f"{self.path}: {disk_full_error(self.path)}")
        return [pending for pending in group if pending not in refused]

    def _commit_batches(self, group: list[PendingBatch]) -> None:
        """Store batches in one transaction; after an error nothing is kept, not even the connection."""
        lock, wake_committed, answers = self._lock, self._combiner.wake_committed, _NO_ANSWERS
        try:
            lock.acquire_lock(wake_committed)
            try:
                if len(group) == 1 and time.clock_gettime(BOOT_CLOCK) <= self._mark:
                    writes, guards, sync, joined_write, _ = batch = group[0].batch
                    if len(writes) == 1 and len(guards) <= MAX_GUARDS and joined_write is None:
                        # The common case: one call of the engine carries the whole transaction.
                        cursor = self._writer
                        if cursor is None or self._synced is not sync:
                            cursor = self._writer_cursor(sync)
                        wake_committed()
                        answers = (store_single_write(cursor, batch, ALONE),)
                if group and not answers:
                    answers = self._store_group([pending.batch for pending in group])
            finally:
                lock.release_lock()
            # After the commit: before it, the file could still be replaced between check and commit.
            if self._writer is not None and self._moved_file.has_moved(self._writer):
                # New readers, because the old connections would still find the entry in the former file.
                self._readers = ReaderConnection()
                raise file_changed(self.path)
        except (TypeError, ValueError, OverflowError, apsw.TooBigError) as error:
            self._discard_writer()
            raise UsageError(f"a batch has a value that SQLite cannot store: {error}") from error
        except BaseException:
            self._discard_writer()
            raise
        self._commits += 1
        assert len(answers) == len(group)
        for position, answer in enumerate(answers):
            pending = group[position]
            if type(answer) is JoinedWriteFailed:
                pending.error = answer
            else:
                pending.answer = answer  # type: ignore[assignment]

    def _store_group(self, batches: list[Batch]) -> list[Answer]:
        """Store batches in one transaction, together with the clock mark if it has to move."""
        cursor = self._writer_cursor(any(batch.sync for batch in batches))
        cursor.execute("BEGIN IMMEDIATE")
        answers = apply_batches(cursor, batches)
        moves_mark = time.clock_gettime(BOOT_CLOCK) > self._mark
        if moves_mark:
            self._advance_clock_mark(cursor)
        self._combiner.wake_committed()
        cursor.execute("COMMIT")
        if moves_mark and self._synced:
            self._note_progress(answers)
        return answers

    def _note_progress(self, answers: Sequence[Answer]) -> None:
        """Record the last synced seq in the lock file: a file that later ends before it is an old copy."""
        seqs = [seq for answer in answers if isinstance(answer, Stored) for seq in answer.seqs]
        if seqs:
            self._lock.write_progress(self.name, max(seqs))

    def _writer_cursor(self, sync: bool) -> apsw.Cursor:
        """Return the writer's cursor, with `synchronous` set for the next commit."""
        if self._writer is None:
            self._writer = self._connect(apsw.SQLITE_OPEN_READWRITE).cursor()
            self._synced = None
        if self._synced is not sync:
            self._writer.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
            self._synced = sync
        return self._writer

    def _advance_clock_mark(self, cursor: apsw.Cursor) -> None:
        """Store a new mark ahead of the clock; the statement keeps a later mark of another process."""
        mark = time.clock_gettime(BOOT_CLOCK) + self._ahead
        cursor.execute(_WRITE_MARK, (self._wall_at_boot + mark,))
        self._mark = mark

    def _discard_writer(self) -> None:
        """Close a connection that failed; its uncommitted changes, the mark included, are rolled back."""
        writer, self._writer = self._writer, None
        self._mark = 0.0
        if writer is not None:
            writer.connection.close(True)

    def now(self) -> float:
        """Return the time since boot, added to the wall-clock time of the boot."""
        return self._wall_at_boot + time.clock_gettime(BOOT_CLOCK)

    def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity with the body of its last entry."""
        reader, commits = self._readers, self._commits
        if reader.commits_seen == commits:
            rows = self.query_rows(SELECT_HEAD, (entity,))
        else:
            with InterruptShield():
                rows = self._read_by_writer(SELECT_HEAD, (entity,))
            reader.commits_seen = commits
        return row_to_head(rows[0]) if rows else None

    def _read_by_writer(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Read through the writer's connection if no commit is running.

        Every commit invalidates the page cache of the reading connections, but not the writer's. So the first
        read of a thread after a commit uses the writer's, and the next ones the thread's own connection.
        """
        if self._writer is None or not self._combiner.take_turn():
            return self.query_rows(sql, values)
        try:
            writer = self._writer
            return self.query_rows(sql, values) if writer is None else fetch_rows(writer, sql, values)
        except apsw.Error as error:
            self._discard_writer()
            raise self._store_error(error) from error
        finally:
            self._combiner.release_turn()

    def run_exclusively(self, do: Callable[[apsw.Connection], T]) -> T:
        """Run a rare operation under the store's lock, on a connection of its own."""
        self._check_open()
        try:
            with self._lock:
                connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
                try:
                    result = do(connection)
                finally:
                    connection.close(True)
                self._check_identity()
                return result
        except apsw.Error as error:
            is_full = isinstance(error, apsw.FullError)
            if is_full and not self._reserve.is_released and self._reserve.release_file():
                return self.run_exclusively(do)  # most of these operations free disk space
            raise self._store_error(error) from error

    def register_worker(self, worker: str) -> SqliteWorkerLock:
        """Lock the file of a worker until the lock or this store is closed, or the process ends."""
        self._check_open()
        try:
            with self._lock:
                worker_lock = machine.lock_worker_file(self._workers, worker)
        except OSError as error:
            raise StoreError(f"{self._workers}: {error.strerror}") from error
        self._worker_locks.append(worker_lock)
        return worker_lock

    def is_worker_gone(self, worker: str) -> bool:
        """Whether no process holds the lock of a worker's file; a stopped process still holds it."""
        self._check_open()
        try:
            with self._lock:
                return machine.is_worker_gone(self._workers, worker)
        except OSError as error:
            raise StoreError(f"{self._workers}: {error.strerror}") from error

    def open_maintenance(self) -> MaintenanceStore:
        """Return the maintenance operations of this store."""
        return SqliteMaintenance(self)

    def set_identity(self, name: str, last_seq: int) -> None:
        """Give the store a new name; the caller holds the lock."""
        self.name = name
        self._lock.write_progress(name, last_seq)

    def close(self) -> None:
        """Release all resources; acknowledged batches remain stored."""
        if not self._closed:
            # Readers first: SQLite empties the write-ahead log when the last connection closes.
            self._readers = ReaderConnection()
            self._combiner.stop_commits(self._close_connections)
            for worker_lock in self._worker_locks:
                worker_lock.close()
            _open_stores.discard(self)

    def _close_connections(self) -> None:
        self._closed = True
        if self._writer is not None:
            with suppress(apsw.Error, StoreError), self._lock:
                writer = self._writer_cursor(True)
                # The checkpoint also puts commits on disk that were not synced.
                fetch_rows(writer, "PRAGMA wal_checkpoint(PASSIVE)")
                ((last_seq,),) = fetch_rows(writer, LAST_SEQ)
                self._lock.write_progress(self.name, last_seq)
        self._discard_writer()

    def _prepare_file(self) -> None:
        """Create or check the file: links, mode, format, durability, clock and reserve."""
        try:
            check_file(self.path)
            schema.create_file(self.path)
            self._identity = file_identity(self._file)
            with self._lock:
                self._wall_at_boot = self._set_up()
            self._reserve.is_released = not self._reserve.allocate_file()
        except apsw.Error as error:
            raise self._store_error(error) from error
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error

    def _set_up(self) -> float:
        """Set up the tables and the name of the store; return the wall-clock time of the boot."""
        try:
            connection = self._writer_cursor(True).connection
            schema.set_up_file(connection, self.path)
            self.name = identify_file(connection, self.path, self._lock)
            return schema.read_boot_time(connection)
        except BaseException:
            self._discard_writer()
            raise


class ReadOnlySqliteStore(ReadOnlyMixin, SqliteStore):
    """A SQLite store that cannot be written, and that waits for no lock.

    An operator reads the store when something is wrong: the file may not be writable for the operator, and a
    stopped process may hold the store's lock. So this store takes no lock, creates no file, moves no clock
    and removes nothing.
    """

    def _prepare_file(self) -> None:
        """Check that the file is a store of this format, and read its clock."""
        if not self.path.is_file():
            raise StoreError(f"{self.path}: there is no store here")
        tables = {name for (name,) in self.query_rows("SELECT name FROM sqlite_master")}
        if not tables >= {"meta", "head", "log"}:
            raise StoreError(f"{self.path}: this is not a store of oncemore")
        meta = dict(self.query_rows("SELECT name, value FROM meta"))
        if meta["format"] != schema.FORMAT:
            raise unreadable_format(str(self.path), meta["format"])
        self.name = str(meta.get("name", ""))
        # After a reboot the clock is set as a writer would set it, but not stored.
        same_boot = machine.boot_id() and meta.get("boot") == machine.boot_id()
        now = max(time.time(), meta.get("mark", 0.0))
        self._wall_at_boot = float(meta["wall"] if same_boot else now - get_boot_time())

    def is_worker_gone(self, worker: str) -> bool:
        """Whether no process holds the lock of a worker's file; queries the lock without taking it."""
        # Taking the lock, as a writer does, would make a starting worker fail.
        return machine.is_unlocked(self._workers / worker)

    def read_pragma(self, name: str) -> object:
        """Return the value of a PRAGMA."""
        return self.query_rows(f"PRAGMA {name}")[0][0]


_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
#: Objects of the parent process, referenced so that the garbage collector does not close them in the child.
_inherited: list[object] = []


def _reset_stores_after_fork() -> None:
    """In the child: use and close nothing that was inherited, and start again."""
    machine.reset_after_fork()
    for store in list(_open_stores):
        store.reset_after_fork()


run_after_fork(_reset_stores_after_fork)
