"""The joined write of a batch in MySQL: the user's function writes its own tables in our transaction.

A statement that defines or locks tables commits the transaction in MySQL. So the function is called after
the versions were compared and before anything of the batch is written: if a statement of it ends the
transaction all the same, nothing of the batch is stored.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from pymysql.constants import ER, SERVER_STATUS

from oncemore.errors import UsageError
from oncemore.log.mysql.connection import pymysql, read_code
from oncemore.log.store import (
    JOINED_WRITE_LIMIT_S,
    JoinedWriteFailed,
    joined_write_timeout,
    transaction_over_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.log.mysql.connection import Connection, MysqlClient

#: Statements that begin or end a transaction, or commit it without saying so. Only a guard against mistakes:
#: the status of the transaction is checked after each statement.
_CONTROL = re.compile(
    r"\s*(alter|analyze|begin|commit|create|drop|end|flush|grant|load|lock|optimize|release|rename|repair|"
    r"revoke|rollback|savepoint|set\s+(session\s+|@@)?autocommit|start|truncate|unlock|xa)\b",
    re.IGNORECASE,
)
#: A statement took longer than allowed: in MariaDB, in MySQL, and while it waited for a lock.
_TIMEOUT_CODES = (1969, 3024, ER.LOCK_WAIT_TIMEOUT)


def is_in_transaction(connection: Any) -> bool:
    """Whether the server's last reply said that a transaction is open."""
    return bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


class MysqlTransaction:
    """The transaction, as the user's function may use it."""

    dialect = "mysql"

    def __init__(self, connection: Connection, limit_statement: str, ends_at: float) -> None:
        self._connection: Connection | None = connection
        self._limit_statement, self._ends_at = limit_statement, ends_at
        self.has_failed = False

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        if self._connection is None:
            raise transaction_over_error()
        if _CONTROL.match(sql):
            raise UsageError(
                "on_commit() writes in the store's transaction, and cannot begin or end a transaction; in "
                "MySQL a statement that defines or locks tables would end it too"
            )
        if self.has_failed:  # the server may have rolled the transaction back, and would commit this at once
            raise UsageError("on_commit() continued after a failed statement; let the error pass")
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise joined_write_timeout()
        try:
            return self._execute_within(left, sql, values)
        except pymysql.Error as error:
            self.has_failed = True
            if read_code(error) in _TIMEOUT_CODES:
                raise joined_write_timeout() from None
            raise

    def _execute_within(self, seconds: float, sql: str, values: Any) -> list[Any]:
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(self._limit_statement.format(s=f"{seconds:.3f}", ms=f"{seconds * 1000 + 1:.0f}"))
            cursor.execute(sql, values or None)
            rows = list(cursor.fetchall()) if cursor.description else []
        if not is_in_transaction(self._connection):
            self.has_failed = True
            raise UsageError("a statement of on_commit() ended the transaction of the store")
        return rows

    def end_access(self) -> None:
        """Refuse further statements."""
        self._connection = None


def run_joined_write(
    client: MysqlClient, connection: Connection, limit_statement: str, write: Callable[[Any], object]
) -> None:
    """Call the user's function in the open transaction; raise `JoinedWriteFailed` if it fails."""
    ends_at = time.monotonic() + JOINED_WRITE_LIMIT_S
    transaction = MysqlTransaction(connection, limit_statement, ends_at)
    try:
        write(transaction)
        if time.monotonic() > ends_at:
            raise joined_write_timeout()
    except pymysql.Error as error:
        # The writer repeats the whole transaction: nothing of it is left.
        if not connection.open or read_code(error) == ER.LOCK_DEADLOCK:
            raise
        raise JoinedWriteFailed(str(error)) from error
    except Exception as error:
        raise JoinedWriteFailed(str(error)) from error
    finally:
        transaction.end_access()
    if transaction.has_failed:
        raise JoinedWriteFailed("the transaction is aborted") from UsageError(
            "on_commit() continued after a failed statement; let the error pass"
        )
