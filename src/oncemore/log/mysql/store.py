"""The shared store in MySQL or MariaDB: tables of one database, written through PyMySQL.

`log.database` has what it shares with other servers. `log.mysql.writer` sends the appends,
`log.mysql.statements` has their text, and `log.mysql.connection` opens the connections.

**Order.** An append locks one row, which holds the last sequence number, before it compares anything, and
until its commit. So appends run one after the other, numbers have no gaps, and they become visible in their
order; a guard holds until the commit, and two appends never deadlock. The row is locked while the server
works, not while it waits for the network or for its disk: InnoDB releases locks before it waits for the
disk, so that the commits of several processes share one write of the disk. With a binary log (`log_bin`) it
releases them afterwards, and processes wait for each other's commits.

**Durability.** What a reader has seen is on disk (`log.mysql.durable`). A server whose settings let it
acknowledge commits that a power cut can lose is refused, unless the store is opened with `unsafe_ok=True`.
The setting that decides whether a commit waits for the disk holds for a whole server: batches without
`sync` wait as well.

**Waiting.** MySQL has no notifications: a reader that waits for the log to grow polls one row, up to
`MAX_POLL_S` apart. Appends of its own process wake it at once.

**Rights.** The user that opens the store first creates the tables and procedures, and needs `create`,
`create routine`, `alter routine`, `select`, `insert`, `update` and `delete`. A program needs no more than

    grant select, execute on shop.* to app@'%';

and can then append and prune, but neither change nor delete. It names the user that created the procedures:
mysql://app@host/shop?owner=admin@host (`log.mysql.schema`).
"""

from __future__ import annotations

import threading
import time
from math import isfinite
from sys import float_info
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, UsageError
from oncemore.log.database.queries import QueryDialect, row_to_head
from oncemore.log.database.store import DatabaseStore, open_stores
from oncemore.log.mysql import schema
from oncemore.log.mysql.connection import MysqlClient, check_names, check_server, parse_address, pymysql
from oncemore.log.mysql.durable import DurablePosition
from oncemore.log.mysql.maintenance import MysqlMaintenance
from oncemore.log.mysql.writer import MysqlWriter
from oncemore.log.read_only import ReadOnlyMixin

if TYPE_CHECKING:
    from oncemore.log.database.connection import Rows
    from oncemore.log.group_commit import PendingBatch
    from oncemore.log.mysql.connection import Connection, MysqlServer
    from oncemore.log.store import Batch, Head, MaintenanceStore

MAX_FLOAT = float_info.max
#: Interval at which a waiting reader polls the log: at first, and at most.
MIN_POLL_S, MAX_POLL_S = 0.02, 0.25
#: Statements that limit the time of later statements, by product; {s} in seconds, {ms} in milliseconds.
LIMIT_STATEMENTS = {
    "MariaDB": "set session max_statement_time = {s}",
    "MySQL": "set session max_execution_time = {ms}",
}


class MysqlStore(DatabaseStore["Connection"]):
    """A store in a MySQL or MariaDB server that processes on many machines share."""

    # MySQL has no partial index, and one of all heads would be written with every entry.
    dialect = QueryDialect(
        read_text="convert({} using utf8mb4)", contains="locate(%s, {}) > 0", has_failed_index=False
    )
    _client: MysqlClient
    _writer: MysqlWriter

    def __init__(self, url: str, *, unsafe_ok: bool = False) -> None:
        where = parse_address(url)
        client = MysqlClient(where)
        tables = {name: f"{where.prefix}_{name}" for name in schema.TABLES}
        self._select_head = (
            f"select {self.dialect.select_columns('h')}, l.body from {{head}} h "  # noqa: S608
            "join {log} l on l.seq = h.seq where h.entity = %s"
        )
        self._changed = threading.Condition()
        self._append_count = 0
        super().__init__(client, where.shown, {"prefix": where.prefix, **tables})
        self.server = self._prepare_server()
        self._apply_limits()
        weaknesses = self.server.facts.weaknesses
        if weaknesses and not unsafe_ok:
            raise StoreError(
                f"{where.shown} runs with {', '.join(weaknesses)}: a power cut could lose acknowledged "
                "commits. Correct the settings, or open the store with unsafe_ok=True"
            )
        open_stores.add(self)

    def _reset_state(self) -> None:
        super()._reset_state()
        self._position = DurablePosition(self._read_published, self._flush)
        self._writer = MysqlWriter(self._client, self._client.where.prefix, self._position, self.load_head)
        self._changed = threading.Condition()

    def _apply_limits(self) -> None:
        """Tell the writer the limits of the server."""
        product = self.server.facts.engine.partition(" ")[0]
        self._writer.max_packet, self._writer.limit_sql = self.server.max_packet, LIMIT_STATEMENTS[product]

    def reset_after_fork(self) -> None:
        """In a forked child: keep the inherited objects unused and unclosed, and start again."""
        super().reset_after_fork()
        self._apply_limits()

    def check_text(self, *names: str) -> None:
        """Refuse names that no column of our tables can hold."""
        check_names(names)

    def query_rows(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a statement that is safe to repeat."""
        # MySQL has no infinity: in a comparison the largest number means the same.
        finite = (
            max(min(value, MAX_FLOAT), -MAX_FLOAT) if type(value) is float else value for value in values
        )
        return super().query_rows(sql, tuple(finite))

    def append(self, batch: Batch) -> PendingBatch:
        """Submit a batch; waiting for the ticket commits it."""
        for write in batch.writes:
            kind, state, due, *names = write.by
            check_names((), names, (kind, state))
            if due is not None and not isfinite(due):
                raise UsageError(f"{write.entity} is due at {due}, and MySQL cannot store it")
        return super().append(batch)

    def _max_group_bytes(self) -> int:
        # Twice in a statement, as hexadecimal digits, and beside the names.
        return min(super()._max_group_bytes(), self._writer.max_packet // 4)

    def _announce_append(self) -> None:
        with self._changed:
            self._append_count += 1
            self._changed.notify_all()

    def _confirm_seq(self, seq: int) -> None:
        self._position.require(seq)

    def _read_published(self) -> int:
        return self._read_counter("synced_seq")

    def _flush(self) -> None:
        self.query_rows("call {prefix}_flush()")

    def _read_counter(self, name: str) -> int:
        ((value,),) = self.query_rows("select value from {counter} where name = %s", (name,))
        return int(value)

    def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity with the body of its last entry."""
        check_names((entity,))
        rows = self.query_rows(self._select_head, (entity.encode(),))
        if not rows:
            return None
        head = row_to_head(rows[0])
        self._confirm_seq(head.seq)
        return head

    def _ask_server_time(self) -> float:
        # Not unix_timestamp(), which ends in 2038.
        ((microseconds,),) = self.query_rows(
            "select timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(6))"
        )
        return float(microseconds / 1e6)

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the log has grown, by polling."""
        ends_at = time.monotonic() + timeout
        pause = MIN_POLL_S
        while True:
            count = self._append_count  # before the log is read: a later append ends the wait below
            last, left = self._read_counter("last_seq"), ends_at - time.monotonic()
            if last > after or left <= 0:
                self._confirm_seq(last)
                return last
            with self._changed:
                self._changed.wait_for(lambda: self._append_count != count or self._closed, min(pause, left))  # noqa: B023
            pause = min(pause * 1.5, MAX_POLL_S)

    def _last_seq(self) -> int:
        return self._read_counter("last_seq")

    def write_presence(self, worker: str, token: str, *, is_here: bool) -> None:
        """Register or unregister a worker."""
        check_names((), (worker,))
        self.query_rows("call {prefix}_presence(%s, %s, %s)", (worker, token, is_here))

    def sort_objects(self) -> tuple[list[str], list[str]]:
        """Return foreign objects that affect our tables; other tables of the database are the user's."""
        connection = self._client.open_connection()
        try:
            return schema.find_objects(self._client, connection), []
        except pymysql.Error as error:
            raise self._client.build_store_error(error) from error
        finally:
            self._client.close_connection(connection)

    def open_maintenance(self) -> MaintenanceStore:
        """Return the maintenance operations of this store."""
        return MysqlMaintenance(self, self._client, self.server.facts, self._table_names)

    def _close_connections(self) -> None:
        super()._close_connections()
        self._announce_append()

    def _prepare_server(self) -> MysqlServer:
        """Check the server, and create or migrate the tables."""
        connection: Connection | None = None
        try:
            connection = self._client.open_for_writing()
            server = check_server(self._client, connection)
            self._set_up(connection)
            return server
        except pymysql.Error as error:
            raise self._client.build_store_error(error) from error
        finally:
            self._client.close_connection(connection)

    def _set_up(self, connection: Connection) -> None:
        """Create or migrate the tables."""
        schema.upgrade_schema(self._client, connection)


class ReadOnlyMysqlStore(ReadOnlyMixin, MysqlStore):
    """A store in MySQL that cannot be written; it creates no tables."""

    def __init__(self, url: str) -> None:
        # An unsafe server is reported by `describe_store`, not refused: an operator must be able to look.
        super().__init__(url, unsafe_ok=True)

    def _confirm_seq(self, seq: int) -> None:
        """Do nothing, because it could need a commit: a reader may see an entry a moment too early."""

    def _set_up(self, connection: Connection) -> None:
        """Check that the tables are a store of this format; create nothing."""
        where = self._client.where
        schema.check_objects(self._client, connection)
        stored_format = schema.read_format(self._client, connection, where.prefix)
        if stored_format is None:
            raise StoreError(f"{where.shown}: there is no store with the prefix {where.prefix}")
        schema.check_format(where, stored_format)
