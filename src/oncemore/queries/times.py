"""Parse and format times for operators.

2h, 30m, 7d, 90s, 1w        that long ago
2026-11-16                  the beginning of a day, in the local time zone
2026-11-16T14:05[:06][Z]    a minute or a second; local, unless Z or an offset such as +01:00 is given
14:05                       today
now
1795000000                  POSIX seconds
"""

from __future__ import annotations

import re
from datetime import datetime

from oncemore.errors import UsageError

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])(?: ago)?")
_TIME_PATTERN = re.compile(r"\d\d?:\d\d(?::\d\d)?")
ACCEPTED_FORMS = "2h, 7d, 14:05, 2026-11-16 or 2026-11-16T14:05:00Z"


def parse_instant(text: str, now: float) -> float:
    """Return the POSIX time that a text means; ages count back from `now`."""
    text = text.strip()
    if text == "now":
        return now
    if age := _AGE_PATTERN.fullmatch(text):
        return now - float(age[1]) * UNIT_SECONDS[age[2]]
    try:
        if _TIME_PATTERN.fullmatch(text):
            day = datetime.fromtimestamp(now).astimezone().date()
            # fromisoformat wants two digits for the hour: 9:05 becomes 09:05.
            text = f"{day.isoformat()}T{text.zfill(5 if text.count(':') == 1 else 8)}"
        if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
            return float(text)
        return datetime.fromisoformat(text.replace(" ", "T", 1)).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is not a time; write {ACCEPTED_FORMS}.") from None


def format_time(at: float, *, day: bool = True) -> str:
    """Return a time in the local time zone, with milliseconds, and without the day if `day` is false."""
    local = datetime.fromtimestamp(at).astimezone()
    # The text is cut before the offset: all times of one output are in the same zone.
    return local.isoformat(sep=" ", timespec="milliseconds")[0 if day else 11 : 23]


def format_age(moment: float, now: float) -> str:
    """Return the time since a moment in its largest unit, such as "3 h"."""
    age = max(0.0, now - moment)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age >= size:
            return f"{int(age / size)} {unit}"
    return f"{int(age)} s"
