"""Lists of heads in PostgreSQL; `log.sqlite.queries` tells the cost of such a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.log.postgres.connection import check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncemore.log.postgres.connection import Rows
    from oncemore.log.store import HeadQuery

HEAD_COLUMNS = (
    "entity",
    "version",
    "hash",
    "head",
    "kind",
    "state",
    "due",
    "step",
    "worker",
    "dataset",
    "seq",
)
#: Number of last entries that are searched before all heads are.
RECENT_ENTRIES = 20_000
#: Heads that are read at a time when all are.
HEAD_PAGE = 500

_COLUMNS = ", ".join(f"h.{name}" for name in HEAD_COLUMNS)
_BODY = "(select body from {schema}.log own where own.entity = h.entity and own.version = h.version)"


def read_all_heads(read: Callable[..., Rows]) -> Iterator[Sequence[Any]]:
    """Yield the rows of all heads in the order of their first entries; `read` runs a statement."""
    after = 0
    # A head has no number of its own, so the log gives the order.
    sql = (
        f"select {_COLUMNS}, l.seq from {{schema}}.log l join {{schema}}.head h on h.entity = l.entity "  # noqa: S608
        f"where l.version = 1 and l.seq > %s order by l.seq limit {HEAD_PAGE}"
    )
    while rows := read(sql, (after,)):
        yield from (row[:-1] for row in rows)
        after = rows[-1][-1]
    # Heads without a first entry are wrong, which is for the caller to find.
    yield from read(
        f"select {_COLUMNS} from {{schema}}.head h where not exists "  # noqa: S608
        "(select from {schema}.log l where l.entity = h.entity and l.version = 1)"
    )


def read_head_rows(query: HeadQuery, read: Callable[..., Rows]) -> Rows:
    """Return the rows of the heads that match a query; `read` runs a statement."""
    where, values = _build_where(query)
    columns = f"{_COLUMNS}, {_BODY}" if query.body_contains else _COLUMNS
    plain = f"select {columns} from {{schema}}.head h where {where} order by "  # noqa: S608
    if not query.newest_first:
        order = "h.due, h.entity" if query.after is None else "h.entity"
        return read(f"{plain} {order} limit %s", (*values, query.limit))
    # The end of the log first, where a list of the newest heads usually finds enough.
    ((last_seq,),) = read("select coalesce(max(seq), 0) from {schema}.log")
    top = last_seq if query.before_seq is None else min(last_seq, query.before_seq - 1)
    bottom = max(query.after_seq, top - RECENT_ENTRIES)
    sql = (
        f"select {columns} from {{schema}}.log l join {{schema}}.head h "  # noqa: S608
        f"on h.entity = l.entity and h.seq = l.seq where l.seq > %s and l.seq <= %s and {where} "
        "order by l.seq desc limit %s"
    )
    rows = read(sql, (bottom, top, *values, query.limit))
    if len(rows) == query.limit or bottom == query.after_seq:
        return rows
    return read(f"{plain} h.seq desc limit %s", (*values, query.limit))


def _build_where(query: HeadQuery) -> tuple[str, list[Any]]:
    conditions: list[tuple[str, Any]] = [
        ("h.kind = %s", query.kind or None),
        *((f"h.{name} = %s", getattr(query, name)) for name in ("state", "step", "worker", "dataset")),
        ("h.due <= %s", query.due_by),
        ("h.seq > %s", query.after_seq or None),
        ("h.seq < %s", query.before_seq),
        ("h.entity > %s", query.after),
        # A range instead of LIKE, because names may contain % and _.
        ("h.entity >= %s", query.prefix or None),
        ("h.entity < %s", query.prefix + "\U0010ffff" if query.prefix else None),
        ("position(%s::bytea in h.head) > 0", query.head_contains or None),
        (f"position(%s::bytea in {_BODY}) > 0", query.body_contains or None),
    ]
    used = [(text, value) for text, value in conditions if value is not None]
    check_text(*(value for _, value in used if isinstance(value, str)))
    return " and ".join(text for text, _ in used) or "true", [value for _, value in used]
