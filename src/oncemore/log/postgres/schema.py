"""The format of a schema in PostgreSQL: its creation and migration.

`schema.sql` creates a schema of the oldest format that this version reads; each later format is a file that
is run on top of it, so that a migrated schema is the same as a new one. All of it happens in one transaction,
under a lock of the schema: of several processes that start at the same time, one migrates, and the rest wait
and find it done. A process that dies in the middle leaves the former format.

Processes of an earlier version that have the store open continue: a later format keeps the functions that
they call. One that opens it afterwards is refused, because it does not know the new format.

**Owners.** A role that may create schemas could create ours before us, with functions and views that run with
the rights of their caller. So nothing in the schema is used before its owner and the owners of all objects in
it are known to be trusted: the connecting role, a role that it is a member of, a superuser (who may do
anything anyway), or the role that the address names with `?owner=`.
"""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.postgres.connection import psycopg

if TYPE_CHECKING:
    from oncemore.log.database.connection import Rows
    from oncemore.log.postgres.connection import Connection, PostgresAddress

#: By format, the file that creates it (the first one) or migrates to it from the previous format. Formats 1
#: and 2 were never released, and their logs have a format that is not read any more.
SOURCES = {3: "schema.sql", 4: "format_4.sql"}
OLDEST_FORMAT, FORMAT = min(SOURCES), max(SOURCES)
TABLES = ["meta", "head", "log", "guarded", "alive", "worker"]

# A member of a role may change its objects anyway, so membership is enough.
_FOREIGN_OWNERS = """
select o.kind, o.name, r.rolname, current_user from (
    select 'schema' kind, nspname name, nspowner owner, oid from pg_namespace
    union all select 'function', proname, proowner, pronamespace from pg_proc
    union all select 'table', relname, relowner, relnamespace from pg_class
        where relkind in ('r', 'v', 'm', 'f', 'p')
) o join pg_namespace n on n.oid = o.oid join pg_roles r on r.oid = o.owner
where n.nspname = %s and not r.rolsuper and r.rolname <> %s and not pg_has_role(o.owner, 'member')
order by o.kind = 'schema' desc, o.name limit 1
"""
# The rule _RETURN is the definition of a view; internal triggers belong to constraints.
_FOREIGN_OBJECTS = """
with c as (
    select c.oid, c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s)
select c.relname = any(%s), 'trigger ' || t.tgname || ' is on the table ' || c.relname
    from pg_trigger t join c on c.oid = t.tgrelid where not t.tgisinternal
union all select c.relname = any(%s), 'rule ' || r.rulename || ' is on the table ' || c.relname
    from pg_rewrite r join c on c.oid = r.ev_class where r.rulename <> '_RETURN'
union all select true, c.relname || ' is not a table' from c
    where c.relname = any(%s) and c.relkind in ('v', 'm', 'f')
union all select false, c.relname from c
    where c.relname <> all(%s) and c.relkind in ('r', 'v', 'm', 'f', 'p')
"""


def lock_tag(schema: str) -> int:
    """Return 19 bits of the hash of a schema's name, for the keys of its advisory locks."""
    return int.from_bytes(sha256(schema.encode()).digest()[:4], "big") >> 13


def schema_format(connection: Connection, schema: str) -> int | None:
    """Return the format of a schema, or None if it does not exist yet."""
    # Not to_regclass: it may answer from a cache that is older than the lock we hold.
    table_exists = "select from pg_tables where schemaname = %s and tablename = 'meta'"
    if connection.execute(table_exists, (schema,)).fetchone() is None:
        return None
    sql = f"select value from {schema}.meta where name = 'format'"  # noqa: S608 - a checked name
    row = connection.execute(sql.encode()).fetchone()
    return None if row is None else int(row[0])


def check_format(where: PostgresAddress, schema: str, stored_format: int | None) -> None:
    """Refuse a format that this version cannot read or migrate."""
    if stored_format is None:
        return
    if stored_format < OLDEST_FORMAT:
        raise StoreError(
            f"{where.shown}: schema {schema} has format {stored_format}, which this oncemore no longer reads "
            f"(from {OLDEST_FORMAT} on); finish its work with the version that wrote it, or use a new schema"
        )
    if stored_format > FORMAT:
        raise StoreError(
            f"{where.shown}: schema {schema} has format {stored_format}, which a newer oncemore "
            f"wrote; this one reads up to {FORMAT}: install the newer one"
        )


def upgrade_schema(connection: Connection, where: PostgresAddress, schema: str) -> None:
    """Create or migrate the schema; refuse one with untrusted owners or foreign objects."""
    check_owners(connection, where, schema)
    check_objects(connection, where, schema)
    stored_format = schema_format(connection, schema)
    check_format(where, schema, stored_format)
    if stored_format == FORMAT:
        return
    try:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s, 0)", (lock_tag(schema),))
            _run_migrations(connection, where, schema)
    except psycopg.errors.InsufficientPrivilege as error:
        if stored_format is None:
            raise
        raise StoreError(
            f"{where.shown}: schema {schema} has format {stored_format}, and this oncemore needs "
            f"{FORMAT}; open the store once as the role that owns the schema, and it is migrated"
        ) from error


def _run_migrations(connection: Connection, where: PostgresAddress, schema: str) -> None:
    """Run the missing migrations, holding the lock."""
    # Read again under the lock: another process may have migrated the schema meanwhile.
    stored_format = schema_format(connection, schema)
    check_format(where, schema, stored_format)
    if stored_format is None:
        connection.execute(f"create schema if not exists {schema}".encode())
        check_owners(connection, where, schema)  # another role may have created it just now
    for format_ in range((stored_format or OLDEST_FORMAT - 1) + 1, FORMAT + 1):
        source = resources.files("oncemore.log.postgres").joinpath(SOURCES[format_]).read_text("utf-8")
        connection.execute(source.format(schema=schema, tag=lock_tag(schema)).encode(), prepare=False)
    write_format = (
        f"insert into {schema}.meta values ('format', %s) on conflict (name) do update set value = %s"  # noqa: S608
    )
    connection.execute(write_format.encode(), (str(FORMAT), str(FORMAT)))


def check_owners(connection: Connection, where: PostgresAddress, schema: str) -> None:
    """Refuse a schema, a table or a function whose owner is not trusted."""
    for kind, name, owner, user in connection.execute(_FOREIGN_OWNERS, (schema, where.owner)).fetchall():
        raise StoreError(
            f"{where.shown}: {kind} {name} belongs to the role {owner}, and {user} is not a member of it: "
            "that role can change it. Connect as a member of it; or, if you trust it, name it in the "
            f"address: ?owner={owner}"
        )


def sort_objects(rows: Rows) -> tuple[list[str], list[str]]:
    """Return the foreign objects that affect our tables, and the other tables in the schema."""
    affecting = [name for affects_ours, name in rows if affects_ours]
    return affecting, [name for affects_ours, name in rows if not affects_ours]


def check_objects(connection: Connection, where: PostgresAddress, schema: str) -> None:
    """Refuse foreign triggers, rules and views on our tables."""
    foreign, _ = sort_objects(connection.execute(*find_objects(schema)).fetchall())
    if foreign:
        raise StoreError(
            f"{where.shown}: {foreign[0]}, created by another program: it could change the entries "
            "of the log. Remove it, and run `oncemore store verify`"
        )


def find_objects(schema: str) -> tuple[str, tuple[object, ...]]:
    """Return the query for triggers, rules, views and tables in the schema, and its values."""
    return _FOREIGN_OBJECTS, (schema, TABLES, TABLES, TABLES, TABLES)
