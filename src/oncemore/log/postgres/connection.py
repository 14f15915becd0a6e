"""Connections to a PostgreSQL server: its address, its errors, and what psycopg does for a store.

A password is in the parameters for the driver and nowhere else: an address is shown without it, and the
driver's message about an unreadable address is not repeated, because it may quote the password.

Keepalives detect a server that disappeared without closing the connection, within half a minute.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from oncemore._values import Value
from oncemore.errors import MissingExtra, StoreError, UsageError
from oncemore.log.database.connection import (
    READERS,
    DatabaseServer,
    ReadConnectionPool,
    encode_name,
    split_options,
)

try:
    import psycopg
    from psycopg import generators
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus, Format
except ImportError as missing:
    raise MissingExtra("a store in PostgreSQL needs psycopg: pip install 'oncemore[postgres]'") from missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.log.database.connection import Rows

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = [
    "PostgresAddress",
    "PostgresClient",
    "PostgresReaders",
    "build_store_error",
    "check_server",
    "check_text",
    "close_connection",
    "execute_prepared",
    "is_connection_lost",
    "open_connection",
    "parse_address",
    "psycopg",
]

OLDEST_SERVER = 14
#: Limit of connections of a store: the readers, one that appends, one that notifies, one that listens, and
#: one for rare operations (opening, maintenance).
MAX_CONNECTIONS = READERS + 4
#: Limit of bytes of a name: an index row of PostgreSQL holds 2,704.
MAX_NAME_BYTES = 2000

NO_STANDBY = "no synchronous standby: a failover to a replica can lose the last acknowledged entries"

#: Schema of the tables, unless an address names another one.
SCHEMA = "oncemore"
#: Options of an address that are not the driver's: the schema, and a role that is trusted to own it.
OWN_OPTIONS = ("schema", "owner")

#: Connection parameters, unless the address sets them.
DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "application_name": "oncemore",
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

#: Cause and remedy, by sqlstate or its class.
ADVICE: Mapping[str, str] = {
    "25": "the server takes no writes here; is it a standby, or set to read only?",
    "28": "the server refused the login; check user and password",
    "3D": "the database does not exist; create it first",
    "42501": "this role may not do that; see `oncemore.log.postgres.store` for the rights it needs",
    "42": "tables or functions of this schema are missing or were changed",
    "53100": "the server's disk is full; free some space and try again",
    "53300": "the server has no connection left; raise max_connections, or use fewer processes",
    "53": "the server lacks resources",
    "54": "a value is larger than PostgreSQL can store",
    "55P03": "another append has held the log for 30 s; is a server process stopped?",
    "57": "the server ended the connection or the statement",
    "": "there is no connection to the server",
}


class PostgresAddress(Value):
    """The address of a store: driver parameters, address without password, schema, and its trusted owner."""

    params: Mapping[str, Any]
    shown: str
    schema: str
    owner: str

    def __repr__(self) -> str:
        return f"Address({self.shown})"  # without the parameters: they contain the password


def parse_address(url: str) -> PostgresAddress:
    """Parse a URL; the error for an invalid one does not quote it."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("the address of a store in PostgreSQL begins with postgresql://")
    server, own_options = split_options(url, OWN_OPTIONS, "PostgreSQL")
    try:
        params = conninfo_to_dict(server)
    except psycopg.Error:
        raise UsageError(
            "this address of a PostgreSQL server cannot be read; it looks like "
            "postgresql://user@host:5432/database, with %-escapes for special characters"
        ) from None  # the driver's message quotes the address, and with it a password
    shown = {name: quote(str(params.get(name, "")), safe="/,") for name in ("user", "host", "port", "dbname")}
    user, port = shown["user"] and f"{shown['user']}@", shown["port"] and f":{shown['port']}"
    address = f"postgresql://{user}{shown['host']}{port}/{shown['dbname']}"
    return PostgresAddress(
        params={**DEFAULTS, **params},
        shown=address,
        schema=own_options.get("schema", SCHEMA),
        owner=own_options.get("owner", ""),
    )


def open_connection(where: PostgresAddress) -> Connection:
    """Open a connection in autocommit, in read committed isolation.

    The search_path is fixed, so that functions and operators are the server's own under every role.
    """
    connection: Connection = psycopg.connect(**where.params, autocommit=True)
    try:
        # A role or database may have other defaults for both settings.
        connection.execute(
            "set default_transaction_isolation = 'read committed'; set search_path = pg_catalog, pg_temp"
        )
    except BaseException:
        close_connection(connection)
        raise
    return connection


def check_server(where: PostgresAddress, connection: Connection) -> DatabaseServer:
    """Return the facts of a server; refuse one that is too old, or a database that is not in UTF8."""
    names = (
        *("server_version", "server_version_num", "server_encoding", "fsync", "full_page_writes"),
        *("data_sync_retry", "synchronous_standby_names"),
    )
    row = connection.execute(f"select {','.join(f'current_setting({name!r})' for name in names)}".encode())
    settings: dict[str, str] = dict(zip(names, row.fetchone() or (), strict=True))
    version = settings["server_version"]
    if int(settings["server_version_num"]) < OLDEST_SERVER * 10_000:
        raise StoreError(f"{where.shown} is PostgreSQL {version}; {OLDEST_SERVER} or newer is needed")
    if settings["server_encoding"] != "UTF8":
        raise StoreError(
            f"{where.shown} stores text as {settings['server_encoding']}; create a database in UTF8"
        )
    unsafe = (("fsync", "off"), ("full_page_writes", "off"), ("data_sync_retry", "on"))
    weaknesses = tuple(f"{name}={bad}" for name, bad in unsafe if settings[name] == bad)
    engine = f"PostgreSQL {version.split(' ')[0]} (psycopg {psycopg.__version__})"
    return DatabaseServer(engine, weaknesses, () if settings["synchronous_standby_names"] else (NO_STANDBY,))


def close_connection(connection: Connection | None) -> None:
    """Close a connection in any state."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def is_connection_lost(error: psycopg.Error) -> bool:
    """Whether the outcome of the statement is unknown: the server did not reply, or ended the session.

    A server that shuts down or ends a session may do so after the commit.
    """
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


def build_store_error(where: PostgresAddress, error: psycopg.Error, outcome: str = "") -> StoreError:
    """Return an error with the server, the cause, the remedy, and the outcome of the statement."""
    state = error.sqlstate or ""
    advice = ADVICE.get(state) or ADVICE.get(state[:2]) or "PostgreSQL refused"
    message = error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
    password = where.params.get("password")
    message = message.replace(str(password), "…") if password else message
    return StoreError(f"{where.shown}: {advice}{outcome} ({state + ': ' if state else ''}{message})")


def check_text(*texts: str) -> None:
    """Refuse strings that PostgreSQL cannot store, before they make a whole group of batches fail."""
    for text in texts:
        encode_name(text, MAX_NAME_BYTES, "PostgreSQL")
        if "\0" in text:
            raise UsageError(f"{text!r} has a NUL character, and PostgreSQL cannot store it")


def execute_prepared(connection: Connection, name: bytes, values: Sequence[bytes | None]) -> PGresult:
    """Run a prepared statement and return its result.

    A cursor costs the client 1.7 times as much (70 instead of 42 µs to load a head). `pgconn.exec_prepared`
    costs less (27 µs), but a Ctrl-C would wait for the server. This is the one use of `psycopg.generators`.
    """
    connection.pgconn.send_query_prepared(name, values, [1] * len(values), Format.BINARY)
    results: list[PGresult] = connection.wait(generators.execute(connection.pgconn))
    for result in results:  # the server may report the end of the session after the result
        if result.status != ExecStatus.TUPLES_OK:
            raise error_from_result(result)
    return results[0]


def _execute_preparing(
    connection: Connection, name: bytes, statement: bytes, values: Sequence[bytes | None]
) -> PGresult:
    try:
        return execute_prepared(connection, name, values)
    except psycopg.errors.InvalidSqlStatementName:
        # Not prepared on this connection yet, or deallocated by the driver after a rollback.
        connection.execute(statement)
        return execute_prepared(connection, name, values)


#: Classes of errors after which each batch of a group is sent by itself: a concurrent transaction was in the
#: way, or one batch cannot be stored.
SEND_SINGLY = ("22", "23", "40", "54")
#: Errors after which the same call is repeated: a concurrent transaction was in the way, or the driver has
#: deallocated our prepared statement, as it does after every rollback.
REPEAT = ("40", "26000")


class PostgresClient:
    """psycopg, as the parts that all database stores share use it."""

    error = psycopg.Error

    def __init__(self, where: PostgresAddress) -> None:
        self._where = where

    def open_connection(self) -> Connection:
        """Open a connection in autocommit."""
        return open_connection(self._where)

    def close_connection(self, connection: Connection | None) -> None:
        """Close a connection in any state."""
        close_connection(connection)

    def execute_rows(self, connection: Connection, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement and return its rows."""
        cursor = connection.execute(sql.encode(), values, prepare=True, binary=True)
        return cursor.fetchall() if cursor.description else []

    def execute_many(self, connection: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        with connection.cursor() as cursor:
            cursor.executemany(sql.encode(), rows)

    def is_connection_lost(self, error: psycopg.Error) -> bool:
        """Whether the outcome of the statement is unknown."""
        return is_connection_lost(error)

    def is_transient(self, error: psycopg.Error) -> bool:
        """Whether the same call may succeed if it is repeated."""
        return (error.sqlstate or "").startswith(REPEAT)

    def may_be_one_batch(self, error: psycopg.Error) -> bool:
        """Whether one batch of a group may have caused the error."""
        return (error.sqlstate or "").startswith(SEND_SINGLY)

    def build_store_error(self, error: psycopg.Error, outcome: str = "") -> StoreError:
        """Return an error with the server, the cause, the remedy, and the outcome."""
        return build_store_error(self._where, error, outcome)


class PostgresReaders(ReadConnectionPool["Connection"]):
    """The pool of connections for reading, with prepared statements for the reads of every step.

    With `psycopg_pool` loading a head takes a third more processor time, and half as long again.
    """

    def read_result(self, name: bytes, statement: bytes, values: list[bytes | None]) -> PGresult:
        """Return the binary result of a prepared statement; prepare it if that connection has not.

        A cursor would cost more than the statement.
        """
        return self.read_with_retry(
            lambda connection: _execute_preparing(connection, name, statement, values)
        )
