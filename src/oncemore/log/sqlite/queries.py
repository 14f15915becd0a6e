"""The queries of a SQLite store: columns and rows of heads and entries, and lists of heads.

Due heads have an index, and so have failed and held ones. The other queries of operators have none, because
every write would pay for it: a list of the newest heads reads the end of the log backwards, where it usually
finds enough, and only then reads all heads (a million in about a second), sorting nothing but their ids. All
kinds but runs are found by the beginning of their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.errors import StoreError
from oncemore.log.store import Entry, Head, HeadIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import apsw

    from oncemore.log.store import HeadQuery

    Read = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]

HEAD_COLUMNS = (
    *("entity", "version", "hash", "head", "kind", "state", "due", "step", "worker", "dataset", "seq"),
)
HEAD_LIST = ", ".join(HEAD_COLUMNS)
LOG_LIST = "seq, entity, version, before, hash, header, body, digest"

#: One head with the body of its last entry.
SELECT_HEAD = f"SELECT {HEAD_LIST}, (SELECT body FROM log WHERE log.seq=head.seq) FROM head WHERE entity=?"  # noqa: S608
#: Entries in the order of the fields of `Entry`, with the hash of the previous entry of their entity.
SELECT_ENTRIES = """
SELECT seq, entity, version,
    CASE before WHEN 0 THEN zeroblob(32) ELSE (SELECT hash FROM log p WHERE p.seq=log.before) END,
    hash, header, body, digest FROM log
"""
#: The entries of an entity (?1) from its last back to the version ?2, along their back pointers.
ENTITY_CHAIN = """
WITH RECURSIVE chain(at, number, next) AS (
    SELECT seq, version, before FROM log WHERE seq=(SELECT seq FROM head WHERE entity=?1)
    UNION ALL SELECT seq, version, before FROM chain JOIN log ON seq=next WHERE number>?2)
"""
LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM log"
#: Number of last entries that are searched before all heads are.
RECENT_ENTRIES = 20_000
#: Heads that are read at a time when all are.
HEAD_PAGE = 500

#: The states in the index `head_failed`. SQLite uses a partial index only if the query has its condition.
FAILED_STATES = ("HARD_FAIL", "HELD")
_IS_FAILED = "state IN ('HARD_FAIL', 'HELD')"

_COLUMNS = ", ".join(f"head.{name}" for name in HEAD_COLUMNS)
_BODY = "(SELECT body FROM log own WHERE own.seq=head.seq)"


def fetch_rows(source: apsw.Connection | apsw.Cursor, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Return all rows: a cursor that is not exhausted holds its snapshot, and later reads would be stale."""
    return source.execute(sql, values).fetchall()


def row_to_head(row: tuple[Any, ...]) -> Head:
    """Return the head in a row of `SELECT_HEAD`."""
    return make(Head, (*row[:4], make(HeadIndex, row[4:10]), *row[10:]))


def row_to_entry(row: tuple[Any, ...]) -> Entry:
    """Return the entry in a row of `SELECT_ENTRIES`."""
    body = row[6]
    # The digest is stored only once the body is pruned. The row has the fields of `Entry` in their order:
    # `make` costs a third of keywords, and a scan of the whole log passes here once per entry.
    if body is None or (row[7] is None and type(body) is bytes):
        return make(Entry, row)
    raise StoreError(f"entry {row[0]} ({row[1]}) was altered: its body is not made of bytes, or has a digest")


def read_all_heads(read: Read) -> Iterator[Head]:
    """Yield all heads in the order in which they were inserted; `read` runs a statement."""
    after = 0
    sql = f"SELECT {HEAD_LIST}, id FROM head WHERE id>? ORDER BY id LIMIT {HEAD_PAGE}"  # noqa: S608
    while rows := read(sql, (after,)):
        for row in rows:
            yield make(Head, (*row[:4], make(HeadIndex, row[4:10]), row[10], None))
        after = rows[-1][11]


def read_head_rows(query: HeadQuery, read: Read) -> list[tuple[Any, ...]]:
    """Return the rows of the heads that match a query; `read` runs a statement."""
    where, values = _build_where(query)
    body = _BODY if query.body_contains else "NULL"
    if not query.newest_first:
        order = "due, entity" if query.due_by is not None else "due IS NULL, due, entity"
        if query.after is not None:
            order = "entity"
        sql = f"SELECT {_COLUMNS}, {body} FROM head WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608
        return read(sql, (*values, query.limit))
    ((last_seq,),) = read(LAST_SEQ, ())
    top = last_seq if query.before_seq is None else min(last_seq, query.before_seq - 1)
    bottom = max(query.after_seq, top - RECENT_ENTRIES)
    # CROSS JOIN fixes the order of the loops: SQLite may otherwise start with the heads and sort them all.
    sql = (
        f"SELECT {_COLUMNS}, {body} FROM log CROSS JOIN head ON head.entity=log.entity AND head.seq=log.seq "  # noqa: S608
        f"WHERE log.seq>? AND log.seq<=? AND {where} ORDER BY log.seq DESC LIMIT ?"
    )
    # The index of failed heads is in this order already.
    if query.state not in FAILED_STATES:
        rows = read(sql, (bottom, top, *values, query.limit))
        if len(rows) == query.limit or bottom == query.after_seq:
            return rows
    sql = (
        f"SELECT {_COLUMNS}, {body} FROM head WHERE id IN "  # noqa: S608
        f"(SELECT id FROM head WHERE {where} ORDER BY seq DESC LIMIT ?) ORDER BY seq DESC"
    )
    return read(sql, (*values, query.limit))


def _build_where(query: HeadQuery) -> tuple[str, list[Any]]:
    prefix = query.prefix
    # Runs are most of all heads, so that their name says little; the due time has an index of its own.
    if not prefix and query.kind not in ("", "run") and query.due_by is None:
        prefix = f"{query.kind}/"
    conditions: list[tuple[str, Any]] = [
        ("kind=?", query.kind or None),
        *((f"{column}=?", getattr(query, column)) for column in ("state", "step", "worker", "dataset")),
        # IS NOT NULL is the condition of the partial index, so that only due heads are read.
        ("due IS NOT NULL AND due<=?", query.due_by),
        ("head.seq>?", query.after_seq or None),
        ("head.seq<?", query.before_seq),
        ("head.entity>?", query.after),
        # A range instead of LIKE, because names may contain % and _.
        ("head.entity>=?", prefix or None),
        ("head.entity<?", prefix + "\U0010ffff" if prefix else None),
        ("instr(head, ?)", query.head_contains or None),
        (f"instr({_BODY}, ?)", query.body_contains or None),
    ]
    used = [(text, value) for text, value in conditions if value is not None]
    text = " AND ".join(text for text, _ in used) or "true"
    if query.state in FAILED_STATES:
        text = f"{_IS_FAILED} AND {text}"
    return text, [value for _, value in used]
