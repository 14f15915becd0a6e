"""The line to a PostgreSQL server: its address, its connections, and what its errors mean.

A password is in the parameters that the driver gets and nowhere else: an address is shown without it, and
what the driver says about an address that it cannot read is not repeated, because it may quote it.

Connections are in autocommit: each of our statements is a transaction of its own. A server that vanished
without a word is noticed by keepalives within half a minute.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from oncemore._values import Value
from oncemore.errors import MissingExtra, StoreError, UsageError

try:
    import psycopg
    from psycopg import generators
    from psycopg.adapt import Dumper
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
    "Address",
    "Dumper",
    "Format",
    "Readers",
    "address",
    "called",
    "check_text",
    "connect",
    "fault",
    "hang_up",
    "lost",
    "psycopg",
]

READERS = 8
#: How many connections a store has at most: those who read, one that appends, one that notifies, one that
#: listens, and one for what is done now and then (opening, mending).
MOST_CONNECTIONS = READERS + 4
LONGEST_NAME = 2000  # bytes; an index row of PostgreSQL holds 2,704

#: Where the tables are, unless an address names another schema.
SCHEMA = "oncemore"
#: Options of an address that the driver does not know: the schema, and a role that is trusted to own it.
OURS = ("schema", "owner")

#: What a connection is opened with where the address does not say otherwise.
DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "application_name": "oncemore",
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

#: By sqlstate or its class: what happened, and what to do.
ADVICE: Mapping[str, str] = {
    "25": "the server takes no writes here; is it a standby, or set to read only?",
    "28": "the server does not let this user in; check user and password",
    "3D": "there is no such database; make it first",
    "42501": "this role may not do that; see `oncemore.log.postgres.store` for the rights it needs",
    "42": "the tables or functions of this schema are not whole",
    "53100": "the server's disk is full; make room and go on",
    "53300": "the server has no connection left; raise max_connections, or use fewer processes",
    "53": "the server is short of something",
    "54": "a value is larger than PostgreSQL can keep",
    "55P03": "another append has held the log for 30 s; is a server process stopped?",
    "57": "the server ended the connection or the statement",
    "": "there is no connection to the server",
}


class Address(Value):
    """Where a store is: what the driver connects with, what may be shown, the schema, its trusted owner."""

    params: Mapping[str, Any]
    shown: str
    schema: str
    owner: str

    def __repr__(self) -> str:
        return f"Address({self.shown})"  # the parameters have the password in them


def address(url: str) -> Address:
    """Read a URL; refuse one that cannot be read, without repeating it."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("the address of a store in PostgreSQL begins with postgresql://")
    server, ours = _without_ours(url)
    try:
        params = conninfo_to_dict(server)
    except psycopg.Error:
        raise UsageError(
            "this address of a PostgreSQL server cannot be read; it looks like "
            "postgresql://user@host:5432/database, with %-escapes for special characters"
        ) from None  # what the driver says quotes it, and there may be a password in it
    shown = {name: quote(str(params.get(name, "")), safe="/,") for name in ("user", "host", "port", "dbname")}
    user, port = shown["user"] and f"{shown['user']}@", shown["port"] and f":{shown['port']}"
    place = f"postgresql://{user}{shown['host']}{port}/{shown['dbname']}"
    return Address({**DEFAULTS, **params}, place, ours.get("schema", SCHEMA), ours.get("owner", ""))


def _without_ours(url: str) -> tuple[str, dict[str, str]]:
    """Return an address as the driver knows it, and the options that only we know."""
    server, _, query = url.partition("?")
    ours: dict[str, str] = {}
    rest = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name not in OURS:
            rest.append(option)
        elif name in ours:
            raise UsageError(f"this address of a PostgreSQL server names more than one {name}")
        else:
            ours[name] = unquote(value)
    return f"{server}?{'&'.join(rest)}" if rest else server, ours


def connect(where: Address) -> Connection:
    """Open a connection in autocommit, whose statements see what was committed when they begin.

    Functions and operators are those of the server itself, whatever search_path the role has.
    """
    connection: Connection = psycopg.connect(**where.params, autocommit=True)
    try:
        connection.execute(
            "set default_transaction_isolation = 'read committed'; set search_path = pg_catalog, pg_temp"
        )
    except BaseException:
        hang_up(connection)
        raise
    return connection


def hang_up(connection: Connection | None) -> None:
    """Close a connection, whatever state it is in."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def lost(error: psycopg.Error) -> bool:
    """Whether nobody knows how the statement ended: the server did not say, or its words were its last.

    A server that shuts down or ends a session may do so after the commit.
    """
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


def fault(where: Address, error: psycopg.Error, then: str = "") -> StoreError:
    """Say what went wrong at which server, and whose move it is."""
    state = error.sqlstate or ""
    advice = ADVICE.get(state) or ADVICE.get(state[:2]) or "PostgreSQL refused"
    said = error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
    password = where.params.get("password")
    said = said.replace(str(password), "…") if password else said
    return StoreError(f"{where.shown}: {advice}{then} ({state + ': ' if state else ''}{said})")


def check_text(*texts: str) -> None:
    """Refuse what PostgreSQL cannot keep as text, before it is sent together with others' batches."""
    for text in texts:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise UsageError(f"{text!r} is not text: it has half a character in it") from None
        if "\0" in text:
            raise UsageError(f"{text!r} has a NUL character in it, which PostgreSQL cannot keep")
        if size > LONGEST_NAME:
            raise UsageError(f"{text[:40]!r}… is {size} bytes long; PostgreSQL indexes up to {LONGEST_NAME}")


def called(connection: Connection, name: bytes, values: Sequence[bytes | None]) -> PGresult:
    """Send a prepared statement and read its answer; a cursor would cost more than all the rest of it."""
    connection.pgconn.send_query_prepared(name, values, [1] * len(values), Format.BINARY)
    results: list[PGresult] = connection.wait(generators.execute(connection.pgconn))
    for one in results:  # a session that the server ends may say so after its answer
        if one.status != ExecStatus.TUPLES_OK:
            raise error_from_result(one)
    return results[0]


def _prepared(
    connection: Connection, name: bytes, statement: bytes, values: Sequence[bytes | None]
) -> PGresult:
    try:
        return called(connection, name, values)
    except psycopg.errors.InvalidSqlStatementName:  # not prepared on this line, or let go by the driver
        connection.execute(statement)
        return called(connection, name, values)


class Readers:
    """A few connections that threads share for reading; each is used by one at a time."""

    def __init__(self, where: Address) -> None:
        self._where = where
        self._idle: deque[Connection] = deque()
        self._room = threading.Semaphore(READERS)
        self._over = False

    def read(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return all rows."""
        return self._do(lambda line: line.execute(sql.encode(), values, prepare=True, binary=True).fetchall())

    def result(self, name: bytes, statement: bytes, values: list[bytes | None]) -> PGresult:
        """Return what a statement of ours answers, in binary; it is prepared where it is not yet.

        For what is read all the time: a cursor costs more than the whole question.
        """
        return self._do(lambda line: _prepared(line, name, statement, values))

    def _do(self, ask: Callable[[Connection], T]) -> T:
        """Ask on a connection; one that was lost is replaced once, since reading changes nothing."""
        with self._room:
            try:
                return self._try(ask)
            except psycopg.Error as error:
                if not lost(error):
                    raise fault(self._where, error) from error
            self.close()  # what one lost, the others most likely lost too
            try:
                return self._try(ask)
            except psycopg.Error as error:
                raise fault(self._where, error) from error

    def _try(self, ask: Callable[[Connection], T]) -> T:
        connection = self._pick()
        try:
            answer = ask(connection)
        except BaseException:
            hang_up(connection)
            raise
        self._idle.append(connection)
        if self._over:  # the store was closed meanwhile, and nobody would close this one
            self.close()
        return answer

    def _pick(self) -> Connection:
        with suppress(IndexError):
            return self._idle.pop()
        return connect(self._where)

    def end(self) -> None:
        """Close those that nobody uses, and from now on every one that comes back."""
        self._over = True
        self.close()

    def close(self) -> None:
        """Close those that nobody uses."""
        with suppress(IndexError):
            while True:
                hang_up(self._idle.pop())
