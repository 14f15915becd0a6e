"""Unique identifiers: UUIDs that sort by time, and the nonces of log entries.

Random bits are read from the system in batches, because the system call costs more than everything else here.
"""

from __future__ import annotations

import os
from collections import deque
from struct import Struct

_BATCH = Struct("<256Q")
# A deque, because `pop` and `extend` are atomic: threads share it without a lock.
_drawn: deque[int] = deque()
_VARIANT = 1 << 63  # the two variant bits of RFC 9562 before the random ones


def _draw_bits() -> int:
    """Return 64 random bits."""
    try:
        return _drawn.pop()
    except IndexError:
        _drawn.extend(_BATCH.unpack(os.urandom(_BATCH.size)))
        return int.from_bytes(os.urandom(8), "little")


def new_nonce() -> int:
    """Return 48 random bits."""
    return _draw_bits() >> 16


def new_uuid7(now: float) -> str:
    """Return a new UUIDv7 (RFC 9562) whose time is `now`, in POSIX seconds.

    The twelve bits after the milliseconds are fractions of one (RFC 9562, section 6.2, method 3), so that ids
    sort by time even within one millisecond.
    """
    ticks = int(now * 4_096_000)
    ms, random_bits = f"{ticks >> 12:012x}", f"{_VARIANT | _draw_bits() >> 2:016x}"
    return f"{ms[-12:-4]}-{ms[-4:]}-7{ticks & 0xFFF:03x}-{random_bits[:4]}-{random_bits[4:]}"


# A forked child would otherwise draw the same bits as its parent.
os.register_at_fork(after_in_child=_drawn.clear)
