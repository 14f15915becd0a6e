"""Adapters for connections to the user's own database, for transactional steps (`steps.transactions`).

There are adapters for sqlite3, apsw, psycopg, PyMySQL, SQLAlchemy (connections and sessions) and Django;
psycopg and SQLAlchemy also with async connections. The adapter is chosen by the class of the connection,
among the libraries that the program has imported: this module imports none of them.
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

#: The databases of SQLAlchemy and Django connections with the SQL that `steps.transactions` uses.
ALCHEMY_DATABASES = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
DJANGO_DATABASES = {"sqlite": "sqlite", "postgresql": "postgresql"}


class Sqlite3Adapter:
    """sqlite3 of the standard library, with explicit BEGIN, COMMIT and ROLLBACK."""

    awaits, dialect = False, "sqlite"

    def __init__(self, connection: Any) -> None:
        # In this mode a transaction is always open: `in_transaction` says nothing about pending rows.
        if getattr(connection, "autocommit", None) is False:
            raise UsageError(
                "current().transaction() cannot tell whether rows are pending on a sqlite3 connection "
                "with autocommit=False; open it with autocommit=True, or without that option"
            )
        self._connection = connection

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement; return its rows and the number of changed rows."""
        cursor = yield DatabaseReply(self._connection.execute(sql, tuple(values)))
        return cursor.fetchall() if cursor.description else [], cursor.rowcount

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self._connection.in_transaction)

    def begin(self) -> Script[Any]:
        """Begin a transaction with the write lock."""
        # A plain BEGIN takes the lock at its first write, where it can fail after the work has begun.
        yield DatabaseReply(self._connection.execute("BEGIN IMMEDIATE"))

    def commit(self) -> Script[Any]:
        """Commit the transaction."""
        yield DatabaseReply(self._connection.execute("COMMIT"))

    def rollback(self) -> Script[Any]:
        """Roll the transaction back, if there is one."""
        if self.in_transaction():
            yield DatabaseReply(self._connection.execute("ROLLBACK"))


class ApswAdapter(Sqlite3Adapter):
    """apsw: the statements of sqlite3, with the methods of apsw for rows and counts."""

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement; return its rows and the number of changed rows."""
        rows = yield DatabaseReply(self._connection.execute(sql, tuple(values)).fetchall())
        return rows, self._connection.changes()


class PsycopgAdapter:
    """psycopg, blocking or async; without autocommit the first statement begins the transaction."""

    dialect = "postgresql"

    def __init__(self, connection: Any, *, awaits: bool) -> None:
        self._connection, self.awaits = connection, awaits

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement; return its rows and the number of changed rows."""
        cursor = yield DatabaseReply(self._connection.execute(sql.replace("?", "%s"), tuple(values)))
        rows = (yield DatabaseReply(cursor.fetchall())) if cursor.description else []
        return rows, cursor.rowcount

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return str(self._connection.info.transaction_status.name) != "IDLE"

    def begin(self) -> Script[Any]:
        """Begin a transaction, where the driver does not do so by itself."""
        if self._connection.autocommit:
            yield DatabaseReply(self._connection.execute("BEGIN"))

    def commit(self) -> Script[Any]:
        """Commit the transaction."""
        yield DatabaseReply(self._connection.commit())

    def rollback(self) -> Script[Any]:
        """Roll the transaction back, if there is one."""
        yield DatabaseReply(self._connection.rollback())


class PymysqlAdapter:
    """PyMySQL, with an explicit BEGIN in every mode."""

    awaits, dialect = False, "mysql"
    #: The bit of the server's status that says that a transaction is open.
    _IN_TRANSACTION = 1

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement; return its rows and the number of changed rows."""
        with self._connection.cursor() as cursor:
            yield DatabaseReply(cursor.execute(sql.replace("?", "%s"), tuple(values)))
            return list(cursor.fetchall()) if cursor.description else [], cursor.rowcount

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self._connection.server_status & self._IN_TRANSACTION)

    def begin(self) -> Script[Any]:
        """Begin a transaction."""
        yield DatabaseReply(self._connection.begin())

    def commit(self) -> Script[Any]:
        """Commit the transaction."""
        yield DatabaseReply(self._connection.commit())

    def rollback(self) -> Script[Any]:
        """Roll the transaction back, if there is one."""
        yield DatabaseReply(self._connection.rollback())


class SqlAlchemyAdapter:
    """SQLAlchemy: a connection or a session, blocking or async."""

    def __init__(self, connection: Any, *, awaits: bool) -> None:
        self._connection, self.awaits = connection, awaits
        session = getattr(connection, "sync_session", connection)
        bind = session.get_bind() if hasattr(session, "get_bind") else session
        self.dialect = _find_dialect(bind.dialect.name, ALCHEMY_DATABASES)

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement; return its rows and the number of changed rows."""
        text = sys.modules["sqlalchemy"].text
        names = [f"v{position}" for position in range(len(values))]
        for name in names:
            sql = sql.replace("?", f":{name}", 1)
        # A session holds the user's objects back: they must be in the transaction before our marker is.
        if hasattr(self._connection, "flush"):
            yield DatabaseReply(self._connection.flush())
        result = yield DatabaseReply(
            self._connection.execute(text(sql), dict(zip(names, values, strict=True)))
        )
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else [], result.rowcount

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self._connection.in_transaction())

    def begin(self) -> Script[Any]:
        """Begin a transaction; refuse a connection in autocommit."""
        yield DatabaseReply(self._connection.begin())
        # SQLAlchemy says that a transaction has begun; in AUTOCOMMIT the driver commits each statement.
        if (yield from self._is_autocommit()):
            yield DatabaseReply(self._connection.rollback())
            raise UsageError(
                "current().transaction() needs transactions; this SQLAlchemy connection is in AUTOCOMMIT"
            )

    def _is_autocommit(self) -> Script[bool]:
        if (
            self.dialect == "mysql"
        ):  # the drivers for MySQL have no common name for it, so the server is asked
            (((autocommit,),), _) = yield from self.execute_sql("SELECT @@autocommit")
            return bool(autocommit)
        connection = self._connection
        if hasattr(connection, "flush"):
            connection = yield DatabaseReply(connection.connection())
        raw = getattr(connection, "sync_connection", connection).connection.dbapi_connection
        return bool(raw.isolation_level is None if self.dialect == "sqlite" else raw.autocommit)

    def commit(self) -> Script[Any]:
        """Commit the transaction."""
        yield DatabaseReply(self._connection.commit())

    def rollback(self) -> Script[Any]:
        """Roll the transaction back, if there is one."""
        yield DatabaseReply(self._connection.rollback())


class DjangoAdapter:
    """Django: the connection of an alias, in an `atomic` block of the step."""

    awaits = False

    def __init__(self, connection: Any) -> None:
        self.dialect = _find_dialect(connection.vendor, DJANGO_DATABASES)
        self._connection = connection
        self._atomic: Any = None

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement; return its rows and the number of changed rows."""
        with self._connection.cursor() as cursor:
            yield DatabaseReply(cursor.execute(sql.replace("?", "%s"), tuple(values)))
            return list(cursor.fetchall()) if cursor.description else [], cursor.rowcount

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self._connection.in_atomic_block)

    def begin(self) -> Script[Any]:
        """Begin a transaction."""
        # Durable: inside a block of the user, our commit would be only a savepoint of that block.
        self._atomic = sys.modules["django.db.transaction"].atomic(using=self._connection.alias, durable=True)
        yield DatabaseReply(self._atomic.__enter__())

    def commit(self) -> Script[Any]:
        """Commit the transaction."""
        atomic, self._atomic = self._atomic, None
        yield DatabaseReply(atomic.__exit__(None, None, None))

    def rollback(self) -> Script[Any]:
        """Roll the transaction back, if there is one."""
        atomic, self._atomic = self._atomic, None
        # An `atomic` block that is left without an error commits, unless it is marked for rollback.
        if atomic is not None:
            self._connection.set_rollback(True)
            yield DatabaseReply(atomic.__exit__(None, None, None))


def adapt_connection(connection: Any) -> DatabaseAdapter:
    """Return the adapter of a connection; refuse a connection of another library."""
    for module, name, make_adapter in _ADAPTERS:
        # A library that is not imported cannot have made the connection.
        connection_class = getattr(sys.modules.get(module), name, None)
        if connection_class is not None and isinstance(connection, connection_class):
            return make_adapter(connection)
    raise UsageError(
        "current().transaction() takes a connection of sqlite3, apsw, psycopg, PyMySQL, SQLAlchemy or "
        f"Django; a {type(connection).__module__}.{type(connection).__qualname__} is none of them"
    )


def _find_dialect(name: str, known: dict[str, str]) -> str:
    if name not in known:
        raise UsageError(f"current().transaction() knows {', '.join(known)} here; this database is {name}")
    return known[name]


#: The module and name of each connection class, and its adapter.
_ADAPTERS: tuple[tuple[str, str, Callable[[Any], DatabaseAdapter]], ...] = (
    ("sqlite3", "Connection", Sqlite3Adapter),
    ("apsw", "Connection", ApswAdapter),
    ("psycopg", "Connection", lambda connection: PsycopgAdapter(connection, awaits=False)),
    ("psycopg", "AsyncConnection", lambda connection: PsycopgAdapter(connection, awaits=True)),
    ("pymysql.connections", "Connection", PymysqlAdapter),
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
