"""Versions of policies, the comparison of their contents, and their dates; no I/O.

A version `retry-loop-v<major>.<minor>` is compared by its numbers. The *content* of a profile is everything
that decides: the numbers, formulas, error classes and sections, by dotted field path. Names of people, notes
and dates are not content. A changed content needs a new version (POL-7).

Dates are days in UTC. A policy is

    due for review   after `review_by`, or a quarter after `reviewed` (GOV-18)      → a warning
    past its life    `ttl_months` after `released`, 24 months if not given (VER-5)  → a warning
    expired          from the day `expires` on                                      → refused if governed
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.policy.files.fields import GOVERNED_VERSION_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncemore.policy.files import Profile

#: Days between two reviews, and the time to live of a policy.
REVIEW_DAYS, TTL_MONTHS = 92, 24
_DAY_S = 86_400.0


class ContentChange(NamedTuple):
    """A field that differs between two versions of a policy; None where a version does not have it."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.show_values()}"

    def show_values(self) -> str:
        """Return both values for a message."""
        return f"{_show_value(self.old)} → {_show_value(self.new)}"


def parse_version(version: str) -> tuple[int, int] | None:
    """Return the numbers of `retry-loop-v<major>.<minor>`; None for a version of another form."""
    if re.fullmatch(GOVERNED_VERSION_PATTERN, version) is None:
        return None
    major, _, minor = version.removeprefix("retry-loop-v").partition(".")
    return int(major), int(minor)


def is_newer_version(new: str, old: str) -> bool:
    """Return whether a version is higher than another; versions without numbers only have to differ."""
    numbers = parse_version(new), parse_version(old)
    # "2" and "10" of a file that is not governed have no order that its author has stated.
    if numbers[0] is None or numbers[1] is None:
        return new != old
    return numbers[0] > numbers[1]


def list_content(profile: Profile) -> dict[str, Any]:
    """Return everything in a profile that decides, by dotted field path."""
    fields = profile.plain()
    # The version is compared on its own, and the policies carry a copy of it.
    content = {name: fields[name] for name in ("policies", "providers", "cooldowns", "sections", "governed")}
    return {
        path: value
        for path, value in _flatten_fields(content, "")
        if path.rpartition(".")[2] not in ("version", "description")
    }


def find_content_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[ContentChange, ...]:
    """Return the fields that differ between two contents, in the order of the new one."""
    paths = dict.fromkeys((*new, *old))
    return tuple(
        ContentChange(path, old.get(path), new.get(path))
        for path in paths
        # 1 and 1.0 are the same number, true is not 1.
        if _comparable(old.get(path)) != _comparable(new.get(path))
    )


def _flatten_fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flatten_fields(inner, f"{path}.{name}" if path else str(name))
    elif value != {}:
        yield path, list(value) if isinstance(value, tuple) else value


def _comparable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return (isinstance(value, bool), value)


def _show_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)


# Dates ----------------------------------------------------------------------------------------------


def find_expiry(metadata: Mapping[str, Any]) -> float:
    """Return when a policy expires, in POSIX seconds; infinity if it does not."""
    return _parse_day(metadata["expires"]) if "expires" in metadata else float("inf")


def describe_dates(metadata: Mapping[str, Any], now: float) -> tuple[str, ...]:
    """Return a note for each overdue date of a policy: its review, its time to live, its expiry."""
    notes = []
    review = find_review_day(metadata)
    # The day itself is still in time.
    if review and now >= _parse_day(review) + _DAY_S:
        notes.append(f"its review is overdue since {review} (review_by, reviewed)")
    sunset = find_sunset_day(metadata)
    if sunset and now >= _parse_day(sunset):
        notes.append(f"its time to live ended on {sunset} (released, ttl_months)")
    if now >= find_expiry(metadata):
        notes.append(f"it expired on {metadata['expires']} (expires)")
    return tuple(notes)


def find_review_day(metadata: Mapping[str, Any]) -> str:
    """Return the day of the next review; empty if the policy names none."""
    if "review_by" in metadata or "reviewed" not in metadata:
        return str(metadata.get("review_by", ""))
    # Imported here: only files with dates need it.
    from datetime import date, timedelta

    return (date.fromisoformat(metadata["reviewed"]) + timedelta(days=REVIEW_DAYS)).isoformat()


def find_sunset_day(metadata: Mapping[str, Any]) -> str:
    """Return the last day of the time to live; empty if the day of release is not known."""
    if "released" not in metadata:
        return ""
    from calendar import monthrange
    from datetime import date

    released = date.fromisoformat(metadata["released"])
    months = released.month - 1 + int(metadata.get("ttl_months", TTL_MONTHS))
    year, month = released.year + months // 12, months % 12 + 1
    # 31 January and one month is the last day of February.
    return date(year, month, min(released.day, monthrange(year, month)[1])).isoformat()


def _parse_day(day: str) -> float:
    from datetime import UTC, date, datetime, time

    return datetime.combine(date.fromisoformat(day), time(), UTC).timestamp()
