"""Names and numbers that nobody else has: UUIDs that sort by time, and the nonces of entries.

Chance is drawn from the system in advance, many at once: asking for it costs more than everything else
here. A forked child draws its own.
"""

from __future__ import annotations

import os
from collections import deque
from struct import Struct

_MANY = Struct("<256Q")
_drawn: deque[int] = deque()
_VARIANT = 1 << 63  # the first two bits of the chance in a UUID, as the RFC has it


def _draw_bits() -> int:
    """Return 64 bits of chance."""
    try:
        return _drawn.pop()
    except IndexError:
        _drawn.extend(_MANY.unpack(os.urandom(_MANY.size)))
        return int.from_bytes(os.urandom(8), "little")


def new_nonce() -> int:
    """Return 48 bits of chance."""
    return _draw_bits() >> 16


def new_uuid7(now: float) -> str:
    """Return a new UUIDv7 (RFC 9562) whose time is `now`, in POSIX seconds.

    Its first twelve bits after the milliseconds are parts of one (method 3 of the RFC's section 6.2), so that
    ids sort by time also where several are made in one millisecond.
    """
    ticks = int(now * 4_096_000)
    ms, chance = f"{ticks >> 12:012x}", f"{_VARIANT | _draw_bits() >> 2:016x}"
    return f"{ms[-12:-4]}-{ms[-4:]}-7{ticks & 0xFFF:03x}-{chance[:4]}-{chance[4:]}"


os.register_at_fork(after_in_child=_drawn.clear)
