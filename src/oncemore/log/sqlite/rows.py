"""Columns, rows and values: how heads and entries are read from the tables of a SQLite store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.errors import StoreError
from oncemore.log.record import NOWHERE
from oncemore.log.store import Entry, Head, HeadIndex
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    import apsw

HEAD_COLUMNS = (
    *("entity", "version", "hash", "head", "kind", "state", "due", "step", "worker", "dataset", "seq"),
)
HEAD_LIST = ", ".join(HEAD_COLUMNS)
LOG_LIST = "seq, entity, version, before, hash, header, body, digest"

#: One head with the body of its last entry.
SELECT_HEAD = f"SELECT {HEAD_LIST}, (SELECT body FROM log WHERE log.seq=head.seq) FROM head WHERE entity=?"  # noqa: S608
#: Entries with the hash of the previous entry of their entity.
SELECT_ENTRIES = f"SELECT {LOG_LIST}, (SELECT hash FROM log p WHERE p.seq=log.before) FROM log"  # noqa: S608
#: The entries of an entity (?1) from its last back to the version ?2, along their back pointers.
ENTITY_CHAIN = """
WITH RECURSIVE chain(at, number, next) AS (
    SELECT seq, version, before FROM log WHERE seq=(SELECT seq FROM head WHERE entity=?1)
    UNION ALL SELECT seq, version, before FROM chain JOIN log ON seq=next WHERE number>?2)
"""
LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM log"


def fetch_rows(source: apsw.Connection | apsw.Cursor, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Return all rows: a cursor that is not exhausted holds its snapshot, and later reads would be stale."""
    return source.execute(sql, values).fetchall()


def row_to_head(row: tuple[Any, ...]) -> Head:
    """Return the head in a row of `SELECT_HEAD`."""
    return make(Head, (*row[:4], make(HeadIndex, row[4:10]), *row[10:]))


def row_to_entry(row: tuple[Any, ...]) -> Entry:
    """Return the entry in a row of `SELECT_ENTRIES`."""
    seq, entity, version, _, own_hash, header, body, stored_digest, prev = row
    try:
        # The digest is stored only once the body is pruned.
        body_digest = hash_bytes(body) if body is not None else stored_digest
    except TypeError:
        raise StoreError(f"entry {seq} ({entity}) was altered: its body is not made of bytes") from None
    return Entry(
        seq=seq,
        entity=entity,
        version=version,
        prev=prev or NOWHERE,
        hash=own_hash,
        header=header,
        body=body,
        body_digest=body_digest,
    )
