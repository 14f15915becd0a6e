"""Maintenance of a store in PostgreSQL: sizes, pruning, import and replacement of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import UsageError
from oncemore.log.postgres.connection import check_text, psycopg
from oncemore.log.postgres.queries import HEAD_COLUMNS
from oncemore.log.store import EntitySizes, FilelessMaintenance, StorageSpace, StoreFacts, check_next

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.postgres.connection import Connection
    from oncemore.log.postgres.store import PostgresStore
    from oncemore.log.store import CopyCheck, Entry, Head


class PostgresMaintenance(FilelessMaintenance):
    """The maintenance of a store in PostgreSQL; most of it is done by the server itself."""

    def __init__(self, store: PostgresStore, schema: str) -> None:
        self._store, self._schema = store, schema

    def describe_store(self) -> StoreFacts:
        """Return the version and the durability of the server, and the address without its password."""
        server = self._store.server
        safe = (
            "an acknowledged entry survives the death of the process; with sync, the server's crash and "
            "power loss too, if its disk honours flushes"
        )
        weak = f"power loss can take away acknowledged entries: {', '.join(server.weaknesses)}"
        no_standby = "no synchronous standby: a failover to a replica can lose the last acknowledged entries"
        return StoreFacts(
            f"{self._store.display_name}?schema={self._schema}",
            f"PostgreSQL {server.version} (psycopg {psycopg.__version__})",
            weak if server.weaknesses else safe,
            (*((weak,) if server.weaknesses else ()), *((no_standby,) if server.lacks_standby else ())),
        )

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the size of tables and indexes; the server does not tell the free space of its disk."""
        ((size,),) = self._store.query_rows(
            "select pg_total_relation_size('{schema}.head') + pg_total_relation_size('{schema}.log')"
        )
        if not in_detail:
            return StorageSpace(int(size))
        rows = self._store.query_rows(
            "select split_part(entity, '/', 1), sum(n)::bigint, sum(m)::bigint, sum(size)::bigint from ("
            "select entity, 1 n, 0 m, octet_length(head) size from {schema}.head union all "
            "select entity, 0, 1, octet_length(header) + coalesce(octet_length(body), 0) from {schema}.log"
            ") every group by 1 order by 1"
        )
        return StorageSpace(int(size), kinds={kind: EntitySizes(*sizes) for kind, *sizes in rows})

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Delete bodies; keep digests. The files of the server keep the bytes until it vacuums the table."""
        check_text(*before)
        self._store.query_rows(
            "select {schema}.prune(t.entity, t.before) "
            "from unnest(%s::text[], %s::bigint[]) t(entity, before)",
            (list(before), list(before.values())),
        )

    def drop_entities(self, at: Mapping[str, int]) -> int:
        """Delete entities that have these versions; only the owner of the schema may."""
        check_text(*at)
        rows = self._store.query_rows(
            "with gone as (delete from {schema}.head h using unnest(%s::text[], %s::bigint[]) "
            "t(entity, version) where h.entity = t.entity and h.version = t.version returning h.entity), "
            "entries as (delete from {schema}.log l using gone g where l.entity = g.entity) "
            "select count(*) from gone",
            (list(at), list(at.values())),
        )
        return int(rows[0][0])

    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads by ones that were rebuilt from the log; only the owner of the schema may."""
        return self._store.run_as_owner(
            lambda connection: _replace_heads(connection, self._schema, heads, upto)
        )

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Append entries of another log; only the owner of the schema may."""
        self._store.run_as_owner(lambda connection: _import_entries(connection, self._schema, entries, heads))

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Refuse, and name the server's own tools."""
        raise UsageError(
            "a store in PostgreSQL is backed up by the server's own tools: "
            f"pg_dump --schema={self._schema} "
            "for a copy, pg_basebackup with archived WAL to go back to any moment"
        )


def _import_entries(
    connection: Connection, schema: str, entries: Sequence[Entry], heads: Sequence[Head]
) -> None:
    """Append entries of another log under new sequence numbers, and replace the heads."""
    check_text(*(entry.entity for entry in entries))
    # Appends wait for this lock, so that sequence numbers become visible in order.
    connection.execute(f"lock table {schema}.head in exclusive mode".encode())
    names = list({entry.entity for entry in entries})
    select = f"select entity, version, hash from {schema}.head where entity = any(%s)"  # noqa: S608
    rows = connection.execute(select.encode(), (names,)).fetchall()
    check_next(entries, heads, {entity: (version, own_hash) for entity, version, own_hash in rows})
    # Drawn before the insert, because the heads need the number of the last entry of their entity.
    numbers = f"select nextval('{schema}.seq') from generate_series(1, %s)"  # noqa: S608
    seqs = [seq for (seq,) in connection.execute(numbers.encode(), (len(entries),)).fetchall()]
    insert = f"insert into {schema}.log values (%s, %s, %s, %s, %s, %s, %s)"  # noqa: S608
    last_seq, rows = {}, []
    for seq, (_, entity, version, _, own_hash, header, body, digest) in zip(seqs, entries, strict=True):
        last_seq[entity] = seq
        # The digest is stored for pruned bodies only.
        rows.append((seq, entity, version, own_hash, header, body, digest if body is None else None))
    with connection.cursor() as cursor:
        cursor.executemany(insert.encode(), rows)
        new_heads = [
            (entity, version, own_hash, head, *index, last_seq[entity])
            for entity, version, own_hash, head, index, _, _ in heads
        ]
        cursor.executemany(_upsert_sql(schema).encode(), new_heads)


def _upsert_sql(schema: str) -> str:
    columns, values = ", ".join(HEAD_COLUMNS), ", ".join(["%s"] * len(HEAD_COLUMNS))
    updates = ", ".join(f"{name} = excluded.{name}" for name in HEAD_COLUMNS[1:])
    insert = f"insert into {schema}.head({columns}) values ({values})"  # noqa: S608
    return f"{insert} on conflict (entity) do update set {updates}"


def _replace_heads(connection: Connection, schema: str, heads: Sequence[Head], upto: int) -> int:
    """Replace heads, except those of entities with entries after `upto`; return how many were replaced."""
    # Appends wait for this lock, or one of them could continue a head that is being replaced.
    connection.execute(f"lock table {schema}.head in exclusive mode".encode())
    select = f"select entity from {schema}.log where seq > %s"  # noqa: S608 - a checked name
    later = {entity for (entity,) in connection.execute(select.encode(), (upto,)).fetchall()}
    replaced = [head for head in heads if head.entity not in later]
    upsert = _upsert_sql(schema).encode()
    for entity, version, own_hash, head, index, seq, _ in replaced:
        connection.execute(upsert, (entity, version, own_hash, head, *index, seq))
    return len(replaced)
