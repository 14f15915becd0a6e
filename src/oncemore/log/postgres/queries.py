"""Lists of heads in PostgreSQL, and heads put right; `sqlite_list` says what such a list costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.log.postgres.connection import check_text
from oncemore.log.store import check_next

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.log.postgres.connection import Connection, Rows
    from oncemore.log.store import Entry, Head, Query

HEAD = ("entity", "version", "hash", "head", "kind", "state", "due", "step", "worker", "dataset", "seq")
#: How many of the last entries are looked at before all heads are.
LATELY = 20_000

_COLUMNS = ", ".join(f"h.{name}" for name in HEAD)
_BODY = "(select body from {schema}.log own where own.entity = h.entity and own.version = h.version)"


def rows(query: Query, read: Callable[..., Rows]) -> Rows:
    """Return the rows of the heads that a query asks for."""
    where, values = _where(query)
    columns = f"{_COLUMNS}, {_BODY}" if query.tells else _COLUMNS
    plain = f"select {columns} from {{schema}}.head h where {where} order by "  # noqa: S608
    if not query.newest:
        order = "h.due, h.entity" if query.after is None else "h.entity"
        return read(f"{plain} {order} limit %s", (*values, query.limit))
    ((last,),) = read("select coalesce(max(seq), 0) from {schema}.log")
    top = last if query.below is None else min(last, query.below - 1)
    floor = max(query.above, top - LATELY)
    sql = (
        f"select {columns} from {{schema}}.log l join {{schema}}.head h "  # noqa: S608
        f"on h.entity = l.entity and h.seq = l.seq where l.seq > %s and l.seq <= %s and {where} "
        "order by l.seq desc limit %s"
    )
    found = read(sql, (floor, top, *values, query.limit))
    if len(found) == query.limit or floor == query.above:
        return found
    return read(f"{plain} h.seq desc limit %s", (*values, query.limit))


def _where(query: Query) -> tuple[str, list[Any]]:
    asked: list[tuple[str, Any]] = [
        ("h.kind = %s", query.kind),
        *((f"h.{name} = %s", getattr(query, name)) for name in ("state", "step", "worker", "dataset")),
        ("h.due <= %s", query.due_by),
        ("h.seq > %s", query.above or None),
        ("h.seq < %s", query.below),
        ("h.entity > %s", query.after),
        ("h.entity >= %s", query.begins or None),
        ("h.entity < %s", query.begins + "\U0010ffff" if query.begins else None),
        ("position(%s::bytea in h.head) > 0", query.holds or None),
        (f"position(%s::bytea in {_BODY}) > 0", query.tells or None),
    ]
    given = [(text, value) for text, value in asked if value is not None]
    check_text(*(value for _, value in given if isinstance(value, str)))
    return " and ".join(text for text, _ in given), [value for _, value in given]


def adopt(connection: Connection, schema: str, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
    """Take over entries of another log; appends wait meanwhile, so that numbers become visible in order."""
    check_text(*(entry.entity for entry in entries))
    connection.execute(f"lock table {schema}.head in exclusive mode".encode())
    names = list({entry.entity for entry in entries})
    known = f"select entity, version, hash from {schema}.head where entity = any(%s)"  # noqa: S608
    rows = connection.execute(known.encode(), (names,)).fetchall()
    check_next(entries, heads, {entity: (version, digest) for entity, version, digest in rows})
    numbers = f"select nextval('{schema}.seq') from generate_series(1, %s)"  # noqa: S608
    seqs = [seq for (seq,) in connection.execute(numbers.encode(), (len(entries),)).fetchall()]
    add = f"insert into {schema}.log values (%s, %s, %s, %s, %s, %s, %s)"  # noqa: S608
    at = {}
    with connection.cursor() as cursor:
        logged = []
        for seq, (_, entity, version, _, digest, header, body, kept) in zip(seqs, entries, strict=True):
            at[entity] = seq
            logged.append((seq, entity, version, digest, header, body, kept if body is None else None))
        cursor.executemany(add.encode(), logged)
        put = [
            (entity, version, digest, head, *by, at[entity])
            for entity, version, digest, head, by, _, _ in heads
        ]
        cursor.executemany(_put(schema).encode(), put)


def _put(schema: str) -> str:
    put = f"insert into {schema}.head({', '.join(HEAD)}) values ({', '.join(['%s'] * len(HEAD))}) "  # noqa: S608
    return (
        put
        + f"on conflict (entity) do update set {', '.join(f'{name} = excluded.{name}' for name in HEAD[1:])}"
    )


def mend(connection: Connection, schema: str, heads: Sequence[Head], upto: int) -> int:
    """Put heads in their places; appends wait meanwhile, or one of them could write on what is replaced."""
    connection.execute(f"lock table {schema}.head in exclusive mode".encode())
    later = f"select entity from {schema}.log where seq > %s"  # noqa: S608 - a checked name
    moved = {entity for (entity,) in connection.execute(later.encode(), (upto,)).fetchall()}
    found = [head for head in heads if head.entity not in moved]
    put = _put(schema)
    for entity, version, digest, head, by, seq, _ in found:
        connection.execute(put.encode(), (entity, version, digest, head, *by, seq))
    return len(found)
