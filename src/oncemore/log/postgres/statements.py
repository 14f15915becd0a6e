"""The prepared statements of an append in PostgreSQL: their arguments, and the rows that they return.

There are three functions in the server. `append` stores any group of batches and returns their conflicts.
Almost all groups have batches of one write each, with at most one common guard: claims, guarded by the
switches of the log, and outcomes, without a guard. For them there are `put_one`, for a single batch, and
`put_many` (`schema.sql`), which compare and set and do nothing else. They return the sequence numbers of
the stored batches; a batch without a number is sent again by `append`, in a transaction of its own, and that
call returns the conflict.

`put_one` is worth its text: against `append`, a claim costs half of the processor time of client and server
(a factor of 2.1), an outcome 1.3 times less, both appends of a step together 1.7; in groups of 64 batches 1.6
to 2.0.

Values are packed here in the server's binary format; the driver's own way costs up to three times the
processor time of the call.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from oncemore.log.database.queries import row_to_head
from oncemore.log.store import Conflict, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.log.store import Batch, EntryWrite, Head

    Statement = tuple[bytes, list[bytes | None]]

APPEND, PUT_ONE, PUT_MANY = b"oncemore_append", b"oncemore_put_one", b"oncemore_put_many"
# The order of these types is that of the parameters of the server's functions; a group has arrays of them.
_WRITE = ("text", "bigint", *["bytea"] * 4, "text", "text", "float8", "text", "text", "text")
_WRITES = tuple(f"{name}[]" for name in _WRITE)
_GUARD = ("text", "bigint", "bool")
TYPES = {PUT_ONE: (*_WRITE, *_GUARD), PUT_MANY: (*_WRITES, "bool[]", *_GUARD)}
APPEND_TYPES = ("int", "int[]", *_WRITES, "int[]", "text[]", "bigint[]", "bool")
TRUE, FALSE = b"\1", b"\0"

# Encoding

#: The types of elements of arrays, by their object ids in the server.
BOOL, BYTEA, INT8, INT4, TEXT, FLOAT8 = 16, 17, 20, 23, 25, 701
#: Dimensions, NULL flag, element type, and then length and lower bound of the one dimension.
_ARRAY_HEADER = struct.Struct(">5i")
_NULL = b"\xff\xff\xff\xff"  # the length -1
_pack_int4, _pack_int8 = struct.Struct(">i").pack, struct.Struct(">q").pack
_pack_float8 = struct.Struct(">d").pack


def pack_array(element: int, items: Sequence[bytes | None]) -> bytes:
    """Return an array of encoded elements in the server's binary format; None is NULL."""
    if not items:
        return struct.pack(">3i", 0, 0, element)
    parts = [_ARRAY_HEADER.pack(1, 1, element, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_pack_int4(len(item)), item)
    return b"".join(parts)


def unpack_int8_array(value: bytes) -> tuple[int, ...]:
    """Decode an int8[] without NULLs."""
    # Each element is 4 bytes of length and 8 bytes of value; an empty array has no dimension at all.
    size = _ARRAY_HEADER.size
    count = (len(value) - size) // 12 if len(value) > size else 0
    return struct.unpack(">" + "4xq" * count, value[size:] if count else b"")


def _pack_due(due: float | None) -> bytes | None:
    return None if due is None else _pack_float8(due)


def _pack_writes(writes: Sequence[EntryWrite]) -> list[bytes]:
    """Return the columns of writes as arrays, in the order of `_WRITE`."""
    indexes = [write.by for write in writes]
    return [
        pack_array(TEXT, [write.entity.encode() for write in writes]),
        pack_array(INT8, [_pack_int8(write.expect) for write in writes]),
        pack_array(BYTEA, [write.hash for write in writes]),
        pack_array(BYTEA, [write.header for write in writes]),
        pack_array(BYTEA, [write.body for write in writes]),
        pack_array(BYTEA, [write.head for write in writes]),
        pack_array(TEXT, [index.kind.encode() for index in indexes]),
        pack_array(TEXT, [index.state.encode() for index in indexes]),
        pack_array(FLOAT8, [_pack_due(index.due) for index in indexes]),
        pack_array(TEXT, [index.step.encode() for index in indexes]),
        pack_array(TEXT, [index.worker.encode() for index in indexes]),
        pack_array(TEXT, [index.dataset.encode() for index in indexes]),
    ]


def append_arguments(batches: Sequence[Batch]) -> list[bytes | None]:
    """Return the arguments of `append`: parallel arrays with an element for each write or guard."""
    numbered = list(enumerate(batches, 1))
    guards = [(number, *guard) for number, batch in numbered for guard in batch.guards.items()]
    return [
        _pack_int4(len(batches)),
        pack_array(INT4, [_pack_int4(number) for number, batch in numbered for _ in batch.writes]),
        *_pack_writes([write for batch in batches for write in batch.writes]),
        pack_array(INT4, [_pack_int4(number) for number, _, _ in guards]),
        pack_array(TEXT, [entity.encode() for _, entity, _ in guards]),
        pack_array(INT8, [_pack_int8(version) for _, _, version in guards]),
        TRUE if any(batch.sync for batch in batches) else FALSE,
    ]


def prepare_append(schema: str) -> bytes:
    """Return the statement that prepares the call of `append`."""
    return _prepare_call(APPEND, APPEND_TYPES, f"* from {schema}.append")


def prepare_statements(schema: str) -> Iterable[bytes]:
    """Return the statements that prepare the calls of `put_one` and `put_many`."""
    for name, types in TYPES.items():
        yield _prepare_call(name, types, f"{schema}.{name.decode().removeprefix('oncemore_')}")


def _prepare_call(name: bytes, types: Sequence[str], function: str) -> bytes:
    parameters = ",".join(f"${number}" for number in range(1, len(types) + 1))
    return f"prepare {name.decode()}({','.join(types)}) as select {function}({parameters})".encode()


def choose_statement(batches: Sequence[Batch]) -> Statement | None:
    """Return the call of `put_one` or `put_many` for these batches; None if they need `append`."""
    guard: tuple[str, int] | None = None
    synced = FALSE  # one synced batch makes the whole commit synced
    for batch in batches:
        if len(batch.writes) != 1 or len(batch.guards) > 1 or batch.joined_write is not None:
            return None
        for own_guard in batch.guards.items():
            # The function takes one guard for the whole group.
            if (guard := guard or own_guard) != own_guard:
                return None
        if batch.sync:
            synced = TRUE
    # Without a guard, both of its parameters are NULL.
    guard_values = (None, None) if guard is None else (guard[0].encode(), _pack_int8(guard[1]))
    if len(batches) > 1:
        guarded = pack_array(BOOL, [TRUE if batch.guards else FALSE for batch in batches])
        return PUT_MANY, [
            *_pack_writes([batch.writes[0] for batch in batches]),
            guarded,
            *guard_values,
            synced,
        ]
    entity, expect, header, body, own_hash, head, index = batches[0].writes[0]
    kind, state, due, step, worker, dataset = index
    return PUT_ONE, [
        entity.encode(), _pack_int8(expect), own_hash, header, body, head, kind.encode(), state.encode(),
        _pack_due(due), step.encode(), worker.encode(), dataset.encode(), *guard_values,
        synced,
    ]  # fmt: skip


# Decoding


def read_sequence_numbers(result: PGresult) -> tuple[int, ...]:
    """Return the sequence number of each batch; 0: it was not stored."""
    value = result.get_value(0, 0)
    if value is None:
        return (0,)
    # A single bigint has 8 bytes, an array more.
    return (int.from_bytes(value, "big"),) if len(value) == 8 else unpack_int8_array(value)


def _decode_int(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _decode_due(value: bytes | None) -> float | None:
    return None if value is None else float(struct.unpack(">d", value)[0])


def _keep_bytes(value: bytes | None) -> bytes | None:
    return value


#: Decoders of the columns of a head, from the entity to the body.
_DECODERS: tuple[Callable[[Any], Any], ...] = (
    *(bytes.decode, _decode_int, _keep_bytes, _keep_bytes, bytes.decode, bytes.decode, _decode_due),
    *(bytes.decode, bytes.decode, bytes.decode, _decode_int, _keep_bytes),
)


def read_head(result: PGresult, row: int, first: int = 0) -> Head:
    """Return the head and body in a row of a binary result, from the column `first` on."""
    values = [result.get_value(row, column) for column in range(first, first + len(_DECODERS))]
    return row_to_head([decode(value) for decode, value in zip(_DECODERS, values, strict=True)])


def read_answer(result: PGresult, row: int) -> Stored | Conflict:
    """Return the reply of `append` for one batch: the conflict with its head, or the sequence numbers."""
    conflicting = result.get_value(row, 0)
    if conflicting is None:
        seqs = result.get_value(row, 1)
        assert seqs is not None
        return Stored(unpack_int8_array(seqs))
    if result.get_value(row, 2) is None:
        return Conflict(conflicting.decode(), None)
    return Conflict(conflicting.decode(), read_head(result, row, 2))
