"""Maintenance statements of a SQLite store: prune, drop, import and replace. Each runs in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.sqlite.rows import ENTITY_CHAIN, HEAD_COLUMNS, HEAD_LIST, fetch_rows
from oncemore.log.store import check_next
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from oncemore.log.store import Entry, Head

#: Time limit of the checkpoint after pruning.
CHECKPOINT_BUSY_MS = 100

_UPSERT_HEAD = (
    f"INSERT INTO head({HEAD_LIST}) VALUES ({', '.join('?' * len(HEAD_COLUMNS))}) "  # noqa: S608
    f"ON CONFLICT(entity) DO UPDATE SET {', '.join(f'{name}=excluded.{name}' for name in HEAD_COLUMNS[1:])}"
)


def prune_bodies(connection: apsw.Connection, before: Mapping[str, int]) -> None:
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
    connection.set_busy_timeout(CHECKPOINT_BUSY_MS)
    connection.pragma("wal_checkpoint", "TRUNCATE")


def drop_entities(connection: apsw.Connection, at: Mapping[str, int]) -> int:
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


def import_entries(connection: apsw.Connection, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
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


def replace_heads(connection: apsw.Connection, heads: Sequence[Head], upto: int) -> int:
    """Replace heads, except those of entities with entries after `upto`; return how many were replaced."""
    with connection:
        later = {entity for (entity,) in connection.execute("SELECT entity FROM log WHERE seq>?", (upto,))}
        replaced = [head for head in heads if head.entity not in later]
        for entity, version, own_hash, head, index, seq, _ in replaced:
            connection.execute(_UPSERT_HEAD, (entity, version, own_hash, head, *index, seq))
    return len(replaced)
