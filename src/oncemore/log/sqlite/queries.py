"""Lists of heads in a SQLite file, and heads put right.

What is due has an index. Everything else that people ask for has none, because each would cost every write:
a list of the newest walks the end of the log backwards, where it most often finds all it needs, and only
then reads every head (a million of them in about a second). Of those the numbers alone are sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.log.store import check_next

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from oncemore.log.store import Entry, Head, Query

    Read = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]

HEAD = ("entity", "version", "hash", "head", "kind", "state", "due", "step", "worker", "dataset", "seq")
#: How many of the last entries are looked at before all heads are.
LATELY = 20_000

_COLUMNS = ", ".join(f"head.{name}" for name in HEAD)
_BODY = "(SELECT body FROM log own WHERE own.seq=head.seq)"


def rows(query: Query, read: Read) -> list[tuple[Any, ...]]:
    """Return the rows of the heads that a query asks for."""
    where, values = _where(query)
    body = _BODY if query.tells else "NULL"
    if not query.newest:
        order = "due, entity" if query.due_by is not None else "due IS NULL, due, entity"
        if query.after is not None:
            order = "entity"
        sql = f"SELECT {_COLUMNS}, {body} FROM head WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608
        return read(sql, (*values, query.limit))
    ((last,),) = read("SELECT coalesce(max(seq), 0) FROM log", ())
    top = last if query.below is None else min(last, query.below - 1)
    floor = max(query.above, top - LATELY)
    sql = (
        f"SELECT {_COLUMNS}, {body} FROM log CROSS JOIN head ON head.entity=log.entity AND head.seq=log.seq "  # noqa: S608
        f"WHERE log.seq>? AND log.seq<=? AND {where} ORDER BY log.seq DESC LIMIT ?"
    )
    found = read(sql, (floor, top, *values, query.limit))
    if len(found) == query.limit or floor == query.above:
        return found
    sql = (
        f"SELECT {_COLUMNS}, {body} FROM head WHERE id IN "  # noqa: S608
        f"(SELECT id FROM head WHERE {where} ORDER BY seq DESC LIMIT ?) ORDER BY seq DESC"
    )
    return read(sql, (*values, query.limit))


def _where(query: Query) -> tuple[str, list[Any]]:
    where, values = ["kind=?"], [query.kind]
    for column in ("state", "step", "worker", "dataset"):
        wanted = getattr(query, column)
        if wanted is not None:
            where.append(f"{column}=?")
            values.append(wanted)
    asked: list[tuple[str, Any]] = [
        ("due IS NOT NULL AND due<=?", query.due_by),  # which the index has: no more are read than asked for
        ("head.seq>?", query.above or None),
        ("head.seq<?", query.below),
        ("head.entity>?", query.after),
        ("head.entity>=?", query.begins or None),
        ("head.entity<?", query.begins + "\U0010ffff" if query.begins else None),
        ("instr(head, ?)", query.holds or None),
        (f"instr({_BODY}, ?)", query.tells or None),
    ]
    for text, value in asked:
        if value is not None:
            where.append(text)
            values.append(value)
    return " AND ".join(where), values


_PUT = (
    f"INSERT INTO head({', '.join(HEAD)}) VALUES ({', '.join('?' * len(HEAD))}) "  # noqa: S608
    f"ON CONFLICT(entity) DO UPDATE SET {', '.join(f'{name}=excluded.{name}' for name in HEAD[1:])}"
)


def adopt(connection: apsw.Connection, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
    """Take over entries of another log, in one transaction."""
    add = "INSERT INTO log VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
    with connection:
        standing, at = {}, {}
        for entity in {entry.entity for entry in entries}:
            found = connection.execute("SELECT version, hash, seq FROM head WHERE entity=?", (entity,))
            for version, digest, seq in found:
                standing[entity], at[entity] = (version, digest), seq
        check_next(entries, heads, standing)
        for _, entity, version, _, digest, header, body, body_digest in entries:
            kept = body_digest if body is None else None
            connection.execute(add, (entity, version, at.get(entity, 0), digest, header, body, kept))
            at[entity] = connection.last_insert_rowid()
        for entity, version, digest, head, by, _, _ in heads:
            connection.execute(_PUT, (entity, version, digest, head, *by, at[entity]))


def mend(connection: apsw.Connection, heads: Sequence[Head], upto: int) -> int:
    """Put heads in their places, in one transaction; those that others have moved on since are left alone."""
    with connection:
        later = {entity for (entity,) in connection.execute("SELECT entity FROM log WHERE seq>?", (upto,))}
        found = [head for head in heads if head.entity not in later]
        for entity, version, digest, head, by, seq, _ in found:
            connection.execute(_PUT, (entity, version, digest, head, *by, seq))
    return len(found)
