"""Checks of the owner of a store's schema, and of foreign objects in it.

A role that may create schemas could create ours before us, with functions and views that run with the rights
of their caller. So nothing in the schema is used before its owner and the owners of all objects in it are
known to be trusted: the connecting role, a role that it is a member of, a superuser (who may do anything
anyway), or the role that the address names with `?owner=`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Connection, PostgresAddress, Rows

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
            "of the log. Remove it, and run `oncemore verify`"
        )


def find_objects(schema: str) -> tuple[str, tuple[object, ...]]:
    """Return the query for triggers, rules, views and tables in the schema, and its values."""
    return _FOREIGN_OBJECTS, (schema, TABLES, TABLES, TABLES, TABLES)
