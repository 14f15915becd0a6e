"""The format of a schema in PostgreSQL: how it is made, and how one of an earlier format becomes a later one.

Format 1 is `postgres.sql`; each later one is a file of its own that is run on top, so that a schema which was
made yesterday and brought up to date is the same as one that is made today. All of it happens in one
transaction, under a lock that is the schema's own: of several processes that come at once, one does it and
the others wait, then find it done. A process that dies in the middle leaves what was there before.

Processes of an earlier version that have the store open go on meanwhile: a later format keeps the functions
that they call. One that opens it afterwards is refused, because it cannot know what it would be writing to.
"""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.postgres.connection import psycopg
from oncemore.log.postgres.owner_check import check_objects, check_owners

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Address, Connection

#: What brings a schema to a format from the one before it.
SOURCES = {1: "postgres.sql", 2: "postgres_2.sql", 3: "postgres_3.sql"}
FORMAT = max(SOURCES)


def tag_of(schema: str) -> int:
    """Return 19 bits of a schema's name, for the names of its locks."""
    return int.from_bytes(sha256(schema.encode()).digest()[:4], "big") >> 13


def found(connection: Connection, schema: str) -> int | None:
    """Return the format of a schema, or None when it is not there yet."""
    # Not to_regclass: it may answer from a cache that is older than the lock we hold.
    known = "select from pg_tables where schemaname = %s and tablename = 'meta'"
    if connection.execute(known, (schema,)).fetchone() is None:
        return None
    sql = f"select value from {schema}.meta where name = 'format'"  # noqa: S608 - a checked name
    row = connection.execute(sql.encode()).fetchone()
    return None if row is None else int(row[0])


def check(where: Address, schema: str, has: int | None) -> None:
    """Refuse a format that is newer than what we know."""
    if has is not None and has > FORMAT:
        raise StoreError(
            f"{where.shown}: schema {schema} has format {has}, which a newer oncemore "
            f"wrote; this one reads up to {FORMAT}: install the newer one"
        )


def bring_up(connection: Connection, where: Address, schema: str) -> None:
    """Make the schema, or bring it to our format; refuse one that others could change."""
    check_owners(connection, where, schema)
    check_objects(connection, where, schema)
    has = found(connection, schema)
    check(where, schema, has)
    if has == FORMAT:
        return
    try:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s, 0)", (tag_of(schema),))
            _run(connection, where, schema)
    except psycopg.errors.InsufficientPrivilege as error:
        if has is None:
            raise
        raise StoreError(
            f"{where.shown}: schema {schema} has format {has}, and this oncemore needs {FORMAT}; open the "
            "store once as the role that owns the schema, which brings it up to date"
        ) from error


def _run(connection: Connection, where: Address, schema: str) -> None:
    """Run what is missing, holding the lock: somebody else may have run it since we looked."""
    has = found(connection, schema)
    check(where, schema, has)
    if has is None:
        connection.execute(f"create schema if not exists {schema}".encode())
        check_owners(connection, where, schema)  # another role may have made it just now
    for format_ in range((has or 0) + 1, FORMAT + 1):
        source = resources.files("oncemore.log.postgres").joinpath(SOURCES[format_]).read_text("utf-8")
        connection.execute(source.format(schema=schema, tag=tag_of(schema)).encode(), prepare=False)
    noted = f"insert into {schema}.meta values ('format', %s) on conflict (name) do update set value = %s"  # noqa: S608
    connection.execute(noted.encode(), (str(FORMAT), str(FORMAT)))
