"""Parses the three forms of an HTTP date (RFC 9110 §5.6.7) without importing anything.

    Sun, 06 Nov 1994 08:49:37 GMT     the current form
    Sunday, 06-Nov-94 08:49:37 GMT    obsolete; two digits of year
    Sun Nov  6 08:49:37 1994          obsolete; no zone, meant as UTC

`email.utils` parses them too, but its first import during a failure can fail itself (for example
without free file descriptors), and it accepts dates in almost any text. A numeric zone is also
accepted, since servers do send `+0000`.
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
    """Return the POSIX time that `text` names, or None if it is not an HTTP date.

    `now` decides the century of a two-digit year: more than fifty years ahead means the past.
    """
    parts = text.replace(",", " ", 1).split()
    # The obsolete RFC 850 form joins day, month and year with hyphens.
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
    date, time, offset = _parse_date(year, month, day, now), _parse_clock(clock), _parse_offset(zone)
    if date is None or time is None or offset is None:
        return None
    return float(date + time - offset)


def _parse_date(year: str, month: str, day: str, now: float) -> int | None:
    y, m, d = _parse_digits(year, 4), _MONTHS.get(month.lower()), _parse_digits(day, 2)
    if y is None or m is None or d is None:
        return None
    if len(year) == 2:
        y += 2000
        if _midnight_posix(y, m, d) > now + 50 * _YEAR:
            y -= 100
    if not 1 <= d <= _DAYS_IN[m] + (m == 2 and _is_leap_year(y)):
        return None
    return _midnight_posix(y, m, d)


def _midnight_posix(year: int, month: int, day: int) -> int:
    before = year - 1
    # 477 leap days lie before 1970.
    leap_days = before // 4 - before // 100 + before // 400 - 477
    after_february = month > 2 and _is_leap_year(year)
    days = 365 * (year - 1970) + leap_days + _DAYS_BEFORE[month] + after_february + day - 1
    return 86400 * days


def _is_leap_year(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _parse_clock(text: str) -> int | None:
    parts = text.split(":")
    if len(parts) != 3:
        return None
    h, m, s = (_parse_digits(part, 2) for part in parts)
    # 60 is a leap second.
    if h is None or m is None or s is None or h > 23 or m > 59 or s > 60:
        return None
    return 3600 * h + 60 * m + s


def _parse_offset(zone: str) -> int | None:
    if zone.upper() in _UTC:
        return 0
    hours, minutes = _parse_digits(zone[1:3], 2), _parse_digits(zone[3:], 2)
    if zone[0] not in "+-" or len(zone) != 5 or hours is None or minutes is None:
        return None
    seconds = 3600 * hours + 60 * minutes
    return -seconds if zone[0] == "-" else seconds


def _parse_digits(text: str, max_length: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_length else None
