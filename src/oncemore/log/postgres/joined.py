"""What others write in a transaction of ours in PostgreSQL: their own tables, for a bounded time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.log.postgres.connection import lost, psycopg
from oncemore.log.store import ALSO_S, AlsoFailed, over, too_long

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.log.postgres.connection import Connection

_CONTROL = re.compile(
    r"\s*(abort|begin|commit|end|prepare\s+transaction|release|rollback|savepoint|start)\b", re.IGNORECASE
)


class PostgresJoined:
    """The transaction, as far as others may write in it."""

    dialect = "postgresql"

    def __init__(self, connection: Connection, ends: float) -> None:
        self._connection: Connection | None = connection
        self._ends = ends

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        if self._connection is None:
            raise over()
        if _CONTROL.match(sql):
            raise UsageError("on_commit() writes in the store's transaction, and cannot begin or end one")
        left = self._ends - time.monotonic()
        if left <= 0:
            raise too_long()
        self._connection.execute(
            "select set_config('statement_timeout', %s, true)", (f"{left * 1000 + 1:.0f}",)
        )
        try:
            cursor = self._connection.execute(sql, values or None)
        except psycopg.errors.QueryCanceled:
            raise too_long() from None
        return cursor.fetchall() if cursor.description else []

    def over(self) -> None:
        """Do nothing any more."""
        self._connection = None


def join(connection: Connection, also: Callable[[Any], object]) -> None:
    """Let others write in the transaction that is under way; raise `AlsoFailed` when they could not."""
    ends = time.monotonic() + ALSO_S
    joined = PostgresJoined(connection, ends)
    try:
        connection.execute("set local search_path to default")  # what is written there is the user's own
        also(joined)
        if time.monotonic() > ends:
            raise too_long()
    except psycopg.Error as error:
        if lost(error) and connection.closed:
            raise  # it is sent again
        raise AlsoFailed(str(error)) from error
    except Exception as error:
        raise AlsoFailed(str(error)) from error
    finally:
        joined.over()
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
        raise AlsoFailed("it ended the transaction") from UsageError(
            "on_commit() went on after a failed statement"
        )
    connection.execute("select set_config('statement_timeout', '0', true)")
