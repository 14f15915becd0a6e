"""The format of the tables in MySQL: their creation and migration.

`schema.sql` creates the tables and procedures of the oldest format that this version reads; each later
format is a file that is run on top of it. MySQL commits each statement that defines a table, so that a
migration is not one transaction: every file can be run again, and the format is written last. A process
that dies in the middle leaves the former format, and the next one repeats the file. All of it happens under
a lock with the name of the store: of several processes that start at the same time, one migrates, and the
rest wait and find it done.

**Owners.** Tables have no owner in MySQL: every user with the rights to do so in this database can change
them. A procedure runs with the rights of its definer, and one that runs with the rights of its caller could
use ours. So a procedure of our name is only used if the connecting user has defined it, or the user that
the address names with `?owner=user@host`.
"""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.mysql.connection import pymysql, read_code

if TYPE_CHECKING:
    from oncemore.log.mysql.connection import Connection, MysqlAddress, MysqlClient

#: By format, the file that creates it (the first one) or migrates to it from the previous format.
SOURCES = {1: "schema.sql"}
OLDEST_FORMAT, FORMAT = min(SOURCES), max(SOURCES)
TABLES = ("meta", "head", "log", "counter", "worker")
PROCEDURES = (
    *("take_log", "check_version", "put", "end_batch", "put_one", "append_one", "flush", "prune", "presence"),
)
#: Time that a process waits for another one that creates the tables, in seconds.
CREATE_WAIT_S = 60
_NO_SUCH_TABLE = 1146


def read_format(client: MysqlClient, connection: Connection, prefix: str) -> int | None:
    """Return the format of a store, or None if it does not exist yet."""
    sql = f"select value from {prefix}_meta where name = 'format'"  # noqa: S608 - a checked name
    try:
        rows = client.execute_rows(connection, sql)
    except pymysql.Error as error:
        if read_code(error) == _NO_SUCH_TABLE:
            return None
        raise
    return int(rows[0][0]) if rows else None


def check_format(where: MysqlAddress, stored_format: int | None) -> None:
    """Refuse a format that this version cannot read or migrate."""
    if stored_format is not None and not OLDEST_FORMAT <= stored_format <= FORMAT:
        raise StoreError(
            f"{where.shown}: the tables {where.prefix}_* have format {stored_format}, which another "
            f"version of oncemore wrote; this one reads {OLDEST_FORMAT} to {FORMAT}: use that version here"
        )


def upgrade_schema(client: MysqlClient, connection: Connection) -> None:
    """Create or migrate the tables; refuse foreign objects in their place."""
    where = client.where
    check_objects(client, connection)
    stored_format = read_format(client, connection, where.prefix)
    check_format(where, stored_format)
    if stored_format == FORMAT:
        return
    # The name of a lock holds for the whole server and is up to 64 characters long.
    store_name = f"{where.params['database']}.{where.prefix}"
    name = f"oncemore-{sha256(store_name.encode()).hexdigest()[:32]}"
    ((has_lock,),) = client.execute_rows(connection, "select get_lock(%s, %s)", (name, CREATE_WAIT_S))
    if has_lock != 1:
        raise StoreError(f"{where.shown}: another process has been creating the tables for {CREATE_WAIT_S} s")
    # Read again under the lock: another process may have created them meanwhile.
    stored_format = read_format(client, connection, where.prefix)
    check_format(where, stored_format)
    for format_ in range((stored_format or OLDEST_FORMAT - 1) + 1, FORMAT + 1):
        source = resources.files("oncemore.log.mysql").joinpath(SOURCES[format_]).read_text("utf-8")
        client.execute_rows(connection, source.format(prefix=where.prefix))
        write_format = f"replace into {where.prefix}_meta values ('format', %s)"  # noqa: S608
        client.execute_rows(connection, write_format, (str(format_),))
    client.execute_rows(connection, "do release_lock(%s)", (name,))


def find_objects(client: MysqlClient, connection: Connection) -> list[str]:
    """Return what stands in the place of our tables, triggers on them, and procedures of other users."""
    where = client.where
    tables = tuple(f"{where.prefix}_{name}" for name in TABLES)
    procedures = tuple(f"{where.prefix}_{name}" for name in PROCEDURES)
    sql = (
        "select concat('the trigger ', trigger_name, ' is on the table ', event_object_table) "
        "from information_schema.triggers "
        "where event_object_schema = database() and event_object_table in %s "
        "union all select concat(table_name, ' is not a table of InnoDB') from information_schema.tables "
        "where table_schema = database() and table_name in %s "
        "and (table_type <> 'BASE TABLE' or engine <> 'InnoDB') "
        "union all select concat('the procedure ', routine_name, ' was defined by ', definer) "
        "from information_schema.routines where routine_schema = database() and routine_name in %s "
        "and definer not in (current_user(), %s)"
    )
    rows = client.execute_rows(connection, sql, (tables, tables, procedures, where.owner))
    return [text for (text,) in rows]


def check_objects(client: MysqlClient, connection: Connection) -> None:
    """Refuse a trigger on our tables, another object in their place, and a procedure of another user."""
    for text in find_objects(client, connection):
        advice = "remove it, and run `oncemore store verify`"
        if text.startswith("the procedure"):
            advice = "if you trust that user, name it in the address: ?owner=user@host"
        raise StoreError(f"{client.where.shown}: {text}; it could change the entries of the log: {advice}")
