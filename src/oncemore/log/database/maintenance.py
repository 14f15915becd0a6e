"""Maintenance of a store in a database server: sizes, import and replacement of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from oncemore.errors import UsageError
from oncemore.log.database.queries import HEAD_COLUMNS
from oncemore.log.store import EntitySizes, FilelessMaintenance, StorageSpace, StoreFacts, check_next

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.database.connection import DatabaseClient, DatabaseServer, Rows
    from oncemore.log.database.store import DatabaseStore
    from oncemore.log.store import CopyCheck, Entry, Head

C = TypeVar("C")


class DatabaseMaintenance(FilelessMaintenance, Generic[C]):
    """The maintenance of a store in a server; most of it is done by the server itself.

    upsert        the end of the statement that inserts a head, for an entity that exists
    upsert_value  the new value of a column there; {} is its name
    first_part    the kind of an entity, from its name
    own_option    the option of an address that names our tables
    backup_tools  the server's own tools for a copy
    """

    upsert: ClassVar[str]
    upsert_value: ClassVar[str]
    first_part: ClassVar[str]
    own_option: ClassVar[str]
    backup_tools: ClassVar[str]

    def __init__(
        self,
        store: DatabaseStore[C],
        client: DatabaseClient[C],
        server: DatabaseServer,
        table_names: Mapping[str, str],
    ) -> None:
        self._store, self._client, self._server, self._table_names = store, client, server, table_names

    def describe_store(self) -> StoreFacts:
        """Return the version and the durability of the server, and the address without its password."""
        server = self._server
        safe = (
            "an acknowledged entry survives the death of the process; with sync, the server's crash and "
            "power loss too, if its disk honours flushes"
        )
        weak = f"power loss can take away acknowledged entries: {', '.join(server.weaknesses)}"
        return StoreFacts(
            self._store.display_name + self.own_option.format(**self._table_names),
            server.engine,
            weak if server.weaknesses else safe,
            (*((weak,) if server.weaknesses else ()), *server.notes),
        )

    def _measure_tables(self) -> int:
        """Return the bytes of tables and indexes."""
        raise NotImplementedError

    def _lock_log(self, connection: C) -> None:
        """Make appends wait until the end of the transaction."""
        raise NotImplementedError

    def _draw_numbers(self, connection: C, count: int) -> Sequence[int]:
        """Return the next sequence numbers."""
        raise NotImplementedError

    def _execute(self, connection: C, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self._client.execute_rows(connection, sql.format(**self._table_names), values)

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the size of tables and indexes; the server does not tell the free space of its disk."""
        size = self._measure_tables()
        if not in_detail:
            return StorageSpace(size)
        rows = self._store.query_rows(
            f"select {self.first_part}, sum(n), sum(m), sum(size) from ("  # noqa: S608
            "select entity, 1 n, 0 m, octet_length(head) size from {head} union all "
            "select entity, 0, 1, octet_length(header) + coalesce(octet_length(body), 0) from {log}"
            ") every_row group by 1 order by 1"
        )
        return StorageSpace(size, kinds={kind: EntitySizes(*map(int, sizes)) for kind, *sizes in rows})

    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads by ones that were rebuilt from the log; the caller needs the rights of the owner."""
        return self._store.run_as_owner(lambda connection: self._replace_heads(connection, heads, upto))

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Append entries of another log; the caller needs the rights of the owner."""
        self._store.check_text(*(entry.entity for entry in entries))
        self._store.run_as_owner(lambda connection: self._import_entries(connection, entries, heads))

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Refuse, and name the server's own tools."""
        raise UsageError(self.backup_tools.format(**self._table_names))

    def _import_entries(self, connection: C, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Append entries of another log under new sequence numbers, and replace the heads."""
        # Appends wait for this lock, so that sequence numbers become visible in order.
        self._lock_log(connection)
        current = {}
        for name in {entry.entity for entry in entries}:
            for version, own_hash in self._execute(
                connection, "select version, hash from {head} where entity = %s", (name,)
            ):
                current[name] = (version, own_hash)
        check_next(entries, heads, current)
        # Drawn before the insert, because the heads need the number of the last entry of their entity.
        seqs = self._draw_numbers(connection, len(entries))
        last_seq, rows = {}, []
        for seq, (_, entity, version, _, own_hash, header, body, digest) in zip(seqs, entries, strict=True):
            last_seq[entity] = seq
            # The digest is stored for pruned bodies only.
            rows.append((seq, entity, version, own_hash, header, body, digest if body is None else None))
        insert = "insert into {log} values (%s, %s, %s, %s, %s, %s, %s)"
        self._client.execute_many(connection, insert.format(**self._table_names), rows)
        self._write_heads(connection, [head._replace(seq=last_seq[head.entity]) for head in heads])

    def _replace_heads(self, connection: C, heads: Sequence[Head], upto: int) -> int:
        """Replace heads, except those of entities with entries after `upto`; return how many."""
        # Appends wait for this lock, or one of them could continue a head that is being replaced.
        self._lock_log(connection)
        select_entity = self._store.dialect.read_text.format("entity")
        select = f"select {select_entity} from {{log}} where seq > %s"  # noqa: S608 - our own names
        later = {entity for (entity,) in self._execute(connection, select, (upto,))}
        replaced = [head for head in heads if head.entity not in later]
        self._write_heads(connection, replaced)
        return len(replaced)

    def _write_heads(self, connection: C, heads: Sequence[Head]) -> None:
        columns, values = ", ".join(HEAD_COLUMNS), ", ".join(["%s"] * len(HEAD_COLUMNS))
        updates = ", ".join(f"{name} = {self.upsert_value.format(name)}" for name in HEAD_COLUMNS[1:])
        sql = f"insert into {{head}}({columns}) values ({values}) {self.upsert} {updates}"  # noqa: S608
        rows = [
            (entity, version, own_hash, head, *index, seq)
            for entity, version, own_hash, head, index, seq, _ in heads
        ]
        if rows:
            self._client.execute_many(connection, sql.format(**self._table_names), rows)
