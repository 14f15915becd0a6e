"""Maintenance of a store in PostgreSQL: sizes, pruning, import and replacement of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.database.maintenance import DatabaseMaintenance
from oncemore.log.postgres.connection import check_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncemore.log.postgres.connection import Connection


class PostgresMaintenance(DatabaseMaintenance["Connection"]):
    """The maintenance of a store in PostgreSQL."""

    upsert = "on conflict (entity) do update set"
    upsert_value = "excluded.{}"
    first_part = "split_part(entity, '/', 1)"
    own_option = "?schema={schema}"
    backup_tools = (
        "a store in PostgreSQL is backed up by the server's own tools: pg_dump --schema={schema} "
        "for a copy, pg_basebackup with archived WAL to go back to any moment"
    )

    def _measure_tables(self) -> int:
        ((size,),) = self._store.query_rows(
            "select pg_total_relation_size('{head}') + pg_total_relation_size('{log}')"
        )
        return int(size)

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
            "with gone as (delete from {head} h using unnest(%s::text[], %s::bigint[]) "
            "t(entity, version) where h.entity = t.entity and h.version = t.version returning h.entity), "
            "entries as (delete from {log} l using gone g where l.entity = g.entity) "
            "select count(*) from gone",
            (list(at), list(at.values())),
        )
        return int(rows[0][0])

    def _lock_log(self, connection: Connection) -> None:
        self._execute(connection, "lock table {head} in exclusive mode")

    def _draw_numbers(self, connection: Connection, count: int) -> Sequence[int]:
        sql = "select nextval('{schema}.seq') from generate_series(1, %s)"
        return [seq for (seq,) in self._execute(connection, sql, (count,))]
