"""Connections to a MySQL or MariaDB server: its address, its errors, and what PyMySQL does for a store.

A password is in the parameters for the driver and nowhere else: an address is shown without it.

Every connection sets its own sql_mode and time zone, so that the defaults of the server do not change the
meaning of a statement. A reply that does not come within a time limit ends the connection: PyMySQL has no
other way to detect a server that disappeared.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from oncemore._values import Value
from oncemore.errors import MissingExtra, StoreError, UsageError
from oncemore.log.database.connection import DatabaseServer, encode_name, split_options

try:
    import pymysql
    from pymysql.constants import CLIENT, CR, ER
except ImportError as missing:
    raise MissingExtra("a store in MySQL needs PyMySQL: pip install 'oncemore[mysql]'") from missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pymysql.cursors import Cursor

    from oncemore.log.database.connection import Rows

    Connection = pymysql.Connection[Cursor]

__all__ = [
    "MysqlAddress",
    "MysqlClient",
    "MysqlServer",
    "check_names",
    "check_server",
    "find_weaknesses",
    "parse_address",
    "pymysql",
    "read_code",
]

#: The oldest versions whose statements the store uses, by product.
OLDEST_SERVERS = {"MariaDB": (10, 6), "MySQL": (8, 0)}
#: Limit of bytes of the name of an entity and of the other names: an index of InnoDB holds 3,072.
MAX_ENTITY_BYTES, MAX_NAME_BYTES, MAX_KIND_BYTES = 2000, 1000, 100
#: Time limits of a reply, in seconds: of an append, and of a read, which may sort a million heads.
WRITE_TIMEOUT_S, READ_TIMEOUT_S = 60, 600
NO_REPLICA = "no semi-synchronous replica: a failover can lose the last acknowledged entries"
NOT_TESTED = "the tests of oncemore run with MariaDB, and were never run with MySQL"

#: Prefix of the names of our tables, unless an address names another one.
PREFIX = "oncemore"
#: Options of an address; `prefix` and `owner` are ours, the rest are for the driver.
OPTIONS = ("prefix", "owner", "ssl_ca", "ssl_cert", "ssl_key", "unix_socket", "defaults_file")

#: Without NO_BACKSLASH_ESCAPES and ANSI_QUOTES: the driver escapes values for the plain modes.
SESSION = "set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"
READ_COMMITTED = "set session transaction isolation level read committed"

#: Errors after which it is not known whether the server did what was asked: the connection ended, the session
#: or the statement was killed, or the commit itself failed. 0 is an error without a number, of the driver.
LOST_CODES = frozenset(
    (0, 1053, 1079, 1152, 1158, 1159, 1160, 1161, ER.ERROR_DURING_COMMIT, 1184, 1317, 1927, 4031)
)
#: A concurrent transaction was in the way: the whole transaction, or its last statement, was rolled back.
TRANSIENT_CODES = frozenset((ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CHECKREAD))
#: One batch of a group may be the cause: it is too large, or a value does not fit its column.
BATCH_CODES = frozenset((*TRANSIENT_CODES, 1048, 1062, 1118, 1153, 1264, 1301, 1366, 1406))

#: Cause and remedy, by error code.
ADVICE: Mapping[int, str] = {
    **dict.fromkeys((1045, 1698), "the server refused the login; check user and password"),
    **dict.fromkeys(
        (1044, 1142, 1227, 1370), "this user may not do that; see `oncemore.log.mysql.store` for its rights"
    ),
    1049: "the database does not exist; create it first",
    **dict.fromkeys((1290, 1792, 1836), "the server takes no writes here; is it a replica, or read-only?"),
    **dict.fromkeys((1021, 1114), "the server's disk is full; free some space and try again"),
    **dict.fromkeys(
        (1040, 1203, 1226), "the server has no connection left; raise max_connections, or use fewer processes"
    ),
    **dict.fromkeys(
        (1054, 1146, 1305, 1318), "tables or procedures of the store are missing or were changed"
    ),
    **dict.fromkeys((1153, 1301, 1406), "a value is larger than the server takes; raise max_allowed_packet"),
    1205: "another append has held the log for too long; is a session of the server stopped?",
    1213: "other transactions were in the way, again and again",
}


class MysqlAddress(Value):
    """The address of a store: driver parameters, address without password, prefix, and its trusted owner."""

    params: Mapping[str, Any]
    shown: str
    prefix: str
    owner: str

    def __repr__(self) -> str:
        return f"MysqlAddress({self.shown})"  # without the parameters: they contain the password


def parse_address(url: str) -> MysqlAddress:
    """Parse a URL; the error for an invalid one does not quote it."""
    if not url.startswith(("mysql://", "mariadb://")):
        raise UsageError("the address of a store in MySQL begins with mysql:// or mariadb://")
    server, options = split_options(url, OPTIONS, "MySQL")
    unknown = server.partition("?")[2].partition("=")[0]
    if unknown:
        raise UsageError(
            f"an address of a MySQL server has no option {unknown!r}; it has {', '.join(OPTIONS)}"
        )
    try:
        parts = urlsplit(server)
        port = parts.port or 3306
    except ValueError:
        parts, port = urlsplit(""), 0
    database = unquote(parts.path.strip("/"))
    if not port or not database or "/" in database:
        raise UsageError(
            "this address of a MySQL server cannot be read; it looks like mysql://user@host:3306/database, "
            "with %-escapes for special characters"
        )
    user, host = unquote(parts.username or ""), parts.hostname or "localhost"
    prefix = options.get("prefix", PREFIX)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,31}", prefix):
        raise UsageError(f"{prefix!r} is not a prefix: lower-case letters, digits and _, up to 32")
    params: dict[str, Any] = {"user": user, "host": host, "port": port, "database": database}
    # The variable of the server's own client.
    params["password"] = unquote(parts.password or "") or os.environ.get("MYSQL_PWD", "")
    params |= {
        name: options[name] for name in ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket") if name in options
    }
    if "ssl_ca" in options:
        # Without both, anybody on the network could pose as the server.
        params |= {"ssl_verify_cert": True, "ssl_verify_identity": True}
    if "defaults_file" in options:
        params["read_default_file"] = options["defaults_file"]
    shown_user, shown_port = user and f"{quote(user)}@", f":{port}" if parts.port else ""
    shown = f"{parts.scheme}://{shown_user}{host}{shown_port}/{quote(database)}"
    return MysqlAddress(params, shown, prefix, options.get("owner", ""))


def read_code(error: pymysql.Error) -> int:
    """Return the number of an error; 0 for an error of the driver that has none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


class MysqlClient:
    """PyMySQL, as the parts that all database stores share use it."""

    error = pymysql.Error

    def __init__(self, where: MysqlAddress) -> None:
        self.where = where

    def open_connection(self) -> Connection:
        """Open a connection in autocommit."""
        return self._connect(READ_TIMEOUT_S, 0)

    def open_for_writing(self) -> Connection:
        """Open a connection that may send several statements at once, in read committed isolation."""
        connection = self._connect(WRITE_TIMEOUT_S, CLIENT.MULTI_STATEMENTS)
        try:
            self.execute_rows(connection, READ_COMMITTED)
        except BaseException:
            self.close_connection(connection)
            raise
        return connection

    def _connect(self, timeout_s: int, flags: int) -> Connection:
        return pymysql.connect(
            **self.where.params,
            charset="utf8mb4",
            autocommit=True,
            init_command=SESSION,
            read_timeout=timeout_s,
            write_timeout=WRITE_TIMEOUT_S,
            client_flag=flags,
            program_name="oncemore",
        )

    def close_connection(self, connection: Connection | None) -> None:
        """Close a connection in any state."""
        if connection is not None:
            with suppress(pymysql.Error):
                connection.close()

    def execute_rows(self, connection: Connection, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement and return its rows; of several statements, the rows of the last that has some."""
        with connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            rows: Rows = cursor.fetchall() if cursor.description else ()
            while cursor.nextset():
                rows = cursor.fetchall() if cursor.description else rows
            return rows

    def execute_many(self, connection: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        with connection.cursor() as cursor:
            for row in rows:
                cursor.execute(sql, row)

    def is_connection_lost(self, error: pymysql.Error) -> bool:
        """Whether the outcome of the statement is unknown."""
        code = read_code(error)
        # Numbers from 2000 to 2999 are of the client side of a connection.
        return code in LOST_CODES or CR.CR_ERROR_FIRST <= code < 3000

    def is_transient(self, error: pymysql.Error) -> bool:
        """Whether the same call may succeed if it is repeated."""
        return read_code(error) in TRANSIENT_CODES

    def may_be_one_batch(self, error: pymysql.Error) -> bool:
        """Whether one batch of a group may have caused the error."""
        return read_code(error) in BATCH_CODES

    def build_store_error(self, error: pymysql.Error, outcome: str = "") -> StoreError:
        """Return an error with the server, the cause, the remedy, and the outcome."""
        code = read_code(error)
        default = (
            "there is no connection to the server" if self.is_connection_lost(error) else "MySQL refused"
        )
        message = str(error.args[1] if len(error.args) > 1 else error).strip().partition("\n")[0]
        password = self.where.params.get("password")
        message = message.replace(str(password), "…") if password else message
        message = message or type(error).__name__
        return StoreError(f"{self.where.shown}: {ADVICE.get(code, default)}{outcome} ({code}: {message})")


def check_names(entities: Sequence[str], names: Sequence[str] = (), kinds: Sequence[str] = ()) -> None:
    """Refuse names that the columns of our tables cannot hold."""
    for texts, max_bytes in ((entities, MAX_ENTITY_BYTES), (names, MAX_NAME_BYTES), (kinds, MAX_KIND_BYTES)):
        for text in texts:
            encode_name(text, max_bytes, "MySQL")


class MysqlServer(Value):
    """The facts of a checked server, and the limit of bytes of one statement."""

    facts: DatabaseServer
    max_packet: int


_VARIABLES = (
    *("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "innodb_flush_method", "innodb_force_recovery"),
    *("log_bin", "sync_binlog", "max_allowed_packet", "wsrep_on", "rpl_semi_sync_master_enabled"),
    "rpl_semi_sync_source_enabled",
)


def check_server(client: MysqlClient, connection: Connection) -> MysqlServer:
    """Return the facts of a server; refuse one that is too old, or a Galera cluster."""
    ((version,),) = client.execute_rows(connection, "select version()")
    rows = client.execute_rows(connection, "show variables where variable_name in %s", (_VARIABLES,))
    settings = {name: value.lower() for name, value in rows}
    product = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    shown = client.where.shown
    if numbers < OLDEST_SERVERS[product]:
        oldest = ".".join(map(str, OLDEST_SERVERS[product]))
        raise StoreError(f"{shown} is {product} {version}; {oldest} or newer is needed")
    if settings.get("wsrep_on") == "on":
        # Two nodes of a cluster could draw the same number, and one of the commits would be undone later.
        raise StoreError(
            f"{shown} is a node of a Galera cluster, which is not supported; use a single server"
        )
    is_replicated = any(
        settings.get(name) == "on"
        for name in ("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled")
    )
    facts = DatabaseServer(
        # Not `__version__`, which is the version of MySQLdb that PyMySQL can replace.
        f"{product} {version.split('-')[0]} (PyMySQL {pymysql.VERSION_STRING})",
        find_weaknesses(settings),
        (*(() if is_replicated else (NO_REPLICA,)), *(() if product == "MariaDB" else (NOT_TESTED,))),
    )
    return MysqlServer(facts, int(settings["max_allowed_packet"]))


def find_weaknesses(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings of a server with which it acknowledges commits that a power cut can lose."""
    unsafe: dict[str, tuple[str, ...]] = {
        "innodb_flush_log_at_trx_commit": ("0", "2"),
        "innodb_doublewrite": ("off", "0", "detect_only"),
        "innodb_flush_method": ("nosync", "littlesync"),
        "innodb_force_recovery": ("1", "2", "3", "4", "5", "6"),
    }
    weaknesses = [f"{name}={settings[name]}" for name, bad in unsafe.items() if settings.get(name) in bad]
    # With a binary log, the recovery of InnoDB rolls back a transaction that is not in it.
    if settings.get("log_bin") in ("on", "1") and settings.get("sync_binlog") != "1":
        weaknesses.append(f"sync_binlog={settings.get('sync_binlog')} with log_bin=on")
    return tuple(weaknesses)
