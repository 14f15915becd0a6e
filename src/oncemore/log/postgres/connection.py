"""Connections to a PostgreSQL server: its address, a pool for reading, its clock, and its errors.

A password is in the parameters for the driver and nowhere else: an address is shown without it, and the
driver's message about an unreadable address is not repeated, because it may quote the password.

Connections are in autocommit: each statement is a transaction of its own. Keepalives detect a server that
disappeared without closing the connection, within half a minute.

**The clock.** A step reads the clock about six times. A round trip each time would be most of the cost of a
step, and would block the event loop. So the server is asked once a second, and in between its time is
extrapolated with a clock of this machine that also runs while the machine sleeps.

The reply of the server was correct at some moment between request and reply: at the reply, the server's time
is that value, or up to a round trip more. An extrapolated time within these bounds is kept. Otherwise the
nearer bound is used, so that time does not jump with the network; it goes back only if the server's own clock
went back.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from oncemore._platform import get_boot_time
from oncemore._values import Value
from oncemore.errors import MissingExtra, StoreError, UsageError

try:
    import psycopg
    from psycopg import generators
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus, Format
except ImportError as missing:
    raise MissingExtra("a store in PostgreSQL needs psycopg: pip install 'oncemore[postgres]'") from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psycopg.pq.abc import PGresult

    Rows = list[tuple[Any, ...]]
    Connection = psycopg.Connection[tuple[Any, ...]]

T = TypeVar("T")

__all__ = [
    "PostgresAddress",
    "PostgresServer",
    "ReadConnectionPool",
    "ServerClock",
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
#: Interval between two questions for the server's time, in seconds.
ASK_S = 1.0
READERS = 8
#: Limit of connections of a store: the readers, one that appends, one that notifies, one that listens, and
#: one for rare operations (opening, maintenance).
MAX_CONNECTIONS = READERS + 4
#: Limit of bytes of a name: an index row of PostgreSQL holds 2,704.
MAX_NAME_BYTES = 2000

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
    server, own_options = _split_options(url)
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


def _split_options(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without our options, and our options."""
    server, _, query = url.partition("?")
    own_options: dict[str, str] = {}
    driver_options = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name not in OWN_OPTIONS:
            driver_options.append(option)
        elif name in own_options:
            raise UsageError(f"this address of a PostgreSQL server names more than one {name}")
        else:
            own_options[name] = unquote(value)
    return f"{server}?{'&'.join(driver_options)}" if driver_options else server, own_options


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


class PostgresServer(Value):
    """A checked server: its version, settings that weaken its durability, and the lack of a standby."""

    version: str
    weaknesses: tuple[str, ...]
    lacks_standby: bool


def check_server(where: PostgresAddress, connection: Connection) -> PostgresServer:
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
    return PostgresServer(version.split(" ")[0], weaknesses, not settings["synchronous_standby_names"])


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
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise UsageError(f"{text!r} is not valid text: it has half of a surrogate pair") from None
        if "\0" in text:
            raise UsageError(f"{text!r} has a NUL character, and PostgreSQL cannot store it")
        if size > MAX_NAME_BYTES:
            raise UsageError(
                f"{text[:40]!r}… is {size} bytes long; PostgreSQL indexes up to {MAX_NAME_BYTES}"
            )


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


class ReadConnectionPool:
    """A pool of connections for reading, with at most `READERS` in use at a time.

    With `psycopg_pool` loading a head takes a third more processor time, and half as long again.
    """

    def __init__(self, where: PostgresAddress) -> None:
        self._where = where
        self._idle: deque[Connection] = deque()
        self._slots = threading.Semaphore(READERS)
        self._is_shut_down = False

    def read_rows(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return all rows of a statement."""
        return self._read_with_retry(
            lambda connection: connection.execute(sql.encode(), values, prepare=True, binary=True).fetchall()
        )

    def read_result(self, name: bytes, statement: bytes, values: list[bytes | None]) -> PGresult:
        """Return the binary result of a prepared statement; prepare it if that connection has not.

        For reads that every step makes: a cursor costs more than the statement.
        """
        return self._read_with_retry(
            lambda connection: _execute_preparing(connection, name, statement, values)
        )

    def _read_with_retry(self, read: Callable[[Connection], T]) -> T:
        """Read on a connection; after a lost one try a second time, because reading changes nothing."""
        with self._slots:
            try:
                return self._try_read(read)
            except psycopg.Error as error:
                if not is_connection_lost(error):
                    raise build_store_error(self._where, error) from error
            self.close_idle()  # the server most likely dropped the other connections too
            try:
                return self._try_read(read)
            except psycopg.Error as error:
                raise build_store_error(self._where, error) from error

    def _try_read(self, read: Callable[[Connection], T]) -> T:
        connection = self._pick_connection()
        try:
            result = read(connection)
        except BaseException:
            close_connection(connection)
            raise
        self._idle.append(connection)
        if self._is_shut_down:  # the store was closed meanwhile, so this connection must be closed too
            self.close_idle()
        return result

    def _pick_connection(self) -> Connection:
        with suppress(IndexError):
            return self._idle.pop()
        return open_connection(self._where)

    def shut_down(self) -> None:
        """Close idle connections now, and the ones in use when they come back."""
        self._is_shut_down = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close idle connections."""
        with suppress(IndexError):
            while True:
                close_connection(self._idle.pop())


class ServerClock:
    """The clock of a server, extrapolated between requests."""

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        # The local time and the server's time at the same moment; None before the first request.
        self._known: tuple[float, float] | None = None
        self._asking = threading.Lock()

    def now(self) -> float:
        """Return the server's time; ask the server once a second, in one thread at a time."""
        known = self._known
        local = get_boot_time()
        if known is not None:
            # If another thread is asking, the extrapolated time is good enough.
            if local - known[0] < ASK_S or not self._asking.acquire(blocking=False):
                return known[1] + local - known[0]
        else:
            self._asking.acquire()
        try:
            self._known = known = self._ask_server(self._known)
        finally:
            self._asking.release()
        return known[1] + get_boot_time() - known[0]

    def _ask_server(self, known: tuple[float, float] | None) -> tuple[float, float]:
        before = get_boot_time()
        server_time = self._ask()
        after = get_boot_time()
        if known is None:
            return after, server_time
        extrapolated = known[1] + after - known[0]
        return after, min(max(extrapolated, server_time), server_time + after - before)
