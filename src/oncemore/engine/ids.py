"""Names for runs and workers that sort by the time they were made (UUID version 7, RFC 9562)."""

from __future__ import annotations

from os import urandom


def uuid7(now: float) -> str:
    """Return a new UUIDv7 whose time is `now`, in POSIX seconds."""
    chance = int.from_bytes(urandom(10), "big")
    number = (int(now * 1000) & (1 << 48) - 1) << 80 | chance
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
