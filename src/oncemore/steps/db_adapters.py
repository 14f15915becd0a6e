"""Connections to a user's own database, as far as a transactional step needs them (`steps.transactions`).

sqlite3, apsw, psycopg, SQLAlchemy (connections and sessions) and Django; those of psycopg and SQLAlchemy
also where they are awaited. Which one it is, is found among what the user has loaded: nothing is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.steps.transactions import DatabaseReply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore._driver import Script
    from oncemore.steps.transactions import DatabaseAdapter

DATABASES = ("sqlite", "postgresql")


class Sqlite3Adapter:
    """The standard library's: transactions are asked for, whatever it would begin by itself."""

    awaits, sqlite = False, True

    def __init__(self, connection: Any) -> None:
        if getattr(connection, "autocommit", None) is False:
            raise UsageError(
                "current().transaction() cannot tell what is pending on a sqlite3 connection with "
                "autocommit=False; open it with autocommit=True, or without saying so"
            )
        self._connection = connection

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement."""
        cursor = yield DatabaseReply(self._connection.execute(sql, tuple(values)))
        return cursor.fetchall() if cursor.description else [], cursor.rowcount

    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        return bool(self._connection.in_transaction)

    def begin(self) -> Script[Any]:
        """Begin a transaction that writes: it cannot fail for that reason in the middle."""
        yield DatabaseReply(self._connection.execute("BEGIN IMMEDIATE"))

    def commit(self) -> Script[Any]:
        """Commit it."""
        yield DatabaseReply(self._connection.execute("COMMIT"))

    def rollback(self) -> Script[Any]:
        """Undo it, if there is one."""
        if self.in_transaction():
            yield DatabaseReply(self._connection.execute("ROLLBACK"))


class ApswAdapter(Sqlite3Adapter):
    """apsw: the same words, other ways to ask."""

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement."""
        rows = yield DatabaseReply(self._connection.execute(sql, tuple(values)).fetchall())
        return rows, self._connection.changes()


class PsycopgAdapter:
    """psycopg, blocking or awaited; outside of autocommit it begins with the first statement."""

    sqlite = False

    def __init__(self, connection: Any, *, awaits: bool) -> None:
        self._connection, self.awaits = connection, awaits

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement."""
        cursor = yield DatabaseReply(self._connection.execute(sql.replace("?", "%s"), tuple(values)))
        rows = (yield DatabaseReply(cursor.fetchall())) if cursor.description else []
        return rows, cursor.rowcount

    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        return str(self._connection.info.transaction_status.name) != "IDLE"

    def begin(self) -> Script[Any]:
        """Begin a transaction, where the driver does not do so by itself."""
        if self._connection.autocommit:
            yield DatabaseReply(self._connection.execute("BEGIN"))

    def commit(self) -> Script[Any]:
        """Commit it."""
        yield DatabaseReply(self._connection.commit())

    def rollback(self) -> Script[Any]:
        """Undo it, if there is one."""
        yield DatabaseReply(self._connection.rollback())


class SqlAlchemyAdapter:
    """SQLAlchemy: a connection or a session, blocking or awaited; what a session holds is flushed first."""

    def __init__(self, connection: Any, *, awaits: bool) -> None:
        self._connection, self.awaits = connection, awaits
        whole = getattr(connection, "sync_session", connection)
        bind = whole.get_bind() if hasattr(whole, "get_bind") else whole
        _check_dialect(bind.dialect.name)
        self.sqlite = bind.dialect.name == "sqlite"

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement."""
        text = sys.modules["sqlalchemy"].text
        names = [f"v{at}" for at in range(len(values))]
        for name in names:
            sql = sql.replace("?", f":{name}", 1)
        if hasattr(self._connection, "flush"):
            yield DatabaseReply(self._connection.flush())
        result = yield DatabaseReply(
            self._connection.execute(text(sql), dict(zip(names, values, strict=True)))
        )
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else [], result.rowcount

    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        return bool(self._connection.in_transaction())

    def begin(self) -> Script[Any]:
        """Begin a transaction; one that the driver would not begin is none."""
        yield DatabaseReply(self._connection.begin())
        below = self._connection
        if hasattr(below, "flush"):
            below = yield DatabaseReply(below.connection())
        raw = getattr(below, "sync_connection", below).connection.dbapi_connection
        if raw.isolation_level is None if self.sqlite else raw.autocommit:
            yield DatabaseReply(self._connection.rollback())
            raise UsageError(
                "current().transaction() needs transactions; this SQLAlchemy connection is in AUTOCOMMIT"
            )

    def commit(self) -> Script[Any]:
        """Commit it."""
        yield DatabaseReply(self._connection.commit())

    def rollback(self) -> Script[Any]:
        """Undo it, if there is one."""
        yield DatabaseReply(self._connection.rollback())


class DjangoAdapter:
    """Django: the connection of an alias, in an `atomic` block that is ours."""

    awaits = False

    def __init__(self, connection: Any) -> None:
        _check_dialect(connection.vendor)
        self.sqlite = connection.vendor == "sqlite"
        self._connection = connection
        self._atomic: Any = None

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement."""
        with self._connection.cursor() as cursor:
            yield DatabaseReply(cursor.execute(sql.replace("?", "%s"), tuple(values)))
            return list(cursor.fetchall()) if cursor.description else [], cursor.rowcount

    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        return bool(self._connection.in_atomic_block)

    def begin(self) -> Script[Any]:
        """Begin a transaction."""
        self._atomic = sys.modules["django.db.transaction"].atomic(using=self._connection.alias, durable=True)
        yield DatabaseReply(self._atomic.__enter__())

    def commit(self) -> Script[Any]:
        """Commit it."""
        atomic, self._atomic = self._atomic, None
        yield DatabaseReply(atomic.__exit__(None, None, None))

    def rollback(self) -> Script[Any]:
        """Undo it, if there is one."""
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            self._connection.set_rollback(True)
            yield DatabaseReply(atomic.__exit__(None, None, None))


def adapt_connection(connection: Any) -> DatabaseAdapter:
    """Return how to speak to a connection; one that is not known is refused with those that are."""
    for module, name, make in _KNOWN:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and isinstance(connection, known):
            return make(connection)
    raise UsageError(
        "current().transaction() takes a connection of sqlite3, apsw, psycopg, SQLAlchemy or Django; a "
        f"{type(connection).__module__}.{type(connection).__qualname__} is none of them"
    )


def _check_dialect(name: str) -> None:
    if name not in DATABASES:
        raise UsageError(f"current().transaction() knows {' and '.join(DATABASES)}; this database is {name}")


_KNOWN: tuple[tuple[str, str, Callable[[Any], DatabaseAdapter]], ...] = (
    ("sqlite3", "Connection", Sqlite3Adapter),
    ("apsw", "Connection", ApswAdapter),
    ("psycopg", "Connection", lambda connection: PsycopgAdapter(connection, awaits=False)),
    ("psycopg", "AsyncConnection", lambda connection: PsycopgAdapter(connection, awaits=True)),
    ("sqlalchemy.engine", "Connection", lambda connection: SqlAlchemyAdapter(connection, awaits=False)),
    ("sqlalchemy.orm", "Session", lambda connection: SqlAlchemyAdapter(connection, awaits=False)),
    (
        "sqlalchemy.ext.asyncio",
        "AsyncConnection",
        lambda connection: SqlAlchemyAdapter(connection, awaits=True),
    ),
    ("sqlalchemy.ext.asyncio", "AsyncSession", lambda connection: SqlAlchemyAdapter(connection, awaits=True)),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", DjangoAdapter),
)
