"""Maintenance of a store in MySQL: sizes, pruning, import and replacement of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.database.maintenance import DatabaseMaintenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncemore.log.mysql.connection import Connection


class MysqlMaintenance(DatabaseMaintenance["Connection"]):
    """The maintenance of a store in MySQL."""

    upsert = "on duplicate key update"
    upsert_value = "values({})"
    first_part = "convert(substring_index(entity, '/', 1) using utf8mb4)"
    own_option = "?prefix={prefix}"
    backup_tools = (
        "a store in MySQL is backed up by the server's own tools: mariadb-dump --single-transaction "
        "--routines for a copy, mariadb-backup with archived binary logs to go back to any moment"
    )

    def _measure_tables(self) -> int:
        ((size,),) = self._store.query_rows(
            "select coalesce(sum(data_length + index_length), 0) from information_schema.tables "
            "where table_schema = database() and table_name in ('{head}', '{log}')"
        )
        return int(size)

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Delete bodies; keep digests. The files of the server keep the bytes until it purges them."""
        self._store.check_text(*before)

        def prune(connection: Connection) -> None:
            for entity, version in before.items():
                self._execute(connection, "call {prefix}_prune(%s, %s)", (entity, version))

        self._store.run_as_owner(prune)

    def drop_entities(self, at: Mapping[str, int]) -> int:
        """Delete entities that have these versions; the user needs the right to delete."""
        self._store.check_text(*at)

        def drop(connection: Connection) -> int:
            self._lock_log(connection)
            count = 0
            for entity, version in at.items():
                delete = "delete from {head} where entity = %s and version = %s"
                self._execute(connection, delete, (entity, version))
                ((deleted,),) = self._execute(connection, "select row_count()")
                if deleted > 0:
                    self._execute(connection, "delete from {log} where entity = %s", (entity,))
                    count += 1
            return count

        return self._store.run_as_owner(drop)

    def _lock_log(self, connection: Connection) -> None:
        self._execute(connection, "select value from {counter} where name = 'last_seq' for update")

    def _draw_numbers(self, connection: Connection, count: int) -> Sequence[int]:
        self._execute(connection, "update {counter} set value = value + %s where name = 'last_seq'", (count,))
        select = "select value from {counter} where name = 'last_seq'"
        ((last,),) = self._execute(connection, select)
        return range(int(last) - count + 1, int(last) + 1)
