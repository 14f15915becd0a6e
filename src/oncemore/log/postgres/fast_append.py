"""The short way into PostgreSQL: batches of one write each, of which some have the same one guard.

That is what nearly all groups are: claims, which are guarded by the switches of the log, and outcomes, which
are not. For them the server has two functions (`postgres_3.sql`) that compare and set and do no more, one for
a batch alone and one for a group as a set: they cost it about half of what `append` does. They answer with
the numbers of what is stored, and nothing else; what has none is sent again by `append`, in a transaction of
its own, which says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.postgres.arrays import Blobs, Flags, Floats, Longs, Texts, long, longs_of, pack, real

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.log.store import Batch

    Way = tuple[bytes, list[bytes | None]]

ONE, MANY = b"oncemore_put_one", b"oncemore_put_many"
_WRITE = (
    "text",
    "bigint",
    "bytea",
    "bytea",
    "bytea",
    "bytea",
    "text",
    "text",
    "float8",
    "text",
    "text",
    "text",
)
_GUARD = ("text", "bigint", "bool")
TYPES = {ONE: (*_WRITE, *_GUARD), MANY: (*(f"{name}[]" for name in _WRITE), "bool[]", *_GUARD)}
YES, NO = b"\1", b"\0"


def prepared(schema: str) -> Iterable[bytes]:
    """Return the statements that prepare both."""
    for name, types in TYPES.items():
        holes = ",".join(f"${at}" for at in range(1, len(types) + 1))
        called = f"{schema}.{name.decode().removeprefix('oncemore_')}"
        yield f"prepare {name.decode()}({','.join(types)}) as select {called}({holes})".encode()


def way(batches: Sequence[Batch]) -> Way | None:
    """Return the statement that stores batches and its values; None if there is no short way for them."""
    if len(batches) == 1:
        return _one(batches[0])
    guard: tuple[str, int] | None = None
    for batch in batches:
        if len(batch.writes) != 1 or len(batch.guards) > 1 or batch.also is not None:
            return None
        for mine in batch.guards.items():
            if (guard := guard or mine) != mine:
                return None
    return _many(batches, guard)


def _one(batch: Batch) -> Way | None:
    if len(batch.writes) != 1 or len(batch.guards) > 1 or batch.also is not None:
        return None
    entity, expect, header, body, digest, head, (kind, state, due, step, worker, dataset) = batch.writes[0]
    values = [
        entity.encode(), long(expect), digest, header, body, head, kind.encode(), state.encode(),
        None if due is None else real(due), step.encode(), worker.encode(), dataset.encode(),
    ]  # fmt: skip
    for guard, version in batch.guards.items():
        return ONE, [*values, guard.encode(), long(version), YES if batch.sync else NO]
    return ONE, [*values, None, None, YES if batch.sync else NO]


def _many(batches: Sequence[Batch], guard: tuple[str, int] | None) -> Way:
    writes = [batch.writes[0] for batch in batches]
    by = [write.by for write in writes]
    return MANY, [
        pack(Texts, [write.entity.encode() for write in writes]),
        pack(Longs, [long(write.expect) for write in writes]),
        pack(Blobs, [write.hash for write in writes]),
        pack(Blobs, [write.header for write in writes]),
        pack(Blobs, [write.body for write in writes]),
        pack(Blobs, [write.head for write in writes]),
        pack(Texts, [one.kind.encode() for one in by]),
        pack(Texts, [one.state.encode() for one in by]),
        pack(Floats, [None if one.due is None else real(one.due) for one in by]),
        pack(Texts, [one.step.encode() for one in by]),
        pack(Texts, [one.worker.encode() for one in by]),
        pack(Texts, [one.dataset.encode() for one in by]),
        pack(Flags, [YES if batch.guards else NO for batch in batches]),
        None if guard is None else guard[0].encode(),
        None if guard is None else long(guard[1]),
        YES if any(batch.sync for batch in batches) else NO,
    ]


def numbers(result: PGresult) -> tuple[int, ...]:
    """Read the numbers of what was stored; 0: it was not."""
    told = result.get_value(0, 0)
    if told is None:
        return (0,)
    return (int.from_bytes(told, "big"),) if len(told) == 8 else longs_of(told)
