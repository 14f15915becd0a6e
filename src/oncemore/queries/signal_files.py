"""Read a signal over time from a CSV or JSON file: grid intensity, energy price."""

from __future__ import annotations

import csv
import json
import math
from datetime import datetime
from pathlib import Path

from oncemore.errors import UsageError
from oncemore.simulate.recorded_runs import SignalTimeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SIGNAL_BYTES = 32 << 20


def read_timeline(text: str, name: str) -> SignalTimeline:
    """Return a signal over time: a number, or a .csv or .json file with times and values.

    CSV: a time and a value in the first two columns, with or without a header. JSON: an object of times and
    values, a list of pairs, or a list of objects with `at` and `value`. A time is RFC 3339 or POSIX seconds.
    """
    try:
        return SignalTimeline([(-math.inf, _parse_value(text))])
    except ValueError:
        pass
    path = Path(text)
    try:
        data = path.read_bytes()[: MAX_SIGNAL_BYTES + 1]
    except OSError as error:
        raise UsageError(
            f"--{name} {text!r} is neither a number nor a file that can be read ({error.strerror}); give a "
            "number, or a .csv or .json file with times and values"
        ) from None
    if len(data) > MAX_SIGNAL_BYTES:
        raise UsageError(f"{text} is larger than {MAX_SIGNAL_BYTES >> 20} MiB; give a shorter period")
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{text}: byte {error.start} is not UTF-8") from None
    pairs = _read_json(text, content) if path.suffix == ".json" else _read_csv(text, content)
    points = [_parse_point(text, place, at, value) for place, at, value in pairs]
    if not points:
        raise UsageError(f"{text} has no values")
    return SignalTimeline(points)


def _read_csv(shown: str, content: str) -> Iterator[tuple[str, object, object]]:
    for number, row in enumerate(csv.reader(content.splitlines()), 1):
        if not row or row[0].lstrip().startswith("#"):
            continue
        if len(row) < 2:
            raise UsageError(f"{shown}, line {number}: a time and a value are needed, separated by a comma")
        # A header is a first line whose second column is not a number.
        if number == 1 and not _is_number(row[1]):
            continue
        yield f"line {number}", row[0], row[1]


def _read_json(shown: str, content: str) -> Iterator[tuple[str, object, object]]:
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise UsageError(f"{shown} is not JSON: {error}") from None
    entries = list(parsed.items()) if isinstance(parsed, dict) else parsed
    if not isinstance(entries, list):
        raise UsageError(f"{shown} has to hold an object of times and values, or a list of them")
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, dict) and {"at", "value"} <= entry.keys():
            yield f"entry {number}", entry["at"], entry["value"]
        elif isinstance(entry, (list, tuple)) and len(entry) == 2:
            yield f"entry {number}", entry[0], entry[1]
        else:
            raise UsageError(f"{shown}, entry {number}: give [time, value], or at and value in an object")


def _parse_point(shown: str, place: str, at: object, value: object) -> tuple[float, float]:
    try:
        return _parse_time(at), _parse_value(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{shown}, {place}: {error}") from None


def _parse_time(at: object) -> float:
    if isinstance(at, str) and not _is_number(at):
        return datetime.fromisoformat(at.strip()).astimezone().timestamp()
    return _parse_value(at)


def _parse_value(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
