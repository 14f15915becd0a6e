"""Who owns the schema of a store in PostgreSQL, and what other roles have put into it.

A role that may create schemas could create ours before we do, with functions and views that run with the
rights of whoever calls them. So nothing in the schema is touched before its owner and the owners of all that
is in it are known to be the connecting role, a role that it is a member of, a superuser (who may do anything
anyway), or the role that the address names with `?owner=`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Address, Connection, Rows

TABLES = ["meta", "head", "log", "guarded", "alive", "worker"]

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


def check_owners(connection: Connection, where: Address, schema: str) -> None:
    """Refuse a schema, a table or a function that a role could change of which we are not a member."""
    for kind, name, owner, user in connection.execute(_FOREIGN_OWNERS, (schema, where.owner)).fetchall():
        raise StoreError(
            f"{where.shown}: {kind} {name} belongs to the role {owner}, of which {user} is not a member: "
            "that role decides what it does. Connect as a member of it; or, if you trust it, name it in the "
            f"address: ?owner={owner}"
        )


def sort_objects(rows: Rows) -> tuple[list[str], list[str]]:
    """Return the objects of a schema that touch our tables and are not ours, and the tables of others."""
    return [name for ours, name in rows if ours], [name for ours, name in rows if not ours]


def check_objects(connection: Connection, where: Address, schema: str) -> None:
    """Refuse triggers, rules and views that would change what we write."""
    foreign, _ = sort_objects(connection.execute(*find_objects(schema)).fetchall())
    if foreign:
        raise StoreError(
            f"{where.shown}: {foreign[0]}, which another program has put there: it could change what we "
            "write. Remove it, and run `oncemore verify`"
        )


def find_objects(schema: str) -> tuple[str, tuple[object, ...]]:
    """Return the statement that finds triggers, rules, views and tables in the schema, and its values."""
    return _FOREIGN_OBJECTS, (schema, TABLES, TABLES, TABLES, TABLES)
