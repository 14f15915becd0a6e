"""The fingerprint of a failure: equal for two occurrences of the same fault.

It hashes the failure's code, the provider, the step, and the message without its volatile parts: times and
dates, UUIDs, hex strings, network addresses with ports, identifiers that mix letters and digits, numbers.
The module imports nothing heavy: only a failure that is recorded needs more.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern

    from oncemore.policy.model import Failure

#: How much of a message enters the fingerprint.
MAX_CHARACTERS = 2000

_VOLATILE_PATTERNS = (
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


def compute_fingerprint(failure: Failure, message: str, provider: str = "", step: str = "") -> str:
    """Return 32 hex digits that are equal for equal faults."""
    # Imported here: only a recorded failure needs it, and a retried one is not recorded.
    import hashlib

    parts = (failure.code, provider, step, normalize_message(message))
    # The lengths keep the parts apart: "ab" + "c" and "a" + "bc" must differ.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def normalize_message(message: str) -> str:
    """Return the message in lower case, with single spaces and a `#` for each volatile part."""
    text = " ".join(message[:MAX_CHARACTERS].lower().split())
    for pattern in _compiled or _compile_patterns():
        text = pattern.sub("#", text)
    return text


def _compile_patterns() -> list[Pattern[str]]:
    import re

    _compiled[:] = [re.compile(pattern, re.ASCII) for pattern in _VOLATILE_PATTERNS]
    return _compiled
