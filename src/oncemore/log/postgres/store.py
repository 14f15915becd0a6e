"""The shared store: a schema in a PostgreSQL server, written through psycopg.

`log.database` has what it shares with other servers. `log.postgres.writer` makes the calls of the server,
`log.postgres.statements` has their arguments, and `log.postgres.connection` opens the connections.

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

import re
import time
from typing import TYPE_CHECKING

from oncemore.errors import StoreError, UsageError
from oncemore.log.database.queries import HEAD_COLUMNS, QueryDialect
from oncemore.log.database.store import DatabaseStore, open_stores
from oncemore.log.postgres import schema
from oncemore.log.postgres.connection import (
    PostgresClient,
    PostgresReaders,
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
from oncemore.log.postgres.statements import read_head
from oncemore.log.postgres.writer import PostgresWriter
from oncemore.log.read_only import ReadOnlyMixin

if TYPE_CHECKING:
    from oncemore.log.database.connection import DatabaseServer
    from oncemore.log.postgres.connection import Connection
    from oncemore.log.store import Head, MaintenanceStore

#: Interval at which `wait_for_change` polls while a running append holds it back.
POLL_S = 0.02


class PostgresStore(DatabaseStore["Connection"]):
    """A store in a PostgreSQL server that processes on many machines share."""

    dialect = QueryDialect(read_text="{}", contains="position(%s::bytea in {}) > 0", has_failed_index=True)
    _readers: PostgresReaders

    def __init__(self, url: str, schema: str | None = None, *, unsafe_ok: bool = False) -> None:
        self._where = parse_address(url)
        self._schema = schema = self._where.schema if schema is None else schema
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise UsageError(f"{schema!r} is not a schema's name: lower-case letters, digits and _, up to 63")
        columns = ", c.".join(HEAD_COLUMNS)
        select_head = (
            f"prepare oncemore_head(text) as select c.{columns}, l.body from {schema}.head c "  # noqa: S608
            f"join {schema}.log l on l.entity = c.entity and l.version = c.version where c.entity = $1"
        )
        self._select_head = b"oncemore_head", select_head.encode()
        tables = {name: f"{schema}.{name}" for name in ("head", "log", "worker")}
        super().__init__(PostgresClient(self._where), self._where.shown, {"schema": schema, **tables})
        self.server = self._prepare_server()
        if self.server.weaknesses and not unsafe_ok:
            raise StoreError(
                f"{self._where.shown} runs with {', '.join(self.server.weaknesses)}: a power cut could lose "
                "acknowledged commits. Correct the settings, or open the store with unsafe_ok=True"
            )
        open_stores.add(self)

    def _reset_state(self) -> None:
        super()._reset_state()
        self._writer = PostgresWriter(self._where, self._schema)
        self._readers = PostgresReaders(self._client)
        self._notifier = ChangeNotifier(self._where, self._schema)

    def check_text(self, *names: str) -> None:
        """Refuse names that PostgreSQL cannot store."""
        check_text(*names)

    def _announce_append(self) -> None:
        self._notifier.announce_append()

    def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity with the body of its last entry."""
        check_text(entity)
        self._check_open()
        result = self._readers.read_result(*self._select_head, [entity.encode()])
        return read_head(result, 0) if result.ntuples else None

    def _ask_server_time(self) -> float:
        ((now,),) = self.query_rows("select extract(epoch from clock_timestamp())::float8")
        return float(now)

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the log has grown, by notifications and by polling."""
        ends_at = time.monotonic() + timeout
        while True:
            # Before the log is read: a notification after this moment ends the wait below.
            notice_count = self._notifier.notice_count
            ((last_visible,),) = self.query_rows("select coalesce(max(seq), 0) from {log}")
            left = ends_at - time.monotonic()
            if last_visible > after or left <= 0:
                last = self._last_seq()
                if last > after or left <= 0:
                    return last
                time.sleep(min(POLL_S, left))  # a running append below it will end soon
            else:
                self._notifier.wait_for_notice(notice_count, left)

    def _last_seq(self) -> int:
        """Return the last seq below the lowest number of a running append."""
        ((last,),) = self.query_rows("select {schema}.last_seq()")
        return int(last)

    def write_presence(self, worker: str, token: str, *, is_here: bool) -> None:
        """Register or unregister a worker."""
        self.query_rows("select {schema}.presence(%s, %s, %s)", (worker, token, is_here))

    def sort_objects(self) -> tuple[list[str], list[str]]:
        """Return foreign objects that affect our tables, and the other tables in the schema."""
        sql, values = schema.find_objects(self._schema)
        return schema.sort_objects(self.query_rows(sql, values))

    def open_maintenance(self) -> MaintenanceStore:
        """Return the maintenance operations of this store."""
        return PostgresMaintenance(self, self._client, self.server, self._table_names)

    def _close_connections(self) -> None:
        self._notifier.close()
        super()._close_connections()

    def _prepare_server(self) -> DatabaseServer:
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
