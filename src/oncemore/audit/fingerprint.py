"""Gives the same fault at two times one fingerprint, and another fault another.

The fingerprint hashes the failure's code, the provider, the step, and the message without what changes
from one occurrence to the next. What is taken for changing: times and dates, UUIDs, hex strings,
network addresses with their ports, identifiers that mix letters and digits, and numbers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern

    from oncemore.policy.model import Failure

#: How much of a message counts.
MOST_CHARACTERS = 2000

_VOLATILE = (
    # An HTTP or mail date, whose names of days and months change too.
    r"\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+\d{1,2}[\s-][a-z]{3}[\s-]\d{2,4}(?:\s+[\d:]+)?(?:\s+gmt|\s+utc)?",
    r"\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\s+[a-z]{3}\s+\d{1,2}\s+[\d:]+\s+\d{4}",
    r"\b\d{4}-\d{2}-\d{2}(?:[t ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)?(?:z|[+-]\d{2}:?\d{2})?",
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    r"\[?[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}\]?(?::\d+)?",  # IPv6, and hh:mm:ss
    r"\b0x[0-9a-f]+\b",
    r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])[\w-]{8,}",  # ids: letters and digits in one word
    r"\b[0-9a-f]{16,}\b",
    r"[+-]?\d+(?:[.,:]\d+)*",  # numbers, IPv4 addresses, ports, times of day
)

_compiled: list[Pattern[str]] = []


def fingerprint(failure: Failure, message: str, provider: str = "", step: str = "") -> str:
    """Return 32 hex digits that are equal for equal faults, whenever and to whomever they happen."""
    # Imported here: only a recorded failure needs them, not the one that is merely retried.
    import hashlib

    parts = (failure.code, provider, step, steady(message))
    # Lengths keep the parts apart whatever characters they hold.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def steady(message: str) -> str:
    """Return what stays of a message: lower case, single spaces, a `#` for each changing part."""
    text = " ".join(message[:MOST_CHARACTERS].lower().split())
    for pattern in _compiled or _compile():
        text = pattern.sub("#", text)
    return text


def _compile() -> list[Pattern[str]]:
    import re

    _compiled[:] = [re.compile(pattern, re.ASCII) for pattern in _VOLATILE]
    return _compiled
