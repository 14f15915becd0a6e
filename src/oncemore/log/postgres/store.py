"""The shared store: a schema in a PostgreSQL server, written through psycopg.

Writes go through one connection per process, in group commits (`log.group_commit`): each is one call of the
server, and every batch in it is stored or refused by itself. `log.postgres.writer`
makes the call and resolves lost replies, `log.postgres.statements` has its arguments, and
`log.postgres.connection` opens the connections. Reads share a small pool.

**Order.** Sequence numbers are drawn when an entry is written and become visible at the commit, and commits
of other processes may overtake. One lock for all appends would prevent that and serialise commits (8
processes, a commit of 3 ms: 179 steps/s instead of 1,191). Instead each append publishes its first number,
and `read_entries` and `wait_for_change` stop below the lowest number of a running append: a reader that
follows the log by `seq` sees every entry once. So an entry may be in its head a moment before it is in the
log; to start following, take a number from `wait_for_change` or from an entry, not from a head.

**Guards** hold until the commit: an append that writes an entity that was ever a guard takes the log
exclusively, all other appends share it. So a change of a switch waits for running appends, and they for it.

**Durability.** A server with `fsync` or `full_page_writes` off, or `data_sync_retry` on, acknowledges commits
that a power cut can lose, so it is refused, unless the store is opened with `unsafe_ok=True`;
`describe_store()` then says so. Batches with `sync` run with `synchronous_commit` at `on` or more.

**Rights.** The role that opens the store first creates the schema and owns it. A program needs no more than

    grant usage on schema oncemore to app;
    grant select on all tables in schema oncemore to app;
    grant execute on all functions in schema oncemore to app;

and can then append and prune, but neither change nor delete. It names the owner in its address,
postgresql://app@host/database?owner=ROLE, unless that is a superuser or a role that it is a member of: a
schema of any other owner is refused (`log.postgres.schema`).
"""

from __future__ import annotations

import os
import re
import secrets
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from oncemore.errors import StoreError, UsageError
from oncemore.log.group_commit import GroupCommit
from oncemore.log.postgres import queries, schema
from oncemore.log.postgres.connection import (
    ReadConnectionPool,
    ServerClock,
    build_store_error,
    check_server,
    check_text,
    close_connection,
    open_connection,
    parse_address,
    psycopg,
)
from oncemore.log.postgres.maintenance import PostgresMaintenance
from oncemore.log.postgres.notify import ChangeNotifier
from oncemore.log.postgres.statements import read_head, row_to_head
from oncemore.log.postgres.writer import PostgresWriter, split_groups
from oncemore.log.read_only import ReadOnlyMixin
from oncemore.log.record import NOWHERE
from oncemore.log.store import Entry, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.group_commit import PendingBatch
    from oncemore.log.postgres.connection import Connection, PostgresServer, Rows
    from oncemore.log.store import Batch, Head, HeadQuery, MaintenanceStore

T = TypeVar("T")
#: Entries that are read at a time.
PAGE = 500
#: Interval at which `wait_for_change` polls while a running append holds it back.
POLL_S = 0.02

_ENTRY = "l.seq, l.entity, l.version, p.hash, l.hash, l.header, l.body, l.digest"


class PostgresWorkerLock:
    """The registration of a worker of this process."""

    def __init__(self, store: PostgresStore, worker: str) -> None:
        self._store = store
        self._worker, self._token, self._process = worker, secrets.token_hex(8), os.getpid()
        store.query_rows("select {schema}.presence(%s, %s, true)", (worker, self._token))

    def close(self) -> None:
        """Unregister the worker, once; a later registration of the same name remains.

        A forked child does not unregister its parent. If the server cannot be reached, the lease of the
        worker expires.
        """
        # Another process id: a forked child has inherited this object.
        if self._process == os.getpid():
            self._process = 0
            with suppress(StoreError):
                self._store.query_rows("select {schema}.presence(%s, %s, false)", (self._worker, self._token))


class PostgresStore:
    """A store in a server that processes on many machines share."""

    supports_joined_writes = True
    detects_dead_workers = False
    checks_guards_late = False

    def __init__(self, url: str, schema: str | None = None, *, unsafe_ok: bool = False) -> None:
        self._where = parse_address(url)
        self._schema = schema = self._where.schema if schema is None else schema
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise UsageError(f"{schema!r} is not a schema's name: lower-case letters, digits and _, up to 63")
        self.display_name = self._where.shown
        self._closed = False
        columns = ", c.".join(queries.HEAD_COLUMNS)
        select_head = (
            f"prepare oncemore_head(text) as select c.{columns}, l.body from {schema}.head c "  # noqa: S608
            f"join {schema}.log l on l.entity = c.entity and l.version = c.version where c.entity = $1"
        )
        self._select_head = b"oncemore_head", select_head.encode()
        self._worker_locks: weakref.WeakSet[PostgresWorkerLock] = weakref.WeakSet()
        self._reset_state()
        self.server = self._prepare_server()
        if self.server.weaknesses and not unsafe_ok:
            raise StoreError(
                f"{self._where.shown} runs with {', '.join(self.server.weaknesses)}: a power cut could lose "
                "acknowledged commits. Correct the settings, or open the store with unsafe_ok=True"
            )
        _open_stores.add(self)

    def _reset_state(self) -> None:
        """Start without connections and queue: at the opening, and in a forked child."""
        self._writer = PostgresWriter(self._where, self._schema)
        self._readers = ReadConnectionPool(self._where)
        self._combiner = GroupCommit(self._store_batches)
        self._clock = ServerClock(self._ask_server_time)
        self._notifier = ChangeNotifier(self._where, self._schema)

    def reset_after_fork(self) -> None:
        """In a forked child: keep the inherited objects unused and unclosed, and start again."""
        _inherited.append((self._writer, self._readers, self._combiner, self._notifier))
        self._reset_state()

    def append(self, batch: Batch) -> PendingBatch:
        """Submit a batch; waiting for the ticket commits it."""
        # Before the batch joins a group: an invalid name would make the whole statement fail.
        for write in batch.writes:
            index = write.by
            texts = (write.entity, index.kind, index.state, index.step, index.worker, index.dataset)
            check_text(*texts)
        if batch.guards:
            check_text(*batch.guards)
        return self._combiner.submit_batch(batch)

    def _store_batches(self, ops: list[PendingBatch]) -> None:
        """Store the queued batches, ordered by entity, so that processes rarely collide."""
        self._check_open()
        # Before the round trip: the callers of the last commit work while this one is on its way.
        self._combiner.wake_committed()
        for group in split_groups(ops) if len(ops) > 1 else (ops,):
            answers = self._writer.store_batches([op.batch for op in group])
            for op, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    op.error = answer
                else:
                    op.answer = answer
            if any(isinstance(answer, Stored) for answer in answers):
                self._notifier.announce_append()

    def query_rows(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a statement that is safe to repeat."""
        self._check_open()
        return self._readers.read_rows(sql.format(schema=self._schema), values)

    def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity with the body of its last entry."""
        check_text(entity)
        self._check_open()
        result = self._readers.read_result(*self._select_head, [entity.encode()])
        return read_head(result, 0) if result.ntuples else None

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        """Return the heads that match a query."""
        if query.by_creation:
            return map(row_to_head, queries.read_all_heads(self.query_rows))
        return map(row_to_head, queries.read_head_rows(query, self.query_rows))

    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in order; of all entities only below the lowest number of a running append."""
        if entity is None:
            return self._read_pages("l.seq > %s and l.seq <= %s", (self._last_seq(),), "seq", after)
        check_text(entity)
        return self._read_pages("l.version > %s and l.entity = %s", (entity,), "version", after)

    def _read_pages(self, where: str, values: tuple[Any, ...], by: str, after: int) -> Iterator[Entry]:
        sql = (
            f"select {_ENTRY} from {{schema}}.log l left join {{schema}}.log p "  # noqa: S608
            f"on p.entity = l.entity and p.version = l.version - 1 where {where} order by l.{by} limit {PAGE}"
        )
        # The previous hash is joined, because the log stores only the own hash of each entry.
        while rows := self.query_rows(sql, (after, *values)):
            for row in rows:
                entry = _row_to_entry(row)
                yield entry
            after = getattr(entry, by)

    def now(self) -> float:
        """Return the server's time."""
        self._check_open()
        return self._clock.now()

    def _ask_server_time(self) -> float:
        ((now,),) = self.query_rows("select extract(epoch from clock_timestamp())::float8")
        return float(now)

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the log has grown, by notifications and by polling."""
        ends_at = time.monotonic() + timeout
        while True:
            # Before the log is read: a notification after this moment ends the wait below.
            notice_count = self._notifier.notice_count
            ((last_visible,),) = self.query_rows("select coalesce(max(seq), 0) from {schema}.log")
            left = ends_at - time.monotonic()
            if last_visible > after or left <= 0:
                last = self._last_seq()
                if last > after or left <= 0:
                    return last
                time.sleep(min(POLL_S, left))  # a running append below it will end soon
            else:
                self._notifier.wait_for_notice(notice_count, left)

    def _last_seq(self) -> int:
        ((last,),) = self.query_rows("select {schema}.last_seq()")
        return int(last)

    def run_as_owner(self, do: Callable[[Connection], T]) -> T:
        """Run a rare operation in one transaction, on a connection of its own."""
        self._check_open()
        connection: Connection | None = None
        try:
            connection = open_connection(self._where)
            with connection.transaction():
                return do(connection)
        except psycopg.Error as error:
            raise build_store_error(self._where, error) from error
        finally:
            close_connection(connection)

    def register_worker(self, worker: str) -> PostgresWorkerLock:
        """Register a worker in a table of the store until its lock is closed."""
        check_text(worker)
        worker_lock = PostgresWorkerLock(self, worker)
        self._worker_locks.add(worker_lock)
        return worker_lock

    def is_worker_gone(self, worker: str) -> bool:
        """Whether a worker has unregistered itself.

        Nothing else is proof: the network may have ended its session, and with it every lock, while the
        worker continues. A killed worker is found by its lease.
        """
        check_text(worker)
        rows = self.query_rows("select left_at is not null from {schema}.worker where name = %s", (worker,))
        return bool(rows and rows[0][0])

    def sort_objects(self) -> tuple[list[str], list[str]]:
        """Return foreign objects that affect our tables, and the other tables in the schema."""
        sql, values = schema.find_objects(self._schema)
        return schema.sort_objects(self.query_rows(sql, values))

    def open_maintenance(self) -> MaintenanceStore:
        """Return the maintenance operations of this store."""
        return PostgresMaintenance(self, self._schema)

    def close(self) -> None:
        """Release all resources; acknowledged batches remain stored."""
        if not self._closed:
            for worker_lock in list(self._worker_locks):
                worker_lock.close()
            self._combiner.stop_commits(self._close_connections)

    def _close_connections(self) -> None:
        self._closed = True
        self._notifier.close()
        self._writer.close()
        self._readers.shut_down()
        _open_stores.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where.shown}: the store is closed")

    def _prepare_server(self) -> PostgresServer:
        """Check the server, and create or migrate the schema."""
        connection: Connection | None = None
        try:
            connection = open_connection(self._where)
            server = check_server(self._where, connection)
            self._set_up(connection)
            return server
        except psycopg.Error as error:
            raise build_store_error(self._where, error) from error
        finally:
            close_connection(connection)

    def _set_up(self, connection: Connection) -> None:
        """Create or migrate the schema."""
        schema.upgrade_schema(connection, self._where, self._schema)


class ReadOnlyPostgresStore(ReadOnlyMixin, PostgresStore):
    """A store in PostgreSQL that cannot be written; it creates no schema."""

    def __init__(self, url: str) -> None:
        # An unsafe server is reported by `describe_store`, not refused: an operator must be able to look.
        super().__init__(url, unsafe_ok=True)

    def _set_up(self, connection: Connection) -> None:
        """Check that the schema is a store of this format; create nothing."""
        schema.check_owners(connection, self._where, self._schema)
        stored_format = schema.schema_format(connection, self._schema)
        if stored_format is None:
            raise StoreError(f"{self._where.shown}: there is no store in the schema {self._schema}")
        schema.check_format(self._where, self._schema, stored_format)


def _row_to_entry(row: tuple[Any, ...]) -> Entry:
    seq, entity, version, prev, own_hash, header, body, stored_digest = row
    # The digest is stored only once the body is pruned.
    if body is not None and stored_digest is not None:
        raise StoreError(f"entry {seq} ({entity}) was altered: it has a body and the digest of a pruned one")
    return Entry(
        seq=seq,
        entity=entity,
        version=version,
        prev=prev or NOWHERE,
        hash=own_hash,
        header=header,
        body=body,
        body_digest=stored_digest,
    )


_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
#: Objects of the parent process, referenced so that the garbage collector does not close them in the child.
_inherited: list[object] = []


def _reset_stores_after_fork() -> None:
    """In the child: use and close nothing that was inherited, and start again."""
    for store in list(_open_stores):
        store.reset_after_fork()


os.register_at_fork(after_in_child=_reset_stores_after_fork)
