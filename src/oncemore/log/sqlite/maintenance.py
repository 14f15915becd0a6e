"""The maintenance of a SQLite store: sizes, checkpoints, pruning, import and replacement of heads.

What changes the file runs in one transaction, under the store's lock, on a connection of its own.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import apsw

from oncemore.log.sqlite import backup, machine
from oncemore.log.sqlite.files import disk_space_left
from oncemore.log.sqlite.queries import ENTITY_CHAIN, HEAD_COLUMNS, HEAD_LIST, LAST_SEQ, fetch_rows
from oncemore.log.store import EntitySizes, StorageSpace, StoreFacts, check_next
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.sqlite.store import SqliteStore
    from oncemore.log.store import CopyCheck, Entry, Head

#: Time limit of a checkpoint: a reader may keep its snapshot for hours.
CHECKPOINT_BUSY_MS = 100

_ENTITY_SIZES = """
SELECT substr(entity, 1, instr(entity || '/', '/') - 1), sum(n), sum(m), sum(size) FROM (
    SELECT entity, 1 n, 0 m, length(head) size FROM head UNION ALL
    SELECT entity, 0, 1, length(header) + coalesce(length(body), 0) FROM log) GROUP BY 1
"""
_UPSERT_HEAD = (
    f"INSERT INTO head({HEAD_LIST}) VALUES ({', '.join('?' * len(HEAD_COLUMNS))}) "  # noqa: S608
    f"ON CONFLICT(entity) DO UPDATE SET {', '.join(f'{name}=excluded.{name}' for name in HEAD_COLUMNS[1:])}"
)


class SqliteMaintenance:
    """The maintenance of a store in a SQLite file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store, self._path = store, store.path

    def describe_store(self) -> StoreFacts:
        """Return the version of the engine, and the durability of an acknowledged entry."""
        return StoreFacts(
            f"sqlite:///{self._path}",
            f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}), WAL",
            "an acknowledged entry survives the death of the process; with sync, power loss too, "
            "if the disk honours flushes",
            (
                f"file system: {machine.file_system_type(self._path.parent) or 'unknown'}",
                f"clock: {self._store.now() - time.time():+.0f} s from the wall clock",
            ),
        )

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the sizes of the file and of its write-ahead log, and the free space of the disk."""
        space = StorageSpace(
            file=_file_size(self._path),
            wal=_file_size(self._path.with_name(self._path.name + "-wal")),
            left=disk_space_left(self._path),
        )
        if not in_detail:
            return space
        ((pages,),) = self._store.query_rows("PRAGMA freelist_count")
        ((size,),) = self._store.query_rows("PRAGMA page_size")
        kinds = {kind: EntitySizes(*sizes) for kind, *sizes in self._store.query_rows(_ENTITY_SIZES)}
        return space._replace(spare=int(pages) * int(size), kinds=kinds)

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Delete bodies: overwrite them in the file, and empty the write-ahead log.

        A concurrent reader keeps the write-ahead log as it is until a later checkpoint.
        """
        self._store.run_exclusively(lambda connection: _prune_bodies(connection, before))

    def drop_entities(self, at: Mapping[str, int]) -> int:
        """Delete entities that have these versions. The last entry of the log must not be among them."""
        return self._store.run_exclusively(lambda connection: _drop_entities(connection, at))

    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads by ones that were rebuilt from the log up to `upto`."""
        return self._store.run_exclusively(lambda connection: _replace_heads(connection, heads, upto))

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Append entries of another log under new sequence numbers."""
        self._store.run_exclusively(lambda connection: _import_entries(connection, entries, heads))

    def copy_notice(self) -> str:
        """Return the reason why the file counts as a copy; empty if it does not."""
        rows = self._store.query_rows("SELECT value FROM meta WHERE name='copied'")
        return str(rows[0][0]) if rows else ""

    def acknowledge_copy(self) -> None:
        """Accept this copy as the store from now on, under a new name."""
        self._store.run_exclusively(self._rename_store)

    def _rename_store(self, connection: apsw.Connection) -> None:
        name = os.urandom(16).hex()
        with connection:
            connection.execute("UPDATE meta SET value='' WHERE name='copied'")
            connection.execute("UPDATE meta SET value=? WHERE name='store'", (name,))
        ((last_seq,),) = fetch_rows(connection, LAST_SEQ)
        self._store.set_identity(name, last_seq)

    def checkpoint_wal(self) -> str:
        """Empty the write-ahead log; return the reason if a reader prevents it, or ""."""
        return self._store.run_exclusively(_checkpoint_connection)

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Write a marked and checked copy of the file (`log.sqlite.backup`)."""
        backup.write_backup(self._store, to, check, progress)


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _checkpoint_connection(connection: apsw.Connection) -> str:
    connection.set_busy_timeout(CHECKPOINT_BUSY_MS)
    try:
        ((busy, pages, moved),) = fetch_rows(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.BusyError:
        busy, pages, moved = 1, 0, 0
    if not busy:
        return ""
    return (
        f"a reader holds a snapshot from before the last entries ({moved} of {pages} pages could be moved): "
        "a long query, a backup or another program with the file open; the write-ahead log shrinks when the "
        "reader is done"
    )


def _prune_bodies(connection: apsw.Connection, before: Mapping[str, int]) -> None:
    """Replace bodies by their digests, and remove the bytes from free pages and the write-ahead log."""
    connection.pragma("secure_delete", "ON")
    sql = f"{ENTITY_CHAIN} SELECT at FROM chain WHERE number<?3"  # noqa: S608
    with connection:
        for entity, version in before.items():
            for (seq,) in fetch_rows(connection, sql, (entity, 0, version)):
                ((body,),) = fetch_rows(connection, "SELECT body FROM log WHERE seq=?", (seq,))
                if body is not None:
                    digest = hash_bytes(body)
                    connection.execute("UPDATE log SET body=NULL, digest=? WHERE seq=?", (digest, seq))
    # A reader may prevent the checkpoint; a later one will empty the write-ahead log then.
    _checkpoint_connection(connection)


def _drop_entities(connection: apsw.Connection, at: Mapping[str, int]) -> int:
    """Delete the entries and the head of each entity that has its given version; return how many."""
    connection.pragma("secure_delete", "ON")
    dropped = 0
    with connection:
        for entity, version in at.items():
            if fetch_rows(connection, "SELECT 1 FROM head WHERE entity=? AND version=?", (entity, version)):
                seqs = fetch_rows(connection, f"{ENTITY_CHAIN} SELECT at FROM chain", (entity, 0))  # noqa: S608
                connection.executemany("DELETE FROM log WHERE seq=?", seqs)
                connection.execute("DELETE FROM head WHERE entity=?", (entity,))
                dropped += 1
    return dropped


def _import_entries(connection: apsw.Connection, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
    """Append entries of another log under new sequence numbers, and replace the heads."""
    insert = "INSERT INTO log VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
    with connection:
        current, last_seq = {}, {}
        for entity in {entry.entity for entry in entries}:
            rows = connection.execute("SELECT version, hash, seq FROM head WHERE entity=?", (entity,))
            for version, own_hash, seq in rows:
                current[entity], last_seq[entity] = (version, own_hash), seq
        check_next(entries, heads, current)
        for _, entity, version, _, own_hash, header, body, body_digest in entries:
            # The digest is stored for pruned bodies only, as `prune_bodies` leaves it.
            digest = body_digest if body is None else None
            before = last_seq.get(entity, 0)
            connection.execute(insert, (entity, version, before, own_hash, header, body, digest))
            last_seq[entity] = connection.last_insert_rowid()
        for entity, version, own_hash, head, index, _, _ in heads:
            connection.execute(_UPSERT_HEAD, (entity, version, own_hash, head, *index, last_seq[entity]))


def _replace_heads(connection: apsw.Connection, heads: Sequence[Head], upto: int) -> int:
    """Replace heads, except those of entities with entries after `upto`; return how many were replaced."""
    with connection:
        later = {entity for (entity,) in connection.execute("SELECT entity FROM log WHERE seq>?", (upto,))}
        replaced = [head for head in heads if head.entity not in later]
        for entity, version, own_hash, head, index, seq, _ in replaced:
            connection.execute(_UPSERT_HEAD, (entity, version, own_hash, head, *index, seq))
    return len(replaced)
