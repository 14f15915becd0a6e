"""The joined write of a batch in PostgreSQL: the user's function writes its own tables in our transaction."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.log.postgres.connection import is_connection_lost, psycopg
from oncemore.log.store import (
    JOINED_WRITE_LIMIT_S,
    JoinedWriteFailed,
    joined_write_timeout,
    transaction_over_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.log.postgres.connection import Connection

# Only a guard against mistakes: the check of the transaction status below finds the rest.
_CONTROL = re.compile(
    r"\s*(abort|begin|commit|end|prepare\s+transaction|release|rollback|savepoint|start)\b", re.IGNORECASE
)


class PostgresTransaction:
    """The transaction, as the user's function may use it."""

    dialect = "postgresql"

    def __init__(self, connection: Connection, ends_at: float) -> None:
        self._connection: Connection | None = connection
        self._ends_at = ends_at

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        if self._connection is None:
            raise transaction_over_error()
        if _CONTROL.match(sql):
            raise UsageError(
                "on_commit() writes in the store's transaction, and cannot begin or end a transaction"
            )
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise joined_write_timeout()
        # The server cancels a statement that runs past the limit; the setting ends with the transaction.
        self._connection.execute(
            "select set_config('statement_timeout', %s, true)", (f"{left * 1000 + 1:.0f}",)
        )
        try:
            cursor = self._connection.execute(sql, values or None)
        except psycopg.errors.QueryCanceled:
            raise joined_write_timeout() from None
        return cursor.fetchall() if cursor.description else []

    def end_access(self) -> None:
        """Refuse further statements."""
        self._connection = None


def run_joined_write(connection: Connection, write: Callable[[Any], object]) -> None:
    """Call the user's function in the open transaction; raise `JoinedWriteFailed` if it fails."""
    ends_at = time.monotonic() + JOINED_WRITE_LIMIT_S
    transaction = PostgresTransaction(connection, ends_at)
    try:
        connection.execute("set local search_path to default")  # the user's tables, not ours
        write(transaction)
        if time.monotonic() > ends_at:
            raise joined_write_timeout()
    except psycopg.Error as error:
        if is_connection_lost(error) and connection.closed:
            raise  # the writer repeats the whole transaction
        raise JoinedWriteFailed(str(error)) from error
    except Exception as error:
        raise JoinedWriteFailed(str(error)) from error
    finally:
        transaction.end_access()
    # The function may have caught the error of a statement; the transaction is aborted all the same.
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
        raise JoinedWriteFailed("the transaction is aborted") from UsageError(
            "on_commit() continued after a failed statement; let the error pass"
        )
    connection.execute("select set_config('statement_timeout', '0', true)")
