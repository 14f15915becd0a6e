"""What others write in a transaction of ours: their own tables in our file, and nothing else.

The engine itself refuses what would reach further (`sqlite3_set_authorizer`): our tables, the transaction,
other files, settings. Time is bounded: a statement is interrupted and the next one refused when it is up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import apsw

from oncemore.errors import UsageError
from oncemore.log.store import ALSO_S, AlsoFailed, over, too_long

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

OURS = frozenset({"head", "log", "meta", "head_due"})
EVERY = 1000  # steps of the engine between two looks at the clock
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


class SqliteJoined:
    """The transaction, as far as others may write in it."""

    dialect = "sqlite"

    def __init__(self, cursor: apsw.Cursor, ends: float) -> None:
        self._cursor: apsw.Cursor | None = cursor
        self._ends = ends

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        if self._cursor is None:
            raise over()
        if time.monotonic() > self._ends:
            raise too_long()
        try:
            return self._cursor.execute(sql, values).fetchall()
        except apsw.InterruptError:
            raise too_long() from None
        except apsw.AuthError:
            raise UsageError(
                "on_commit() may write its own tables; those of the store, its transaction, other files and "
                "PRAGMA are out of its reach"
            ) from None

    def over(self) -> None:
        """Do nothing any more."""
        self._cursor = None


def join(cursor: apsw.Cursor, also: Callable[[Any], object]) -> None:
    """Let others write in the transaction that is under way; raise `AlsoFailed` when they could not.

    What they had written by then is gone.
    """
    connection, ends = cursor.connection, time.monotonic() + ALSO_S
    joined = SqliteJoined(connection.cursor(), ends)
    cursor.execute("SAVEPOINT also")
    connection.authorizer = _allowed
    connection.set_progress_handler(lambda: time.monotonic() > ends, EVERY)
    fault: BaseException | None = None
    try:
        also(joined)
        if time.monotonic() > ends:
            raise too_long()
    except BaseException as error:  # noqa: BLE001 - first the transaction is put in order
        fault = error
    finally:
        joined.over()
        connection.authorizer = None
        connection.set_progress_handler(None)
    if fault is not None:
        cursor.execute("ROLLBACK TO also")
    cursor.execute("RELEASE also")
    if isinstance(fault, Exception):
        raise AlsoFailed(str(fault)) from fault
    if fault is not None:
        raise fault


def _allowed(what: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
    """Say whether a statement may be prepared: `one` and `two` are names that depend on what it does."""
    if what in _REFUSED or (what in _WRITES and one in OURS):
        return apsw.SQLITE_DENY
    if what in _TABLES and not OURS.isdisjoint({one, two}):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
