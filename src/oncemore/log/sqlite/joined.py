"""The joined write of a batch in SQLite: the user's function writes its own tables in our transaction.

SQLite itself refuses statements that would reach further (`sqlite3_set_authorizer`): our tables, the
transaction, other files, settings. The time is bounded: at the limit the running statement is interrupted
and further ones are refused.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import apsw

from oncemore.errors import UsageError
from oncemore.log.store import (
    JOINED_WRITE_LIMIT_S,
    JoinedWriteFailed,
    joined_write_timeout,
    transaction_over_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

OWN_NAMES = frozenset({"head", "log", "meta", "head_due"})
#: Instructions of the engine between two checks of the time limit.
PROGRESS_STEPS = 1000
_WRITES = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})
_REFUSED = frozenset(
    {
        apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
    }
)  # fmt: skip
_TABLES = frozenset(
    {
        apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_TRIGGER, apsw.SQLITE_REINDEX,
    }
)  # fmt: skip


class SqliteTransaction:
    """The transaction, as the user's function may use it."""

    dialect = "sqlite"

    def __init__(self, cursor: apsw.Cursor, ends_at: float) -> None:
        self._cursor: apsw.Cursor | None = cursor
        self._ends_at = ends_at

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        if self._cursor is None:
            raise transaction_over_error()
        if time.monotonic() > self._ends_at:
            raise joined_write_timeout()
        try:
            return self._cursor.execute(sql, values).fetchall()
        except apsw.InterruptError:
            raise joined_write_timeout() from None
        except apsw.AuthError:
            raise UsageError(
                "on_commit() may write its own tables; the tables of the store, its transaction, other "
                "files and PRAGMA are out of its reach"
            ) from None

    def end_access(self) -> None:
        """Refuse further statements."""
        self._cursor = None


def run_joined_write(cursor: apsw.Cursor, write: Callable[[Any], object]) -> None:
    """Call the user's function in the open transaction; raise `JoinedWriteFailed` if it fails.

    Its writes are rolled back then, and the rest of the transaction is kept.
    """
    connection, ends_at = cursor.connection, time.monotonic() + JOINED_WRITE_LIMIT_S
    transaction = SqliteTransaction(connection.cursor(), ends_at)
    cursor.execute("SAVEPOINT joined_write")
    # The authorizer sees every statement of the function, also those inside triggers.
    connection.authorizer = _authorize_statement
    # A returned True interrupts the running statement.
    connection.set_progress_handler(lambda: time.monotonic() > ends_at, PROGRESS_STEPS)
    failure: BaseException | None = None
    try:
        write(transaction)
        if time.monotonic() > ends_at:
            raise joined_write_timeout()
    except BaseException as error:  # noqa: BLE001 - raised again below, after the rollback
        failure = error
    finally:
        transaction.end_access()
        connection.authorizer = None
        connection.set_progress_handler(None)
    if failure is not None:
        cursor.execute("ROLLBACK TO joined_write")
    cursor.execute("RELEASE joined_write")
    if isinstance(failure, Exception):
        raise JoinedWriteFailed(str(failure)) from failure
    if failure is not None:
        raise failure


def _authorize_statement(
    action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    """Decide whether SQLite may prepare a statement; `first` and `second` are names of tables or indexes."""
    if action in _REFUSED or (action in _WRITES and first in OWN_NAMES):
        return apsw.SQLITE_DENY
    # Depending on the action, the table is the first name or the second.
    if action in _TABLES and not OWN_NAMES.isdisjoint({first, second}):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
