"""Names and numbers that nobody else has: UUIDs that sort by time, and the nonces of entries.

Chance is drawn from the system in advance, many at once: asking for it costs more than everything else
here. A forked child draws its own.
"""

from __future__ import annotations

import os
from collections import deque

_MANY, _BYTES = 256, 6
_drawn: deque[int] = deque()


def nonce() -> int:
    """Return 48 bits of chance."""
    try:
        return _drawn.pop()
    except IndexError:
        data = os.urandom(_MANY * _BYTES)
        _drawn.extend(int.from_bytes(data[at : at + _BYTES], "big") for at in range(0, len(data), _BYTES))
        return int.from_bytes(os.urandom(_BYTES), "big")


def uuid7(now: float) -> str:
    """Return a new UUIDv7 (RFC 9562) whose time is `now`, in POSIX seconds.

    Its first twelve bits after the milliseconds are parts of one (method 3 of the RFC's section 6.2), so that
    ids sort by time also where several are made in one millisecond.
    """
    ticks = int(now * 4_096_000)
    time, one, two = f"{(ticks >> 12) & 0xFFFFFFFFFFFF:012x}", nonce(), nonce()
    return f"{time[:8]}-{time[8:]}-7{ticks & 0xFFF:03x}-{0x8000 | one & 0x3FFF:04x}-{two:012x}"


os.register_at_fork(after_in_child=_drawn.clear)
