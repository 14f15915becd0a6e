"""Arrays in PostgreSQL's binary format, built from elements that are already encoded."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from oncemore.log.postgres.connection import Dumper, Format

if TYPE_CHECKING:
    from collections.abc import Sequence


class PackedArray(bytes):
    """An encoded array; its class gives the type of the array (`oid`) and of its elements."""

    __slots__ = ()
    oid = element = 0


class Int4Array(PackedArray):
    """An int4[]."""

    oid, element = 1007, 23


class Int8Array(PackedArray):
    """An int8[]."""

    oid, element = 1016, 20


class Float8Array(PackedArray):
    """A float8[]."""

    oid, element = 1022, 701


class TextArray(PackedArray):
    """A text[]."""

    oid, element = 1009, 25


class ByteaArray(PackedArray):
    """A bytea[]."""

    oid, element = 1001, 17


class BoolArray(PackedArray):
    """A bool[]."""

    oid, element = 1000, 16


class PackedDumper(Dumper):
    """Psycopg dumper that sends an encoded array unchanged."""

    format = Format.BINARY

    def __init__(self, cls: type[PackedArray], context: Any = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.oid

    def dump(self, obj: PackedArray) -> bytes:
        """Return the array unchanged."""
        return obj


pack_int4 = struct.Struct(">i").pack
pack_int8 = struct.Struct(">q").pack
pack_float8 = struct.Struct(">d").pack


def pack_array(kind: type[PackedArray], items: Sequence[bytes | None]) -> PackedArray:
    """Return an array of encoded elements; None is NULL."""
    if not items:
        return kind(EMPTY_ARRAY[kind])
    # Dimensions, NULL flag, element type; then length and lower bound of the one dimension.
    parts = [ARRAY_HEADER[kind], pack_int4(len(items)), LOWER_BOUND]
    for item in items:
        if item is None:
            parts.append(NULL)
        else:
            parts += (pack_int4(len(item)), item)
    return kind(b"".join(parts))


#: The length -1 means NULL; array indexes start with 1.
NULL, LOWER_BOUND = b"\xff\xff\xff\xff", pack_int4(1)
KINDS: tuple[type[PackedArray], ...] = (Int4Array, Int8Array, Float8Array, TextArray, ByteaArray, BoolArray)
EMPTY_ARRAY = {kind: struct.pack(">iii", 0, 0, kind.element) for kind in KINDS}
ARRAY_HEADER = {kind: struct.pack(">iii", 1, 1, kind.element) for kind in KINDS}


#: Bytes of an encoded array before its first element.
HEADER_BYTES = 20


def unpack_int8_array(value: bytes) -> tuple[int, ...]:
    """Decode an int8[] without NULLs."""
    # Each element is 4 bytes of length and 8 bytes of value; an empty array has no dimension at all.
    count = (len(value) - HEADER_BYTES) // 12 if len(value) > HEADER_BYTES else 0
    return struct.unpack(">" + "4xq" * count, value[HEADER_BYTES:] if count else b"")
