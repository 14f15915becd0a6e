"""Lists of heads in a database server; `log.sqlite.queries` tells the cost of such a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.log.record import NOWHERE
from oncemore.log.store import Entry, Head, HeadIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncemore.log.database.connection import Rows
    from oncemore.log.store import HeadQuery

HEAD_COLUMNS = (
    *("entity", "version", "hash", "head", "kind", "state", "due", "step", "worker", "dataset", "seq"),
)
#: The columns of heads that hold text.
TEXT_COLUMNS = frozenset(("entity", "kind", "state", "step", "worker", "dataset"))
#: Number of last entries that are searched before all heads are.
RECENT_ENTRIES = 20_000
#: The states in the index of failed heads. The condition is written out in the query: a prepared statement
#: does not know the value of its parameter, and could not use a partial index by it.
FAILED_STATES = ("HARD_FAIL", "HELD")
_IS_FAILED = "h.state in ('HARD_FAIL', 'HELD')"
#: Entries that are read at a time, and heads when all are.
PAGE, HEAD_PAGE = 500, 500


class QueryDialect(Value):
    """The parts of queries that differ between servers; {} stands for a column or an expression.

    read_text         reads a column of text
    contains          whether bytes contain the value %s
    has_failed_index  whether failed and held heads have an index, in the order of their last entries
    """

    read_text: str
    contains: str
    has_failed_index: bool

    def select_columns(self, table: str, names: Sequence[str] = HEAD_COLUMNS) -> str:
        """Return the columns of a table, as a list for SELECT."""
        return ", ".join(
            self.read_text.format(f"{table}.{name}") if name in TEXT_COLUMNS else f"{table}.{name}"
            for name in names
        )


_BODY = "(select body from {log} own where own.entity = h.entity and own.version = h.version)"


def read_all_heads(read: Callable[..., Rows], dialect: QueryDialect) -> Iterator[Rows]:
    """Yield pages of the rows of all heads in the order of their first entries; `read` runs a statement."""
    after, columns = 0, dialect.select_columns("h")
    # A head has no number of its own, so the log gives the order.
    sql = (
        f"select {columns}, l.seq from {{log}} l join {{head}} h on h.entity = l.entity "  # noqa: S608
        f"where l.version = 1 and l.seq > %s order by l.seq limit {HEAD_PAGE}"
    )
    while rows := read(sql, (after,)):
        yield [row[:-1] for row in rows]
        after = rows[-1][-1]
    # Heads without a first entry are wrong, which is for the caller to find.
    yield read(
        f"select {columns} from {{head}} h where not exists "  # noqa: S608
        "(select 1 from {log} l where l.entity = h.entity and l.version = 1)"
    )


def read_head_rows(
    query: HeadQuery, read: Callable[..., Rows], dialect: QueryDialect, check_text: Callable[..., object]
) -> Rows:
    """Return the rows of the heads that match a query; `read` runs a statement."""
    where, values = _build_where(query, dialect)
    check_text(*(value for value in values if isinstance(value, str)))
    columns = dialect.select_columns("h")
    columns = f"{columns}, {_BODY}" if query.body_contains else columns
    plain = f"select {columns} from {{head}} h where {where} order by "  # noqa: S608
    if not query.newest_first:
        order = "h.due, h.entity" if query.due_by is not None else "h.due is null, h.due, h.entity"
        order = order if query.after is None else "h.entity"
        return read(f"{plain} {order} limit %s", (*values, query.limit))
    if query.state in FAILED_STATES and dialect.has_failed_index:
        return read(f"{plain} h.seq desc limit %s", (*values, query.limit))
    # The end of the log first, where a list of the newest heads usually finds enough.
    ((last_seq,),) = read("select coalesce(max(seq), 0) from {log}")
    top = last_seq if query.before_seq is None else min(last_seq, query.before_seq - 1)
    bottom = max(query.after_seq, top - RECENT_ENTRIES)
    sql = (
        f"select {columns} from {{log}} l join {{head}} h "  # noqa: S608
        f"on h.entity = l.entity and h.seq = l.seq where l.seq > %s and l.seq <= %s and {where} "
        "order by l.seq desc limit %s"
    )
    rows = read(sql, (bottom, top, *values, query.limit))
    if len(rows) == query.limit or bottom == query.after_seq:
        return rows
    return read(f"{plain} h.seq desc limit %s", (*values, query.limit))


def _build_where(query: HeadQuery, dialect: QueryDialect) -> tuple[str, list[Any]]:
    prefix = query.prefix
    # Runs are most of all heads, so that their name says little; the due time has an index of its own.
    if not prefix and query.kind not in ("", "run") and query.due_by is None:
        prefix = f"{query.kind}/"
    conditions: list[tuple[str, Any]] = [
        ("h.kind = %s", query.kind or None),
        *((f"h.{name} = %s", getattr(query, name)) for name in ("state", "step", "worker", "dataset")),
        ("h.due <= %s", query.due_by),
        ("h.seq > %s", query.after_seq or None),
        ("h.seq < %s", query.before_seq),
        ("h.entity > %s", query.after),
        # A range instead of LIKE, because names may contain % and _.
        ("h.entity >= %s", prefix or None),
        ("h.entity < %s", prefix + "\U0010ffff" if prefix else None),
        (dialect.contains.format("h.head"), query.head_contains or None),
        (dialect.contains.format(_BODY), query.body_contains or None),
    ]
    used = [(text, value) for text, value in conditions if value is not None]
    texts = [text for text, _ in used] + [_IS_FAILED] * (query.state in FAILED_STATES)
    return " and ".join(texts) or "true", [value for _, value in used]


def select_entries(dialect: QueryDialect, where: str, order: str) -> str:
    """Return the statement that reads a page of entries.

    The previous hash is joined, because the log stores only the own hash of each entry.
    """
    entity = dialect.read_text.format("l.entity")
    return (
        f"select l.seq, {entity}, l.version, p.hash, l.hash, l.header, l.body, l.digest "  # noqa: S608
        "from {log} l left join {log} p on p.entity = l.entity and p.version = l.version - 1 "
        f"where {where} order by l.{order} limit {PAGE}"
    )


def row_to_head(row: Sequence[Any]) -> Head:
    """Return the head in a row of its columns; the body may be left out."""
    entity, version, own_hash, head, *index, seq = row[:11]
    return Head(entity, version, own_hash, head, HeadIndex(*index), seq, *row[11:])


def row_to_entry(row: tuple[Any, ...]) -> Entry:
    """Return the entry in a row of `select_entries`."""
    seq, entity, version, prev, own_hash, header, body, stored_digest = row
    # The digest is stored only once the body is pruned.
    if body is not None and stored_digest is not None:
        raise StoreError(f"entry {seq} ({entity}) was altered: it has a body and the digest of a pruned one")
    return Entry(
        seq=seq,
        entity=entity,
        version=version,
        prev=prev or NOWHERE,
        hash=own_hash,
        header=header,
        body=body,
        body_digest=stored_digest,
    )
