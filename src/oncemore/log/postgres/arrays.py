"""Arrays in PostgreSQL's binary form, made of elements that are in it already."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from oncemore.log.postgres.connection import Dumper, Format

if TYPE_CHECKING:
    from collections.abc import Sequence


class Packed(bytes):
    """An array in the server's binary form."""

    __slots__ = ()
    oid = element = 0


class Ints(Packed):
    """An int4[]."""

    oid, element = 1007, 23


class Longs(Packed):
    """An int8[]."""

    oid, element = 1016, 20


class Floats(Packed):
    """A float8[]."""

    oid, element = 1022, 701


class Texts(Packed):
    """A text[]."""

    oid, element = 1009, 25


class Blobs(Packed):
    """A bytea[]."""

    oid, element = 1001, 17


class Flags(Packed):
    """A bool[]."""

    oid, element = 1000, 16


class PackedDumper(Dumper):
    """Hands the bytes over as they are."""

    format = Format.BINARY

    def __init__(self, cls: type[Packed], context: Any = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.oid

    def dump(self, obj: Packed) -> bytes:
        """Return them."""
        return obj


length = struct.Struct(">i").pack
long = struct.Struct(">q").pack
real = struct.Struct(">d").pack


def pack(kind: type[Packed], items: Sequence[bytes | None]) -> Packed:
    """Return an array of elements that are in binary form already; None is NULL."""
    if not items:
        return kind(EMPTY[kind])
    parts = [FEW[kind], length(len(items)), FIRST]
    for item in items:
        if item is None:
            parts.append(NULL)
        else:
            parts += (length(len(item)), item)
    return kind(b"".join(parts))


NULL, FIRST = b"\xff\xff\xff\xff", length(1)
KINDS: tuple[type[Packed], ...] = (Ints, Longs, Floats, Texts, Blobs, Flags)
EMPTY = {kind: struct.pack(">iii", 0, 0, kind.element) for kind in KINDS}
FEW = {kind: struct.pack(">iii", 1, 1, kind.element) for kind in KINDS}


#: How long the binary form of an array is before its first element.
ARRAY = 20


def longs_of(value: bytes) -> tuple[int, ...]:
    """Read an int8[] that has no NULL in it."""
    count = (len(value) - ARRAY) // 12 if len(value) > ARRAY else 0
    return struct.unpack(">" + "4xq" * count, value[ARRAY:] if count else b"")
