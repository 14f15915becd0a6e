"""The joined write of a batch in MySQL.

A statement that defines or locks tables commits the transaction in MySQL. So the function is called after the
versions were compared and before anything of the batch is written: if a statement of it ends the transaction
all the same, nothing of the batch is stored.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from pymysql.constants import ER, SERVER_STATUS

from oncemore.errors import UsageError
from oncemore.log.database.joined import DatabaseTransaction
from oncemore.log.database.joined import run_joined_write as run_write
from oncemore.log.mysql.connection import pymysql, read_code
from oncemore.log.store import JOINED_WRITE_LIMIT_S, joined_write_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.mysql.connection import Connection

#: A statement took longer than allowed: in MariaDB, in MySQL, and while it waited for a lock.
_TIMEOUT_CODES = (1969, 3024, ER.LOCK_WAIT_TIMEOUT)


class MysqlTransaction(DatabaseTransaction["Connection"]):
    """The transaction, as the user's function may use it.

    limit_statement  the statement that limits the time of the next ones
    """

    dialect = "mysql"
    control_hint = "; in MySQL a statement that defines or locks tables would end it too"
    control = re.compile(
        r"\s*(alter|analyze|begin|commit|create|drop|end|flush|grant|load|lock|optimize|release|rename|repair|"
        r"revoke|rollback|savepoint|set\s+(session\s+|@@)?autocommit|start|truncate|unlock|xa)\b",
        re.IGNORECASE,
    )

    def __init__(self, connection: Connection, ends_at: float, limit_statement: str) -> None:
        super().__init__(connection, ends_at)
        self._limit_statement, self._has_failed = limit_statement, False

    def _run_statement(self, connection: Any, seconds: float, sql: str, values: Any) -> list[Any]:
        if self._has_failed:  # the server may have rolled the transaction back, and would commit this at once
            raise UsageError("on_commit() continued after a failed statement; let the error pass")
        limit = self._limit_statement.format(s=f"{seconds:.3f}", ms=f"{seconds * 1000 + 1:.0f}")
        try:
            with connection.cursor() as cursor:
                cursor.execute(limit)
                cursor.execute(sql, values or None)
                rows = list(cursor.fetchall()) if cursor.description else []
        except pymysql.Error as error:
            self._has_failed = True
            if read_code(error) in _TIMEOUT_CODES:
                raise joined_write_timeout() from None
            raise
        if not connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            self._has_failed = True
            raise UsageError("a statement of on_commit() ended the transaction of the store")
        return rows

    def is_aborted(self) -> bool:
        """Whether a statement has failed."""
        return self._has_failed


def run_joined_write(connection: Connection, limit_statement: str, write: Callable[[Any], object]) -> None:
    """Call the user's function in the open transaction; raise `JoinedWriteFailed` if it fails."""
    transaction = MysqlTransaction(connection, time.monotonic() + JOINED_WRITE_LIMIT_S, limit_statement)
    run_write(
        transaction,
        write,
        pymysql.Error,
        # In both cases nothing of the transaction is left.
        lambda error: not connection.open or read_code(error) == ER.LOCK_DEADLOCK,
    )
