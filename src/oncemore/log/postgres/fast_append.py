"""The fast path of an append in PostgreSQL: batches of one write each, with at most one common guard.

Almost all groups are like that: claims, guarded by the switches of the log, and outcomes, without a guard.
For them the server has two functions (`postgres_3.sql`) that compare and set and do nothing else, one for a
single batch and one for a group: they cost about half of `append`. They return the sequence numbers of the
stored batches and nothing else; a batch without a number is sent again by `append`, in a transaction of its
own, and that call returns the conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.postgres.arrays import (
    BoolArray,
    ByteaArray,
    Float8Array,
    Int8Array,
    TextArray,
    pack_array,
    pack_float8,
    pack_int8,
    unpack_int8_array,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.log.store import Batch

    Statement = tuple[bytes, list[bytes | None]]

PUT_ONE, PUT_MANY = b"oncemore_put_one", b"oncemore_put_many"
# The order of these types is that of the parameters of both server functions.
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
TYPES = {PUT_ONE: (*_WRITE, *_GUARD), PUT_MANY: (*(f"{name}[]" for name in _WRITE), "bool[]", *_GUARD)}
TRUE, FALSE = b"\1", b"\0"


def prepare_statements(schema: str) -> Iterable[bytes]:
    """Return the statements that prepare both calls."""
    for name, types in TYPES.items():
        parameters = ",".join(f"${number}" for number in range(1, len(types) + 1))
        function = f"{schema}.{name.decode().removeprefix('oncemore_')}"
        yield f"prepare {name.decode()}({','.join(types)}) as select {function}({parameters})".encode()


def choose_statement(batches: Sequence[Batch]) -> Statement | None:
    """Return the fast statement for these batches and its values; None if they need `append`."""
    if len(batches) == 1:
        return _single_write(batches[0])
    guard: tuple[str, int] | None = None
    for batch in batches:
        if len(batch.writes) != 1 or len(batch.guards) > 1 or batch.joined_write is not None:
            return None
        for own_guard in batch.guards.items():
            # The function takes one guard for the whole group.
            if (guard := guard or own_guard) != own_guard:
                return None
    return _write_rows(batches, guard)


def _single_write(batch: Batch) -> Statement | None:
    if len(batch.writes) != 1 or len(batch.guards) > 1 or batch.joined_write is not None:
        return None
    entity, expect, header, body, own_hash, head, (kind, state, due, step, worker, dataset) = batch.writes[0]
    values = [
        entity.encode(), pack_int8(expect), own_hash, header, body, head, kind.encode(), state.encode(),
        None if due is None else pack_float8(due), step.encode(), worker.encode(), dataset.encode(),
    ]  # fmt: skip
    # At most one guard; without one, both of its parameters are NULL.
    for guard, version in batch.guards.items():
        return PUT_ONE, [*values, guard.encode(), pack_int8(version), TRUE if batch.sync else FALSE]
    return PUT_ONE, [*values, None, None, TRUE if batch.sync else FALSE]


def _write_rows(batches: Sequence[Batch], guard: tuple[str, int] | None) -> Statement:
    writes = [batch.writes[0] for batch in batches]
    indexes = [write.by for write in writes]
    return PUT_MANY, [
        pack_array(TextArray, [write.entity.encode() for write in writes]),
        pack_array(Int8Array, [pack_int8(write.expect) for write in writes]),
        pack_array(ByteaArray, [write.hash for write in writes]),
        pack_array(ByteaArray, [write.header for write in writes]),
        pack_array(ByteaArray, [write.body for write in writes]),
        pack_array(ByteaArray, [write.head for write in writes]),
        pack_array(TextArray, [index.kind.encode() for index in indexes]),
        pack_array(TextArray, [index.state.encode() for index in indexes]),
        pack_array(Float8Array, [None if index.due is None else pack_float8(index.due) for index in indexes]),
        pack_array(TextArray, [index.step.encode() for index in indexes]),
        pack_array(TextArray, [index.worker.encode() for index in indexes]),
        pack_array(TextArray, [index.dataset.encode() for index in indexes]),
        pack_array(BoolArray, [TRUE if batch.guards else FALSE for batch in batches]),
        None if guard is None else guard[0].encode(),
        None if guard is None else pack_int8(guard[1]),
        # One synced batch makes the whole commit synced.
        TRUE if any(batch.sync for batch in batches) else FALSE,
    ]


def read_sequence_numbers(result: PGresult) -> tuple[int, ...]:
    """Return the sequence number of each batch; 0: it was not stored."""
    value = result.get_value(0, 0)
    if value is None:
        return (0,)
    # A single bigint has 8 bytes, an array more.
    return (int.from_bytes(value, "big"),) if len(value) == 8 else unpack_int8_array(value)
