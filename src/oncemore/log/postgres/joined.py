"""The joined write of a batch in PostgreSQL."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from oncemore.log.database.joined import DatabaseTransaction
from oncemore.log.database.joined import run_joined_write as run_write
from oncemore.log.postgres.connection import is_connection_lost, psycopg
from oncemore.log.store import JOINED_WRITE_LIMIT_S, joined_write_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.postgres.connection import Connection


class PostgresTransaction(DatabaseTransaction["Connection"]):
    """The transaction, as the user's function may use it."""

    dialect = "postgresql"
    control = re.compile(
        r"\s*(abort|begin|commit|end|prepare\s+transaction|release|rollback|savepoint|start)\b", re.IGNORECASE
    )

    def __init__(self, connection: Connection, ends_at: float) -> None:
        super().__init__(connection, ends_at)
        self._info = connection.info

    def _run_statement(self, connection: Connection, seconds: float, sql: str, values: Any) -> list[Any]:
        # The server cancels a statement that runs past the limit; the setting ends with the transaction.
        limit = "select set_config('statement_timeout', %s, true)"
        connection.execute(limit, (f"{seconds * 1000 + 1:.0f}",))
        try:
            cursor = connection.execute(sql, values or None)
        except psycopg.errors.QueryCanceled:
            raise joined_write_timeout() from None
        return cursor.fetchall() if cursor.description else []

    def is_aborted(self) -> bool:
        """Whether a statement has failed."""
        return self._info.transaction_status != psycopg.pq.TransactionStatus.INTRANS


def run_joined_write(connection: Connection, write: Callable[[Any], object]) -> None:
    """Call the user's function in the open transaction; raise `JoinedWriteFailed` if it fails."""
    transaction = PostgresTransaction(connection, time.monotonic() + JOINED_WRITE_LIMIT_S)

    def write_own_tables(transaction: PostgresTransaction) -> None:
        connection.execute("set local search_path to default")  # the user's tables, not ours
        write(transaction)

    run_write(
        transaction,
        write_own_tables,
        psycopg.Error,
        lambda error: is_connection_lost(error) and connection.closed,
    )
    connection.execute("select set_config('statement_timeout', '0', true)")
