"""Points in time as people type them, and where they are in a log.

2h, 30m, 7d, 90s, 1w        so long ago
2026-11-16                  the beginning of a day, here
2026-11-16T14:05[:06][Z]    a minute or a second; with Z or +01:00 elsewhere
14:05                       today
now
1795000000                  POSIX seconds
"""

from __future__ import annotations

import re
from datetime import datetime

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.store import Store

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])(?: ago)?")
_TODAY = re.compile(r"\d\d?:\d\d(?::\d\d)?")
FORMS = "2h, 7d, 14:05, 2026-11-16 or 2026-11-16T14:05:00Z"


def instant(text: str, now: float) -> float:
    """Return the POSIX time that a text names, seen from now."""
    text = text.strip()
    if text == "now":
        return now
    if ago := _AGO.fullmatch(text):
        return now - float(ago[1]) * UNITS[ago[2]]
    try:
        if _TODAY.fullmatch(text):
            day = datetime.fromtimestamp(now).astimezone().date()
            text = f"{day.isoformat()}T{text.zfill(5 if text.count(':') == 1 else 8)}"
        if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
            return float(text)
        return datetime.fromisoformat(text.replace(" ", "T", 1)).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is no time; write {FORMS}.") from None


def shown(at: float, *, day: bool = True) -> str:
    """Return a time as people read it, in their own time zone; milliseconds are told."""
    local = datetime.fromtimestamp(at).astimezone()
    return local.isoformat(sep=" ", timespec="milliseconds")[0 if day else 11 : 23]


def ago(moment: float, now: float) -> str:
    """Return how long ago a moment was, in one unit."""
    left = max(0.0, now - moment)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if left >= size:
            return f"{int(left / size)} {unit}"
    return f"{int(left)} s"


def seq_at(store: Store, at: float) -> int:
    """Return the last seq before a time: entries come in the order of time, so that it is found by halving.

    Processes that write at once may be in each other's way by a moment; a second is added for them.
    """
    from oncemore.log.entry_codec import header_of

    low, high = 0, store.changed(0, 0.0)
    while low < high:
        middle = (low + high) // 2
        entry = next(iter(store.entries(after=middle)), None)
        if entry is None or header_of(entry.header).at >= at - 1.0:
            high = middle
        else:
            low = max(middle + 1, entry.seq)
    return low
