"""Reads the three forms of an HTTP date (RFC 9110 §5.6.7) without importing anything.

    Sun, 06 Nov 1994 08:49:37 GMT     the one in use
    Sunday, 06-Nov-94 08:49:37 GMT    obsolete; two digits of year
    Sun Nov  6 08:49:37 1994          obsolete; no zone, meant as UTC

`email.utils` reads them too, but a first import in the middle of a failure (say, out of file
descriptors) may itself fail, and its leniency finds dates in almost anything. A numeric zone is
read as well, since servers do send `+0000`.
"""

from __future__ import annotations

_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_DAYS_BEFORE = (0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_IN = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_UTC = ("GMT", "UTC", "Z")
_YEAR = 365.25 * 86400


def parse_http_date(text: str, now: float) -> float | None:
    """Return the POSIX time that `text` names, or None when it is no HTTP date.

    `now` decides the century of a two-digit year: more than fifty years ahead means the past.
    """
    parts = text.replace(",", " ", 1).split()
    if len(parts) == 4 and parts[1].count("-") == 2:
        parts[1:2] = parts[1].split("-")
    if len(parts) == 5:
        weekday, month, day, clock, year = parts
        zone = "GMT"
    elif len(parts) == 6:
        weekday, day, month, year, clock, zone = parts
    else:
        return None
    if not weekday.isalpha():
        return None
    date, time, offset = _date(year, month, day, now), _clock(clock), _offset(zone)
    if date is None or time is None or offset is None:
        return None
    return float(date + time - offset)


def _date(year: str, month: str, day: str, now: float) -> int | None:
    y, m, d = _number(year, 4), _MONTHS.get(month.lower()), _number(day, 2)
    if y is None or m is None or d is None:
        return None
    if len(year) == 2:
        y += 2000
        if _midnight(y, m, d) > now + 50 * _YEAR:
            y -= 100
    if not 1 <= d <= _DAYS_IN[m] + (m == 2 and _leap(y)):
        return None
    return _midnight(y, m, d)


def _midnight(year: int, month: int, day: int) -> int:
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400 - 477  # 477 of them before 1970
    after_february = month > 2 and _leap(year)
    days = 365 * (year - 1970) + leap_days + _DAYS_BEFORE[month] + after_february + day - 1
    return 86400 * days


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _clock(text: str) -> int | None:
    parts = text.split(":")
    if len(parts) != 3:
        return None
    h, m, s = (_number(part, 2) for part in parts)
    if h is None or m is None or s is None or h > 23 or m > 59 or s > 60:  # 60: a leap second
        return None
    return 3600 * h + 60 * m + s


def _offset(zone: str) -> int | None:
    if zone.upper() in _UTC:
        return 0
    hours, minutes = _number(zone[1:3], 2), _number(zone[3:], 2)
    if zone[0] not in "+-" or len(zone) != 5 or hours is None or minutes is None:
        return None
    seconds = 3600 * hours + 60 * minutes
    return -seconds if zone[0] == "-" else seconds


def _number(text: str, longest: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= longest else None
