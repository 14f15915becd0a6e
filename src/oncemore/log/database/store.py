"""The common part of the stores in a database server; see `log.postgres.store` and `log.mysql.store`.

Writes go through one connection per process, in group commits (`log.group_commit`): each is one call of the
server, and every batch in it is stored or refused by itself (`log.database.writer`). Reads share a pool.
"""

from __future__ import annotations

import os
import secrets
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from oncemore._platform import run_after_fork
from oncemore.errors import StoreError
from oncemore.log.database import queries
from oncemore.log.database import writer as writers
from oncemore.log.database.connection import ReadConnectionPool, ServerClock
from oncemore.log.group_commit import GroupCommit
from oncemore.log.store import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from oncemore.log.database.connection import DatabaseClient, Rows
    from oncemore.log.database.writer import DatabaseWriter
    from oncemore.log.group_commit import PendingBatch
    from oncemore.log.store import Batch, Entry, Head, HeadQuery

C = TypeVar("C")
T = TypeVar("T")


class DatabaseWorkerLock:
    """The registration of a worker of this process."""

    def __init__(self, store: DatabaseStore[Any], worker: str) -> None:
        self._store = store
        self._worker, self._token, self._process = worker, secrets.token_hex(8), os.getpid()
        store.write_presence(worker, self._token, is_here=True)

    def close(self) -> None:
        """Unregister the worker, once; a later registration of the same name remains.

        A forked child does not unregister its parent. If the server cannot be reached, the lease of the
        worker expires.
        """
        # Another process id: a forked child has inherited this object.
        if self._process == os.getpid():
            self._process = 0
            with suppress(StoreError):
                self._store.write_presence(self._worker, self._token, is_here=False)


class DatabaseStore(Generic[C]):
    """A store in a server that processes on many machines share.

    table_names  the names of our tables, by the names that statements use for them
    """

    supports_joined_writes = True
    detects_dead_workers = False
    checks_guards_late = False
    dialect: ClassVar[queries.QueryDialect]

    _readers: ReadConnectionPool[C]
    _writer: DatabaseWriter[C]

    def __init__(self, client: DatabaseClient[C], display_name: str, table_names: Mapping[str, str]) -> None:
        self._client, self.display_name, self._table_names = client, display_name, table_names
        self._closed = False
        self._worker_locks: weakref.WeakSet[DatabaseWorkerLock] = weakref.WeakSet()
        self._reset_state()

    def _reset_state(self) -> None:
        """Start without connections and queue: at the opening, and in a forked child."""
        self._readers = ReadConnectionPool(self._client)
        self._combiner = GroupCommit(self._store_batches)
        self._clock = ServerClock(self._ask_server_time)

    def reset_after_fork(self) -> None:
        """In a forked child: keep the inherited objects unused and unclosed, and start again."""
        _inherited.append(vars(self).copy())
        self._reset_state()

    def check_text(self, *names: str) -> None:
        """Refuse names that the server cannot store, before they make a whole group of batches fail."""
        raise NotImplementedError

    def write_presence(self, worker: str, token: str, *, is_here: bool) -> None:
        """Register a worker of this process, or unregister it by the token of its registration."""
        raise NotImplementedError

    def _ask_server_time(self) -> float:
        raise NotImplementedError

    def _announce_append(self) -> None:
        """Wake the readers that wait for the log to grow."""
        raise NotImplementedError

    def _last_seq(self) -> int:
        """Return the last seq that a reader of the log may continue from."""
        raise NotImplementedError

    def _confirm_seq(self, seq: int) -> None:
        """Return when the entries up to a seq, which were read just now, are on the server's disk."""

    def append(self, batch: Batch) -> PendingBatch:
        """Submit a batch; waiting for the ticket commits it."""
        # Before the batch joins a group: an invalid name would make the whole statement fail.
        for write in batch.writes:
            index = write.by
            texts = (write.entity, index.kind, index.state, index.step, index.worker, index.dataset)
            self.check_text(*texts)
        if batch.guards:
            self.check_text(*batch.guards)
        return self._combiner.submit_batch(batch)

    def _store_batches(self, ops: list[PendingBatch]) -> None:
        """Store the queued batches, ordered by entity, so that processes rarely collide."""
        self._check_open()
        # Before the round trip: the callers of the last commit work while this one is on its way.
        self._combiner.wake_committed()
        for group in writers.split_groups(ops, self._max_group_bytes()) if len(ops) > 1 else (ops,):
            answers = self._writer.store_batches([op.batch for op in group])
            for op, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    op.error = answer
                else:
                    op.answer = answer
            if any(isinstance(answer, Stored) for answer in answers):
                self._announce_append()

    def _max_group_bytes(self) -> int:
        return writers.MAX_STATEMENT_BYTES

    def query_rows(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a statement that is safe to repeat."""
        self._check_open()
        return self._readers.read_rows(sql.format(**self._table_names), values)

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        """Return the heads that match a query."""
        if query.by_creation:
            return self._read_heads(queries.read_all_heads(self.query_rows, self.dialect))
        # Read at once, so that an invalid query fails here and not at the first head.
        rows = queries.read_head_rows(query, self.query_rows, self.dialect, self.check_text)
        return self._read_heads((rows,))

    def _read_heads(self, pages: Iterable[Rows]) -> Iterator[Head]:
        for rows in pages:
            self._confirm_seq(max((row[10] for row in rows), default=0))
            yield from map(queries.row_to_head, rows)

    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in order; of all entities only up to `_last_seq`."""
        if entity is None:
            return self._read_pages("l.seq > %s and l.seq <= %s", (self._last_seq(),), "seq", after)
        self.check_text(entity)
        return self._read_pages("l.version > %s and l.entity = %s", (entity,), "version", after)

    def _read_pages(self, where: str, values: tuple[Any, ...], by: str, after: int) -> Iterator[Entry]:
        sql = queries.select_entries(self.dialect, where, by)
        while rows := self.query_rows(sql, (after, *values)):
            self._confirm_seq(rows[-1][0])
            for row in rows:
                entry = queries.row_to_entry(row)
                yield entry
            after = getattr(entry, by)

    def now(self) -> float:
        """Return the server's time."""
        self._check_open()
        return self._clock.now()

    def run_as_owner(self, do: Callable[[C], T]) -> T:
        """Run a rare operation in one transaction, on a connection of its own."""
        self._check_open()
        client, connection = self._client, None
        try:
            connection = client.open_connection()
            client.execute_rows(connection, "begin")
            result = do(connection)
            client.execute_rows(connection, "commit")
            return result
        except client.error as error:
            raise client.build_store_error(error) from error
        finally:
            # A transaction that is not committed is rolled back with its connection.
            client.close_connection(connection)

    def register_worker(self, worker: str) -> DatabaseWorkerLock:
        """Register a worker in a table of the store until its lock is closed."""
        self.check_text(worker)
        worker_lock = DatabaseWorkerLock(self, worker)
        self._worker_locks.add(worker_lock)
        return worker_lock

    def is_worker_gone(self, worker: str) -> bool:
        """Whether a worker has unregistered itself.

        Nothing else is proof: the network may have ended its session, and with it every lock, while the
        worker continues. A killed worker is found by its lease.
        """
        self.check_text(worker)
        rows = self.query_rows("select left_at is not null from {worker} where name = %s", (worker,))
        return bool(rows and rows[0][0])

    def close(self) -> None:
        """Release all resources; acknowledged batches remain stored."""
        if not self._closed:
            for worker_lock in list(self._worker_locks):
                worker_lock.close()
            self._combiner.stop_commits(self._close_connections)

    def _close_connections(self) -> None:
        self._closed = True
        self._writer.close()
        self._readers.shut_down()
        open_stores.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.display_name}: the store is closed")


#: The open stores of this process, which a forked child resets.
open_stores: weakref.WeakSet[DatabaseStore[Any]] = weakref.WeakSet()
#: Objects of the parent process, referenced so that the garbage collector does not close them in the child.
_inherited: list[object] = []


def _reset_stores_after_fork() -> None:
    """In the child: use and close nothing that was inherited, and start again."""
    for store in list(open_stores):
        store.reset_after_fork()


run_after_fork(_reset_stores_after_fork)
