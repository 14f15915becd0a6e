"""Read signals from documents: CSV and JSON series, and the answers of three carbon-intensity services.

Each reader gets the text of a document and returns a series of points, in the unit of the signal, and a short
description of its origin. Nothing here fetches anything.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from oncemore._values import Value
from oncemore.telemetry.signal_values import make_series

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.telemetry.signal_values import Series

#: lb/MWh in g/kWh.
_GRAMS_PER_POUND_MWH = 0.45359237
_TIME_NAMES = ("time", "at", "datetime", "point_time", "timestamp", "from")


class SignalDocument(Value):
    """The values of a document, and a few words about their origin: the zone, average or marginal."""

    series: Series
    origin: str = ""


class DocumentFault(ValueError):
    """A document is not in the expected shape; the message says where."""


def parse_time(text: Any, where: str) -> float:
    """Return a time in POSIX seconds: a number, or ISO 8601 with an offset; without one it is UTC."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    try:
        moment = datetime.fromisoformat(str(text).strip())
    except ValueError:
        try:
            return float(text)
        except (TypeError, ValueError):
            raise DocumentFault(f"{where}: {text!r} is not a time; write 2026-11-18T06:30:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parse_value(value: Any, where: str) -> float:
    if isinstance(value, bool) or value is None:
        raise DocumentFault(f"{where}: {value!r} is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DocumentFault(f"{where}: {value!r} is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise DocumentFault(f"{where}: {value!r} is not a finite number")
    return number


# Series in files ------------------------------------------------------------------------------------


def read_csv(text: str) -> SignalDocument:
    """Return the series of a CSV text with the columns time and value; a header line is optional."""
    points: list[tuple[float, float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip().strip('"') for cell in re.split(r"[,;\t]", line)]
        if not line.strip() or line.startswith("#") or (not points and cells[0].lower() in _TIME_NAMES):
            continue
        if len(cells) < 2:
            raise DocumentFault(f"line {number}: {line!r} does not have the columns time and value")
        points.append((parse_time(cells[0], f"line {number}"), _parse_value(cells[1], f"line {number}")))
    return SignalDocument(make_series(points))


def read_json(text: str) -> SignalDocument:
    """Return the series of a JSON list of `[time, value]` or `{"time": …, "value": …}`."""
    content = _load(text)
    if isinstance(content, dict):
        content = content.get("data", content.get("series"))
    if not isinstance(content, list):
        raise DocumentFault("it is not a list of times and values")
    points = []
    for number, item in enumerate(content):
        where = f"item {number}"
        if isinstance(item, list) and len(item) == 2:
            at, value = item
        elif isinstance(item, dict) and "value" in item:
            at, value = next((item[name] for name in _TIME_NAMES if name in item), None), item["value"]
        else:
            raise DocumentFault(f"{where} is neither [time, value] nor an object with time and value")
        points.append((parse_time(at, where), _parse_value(value, where)))
    return SignalDocument(make_series(points))


def read_number(text: str, field: str, now: float) -> SignalDocument:
    """Return one value of this moment: a plain number, or the field of a JSON document (`data.0.value`)."""
    content: Any = text.strip()
    if field:
        content = _load(text)
        for part in field.split("."):
            try:
                content = content[int(part)] if isinstance(content, list) else content[part]
            except (KeyError, IndexError, TypeError, ValueError):
                raise DocumentFault(f"the answer has no field {field!r} (at {part!r})") from None
    return SignalDocument(((now, _parse_value(content, field or "the answer")),))


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as fault:
        raise DocumentFault(f"it is not JSON: {fault}") from None


# Services -------------------------------------------------------------------------------------------


def read_electricity_maps(text: str) -> SignalDocument:
    """Return the series of an Electricity Maps answer: `latest`, `history`, `forecast`; average."""
    content = _load(text)
    items = [content]
    for name in ("history", "forecast", "data"):
        if isinstance(content, dict) and isinstance(content.get(name), list):
            items = content[name]
    points = list(_read_items(items, "datetime", "carbonIntensity"))
    if not points:
        raise DocumentFault("it has no carbonIntensity")
    zone = content.get("zone", "") if isinstance(content, dict) else ""
    estimated = ", estimated" if isinstance(content, dict) and content.get("isEstimated") else ""
    return SignalDocument(make_series(points), f"{zone} (average{estimated})".strip())


def _read_items(items: Any, time_name: str, value_name: str) -> Iterator[tuple[float, float]]:
    for number, item in enumerate(items):
        # Both services leave a value null that they do not know (yet).
        if isinstance(item, dict) and item.get(value_name) is not None:
            where = f"item {number}"
            yield parse_time(item.get(time_name), where), _parse_value(item[value_name], where)


def read_watttime(text: str) -> SignalDocument:
    """Return the series of a WattTime v3 answer in g/kWh; marginal intensity."""
    content = _load(text)
    meta = content.get("meta", {}) if isinstance(content, dict) else {}
    units = meta.get("units", "")
    if units != "lbs_co2_per_mwh":
        raise DocumentFault(f"its unit is {units!r}; only lbs_co2_per_mwh can be turned into g/kWh")
    points = [
        (at, value * _GRAMS_PER_POUND_MWH)
        for at, value in _read_items(content.get("data", ()), "point_time", "value")
    ]
    if not points:
        raise DocumentFault("it has no values")
    return SignalDocument(make_series(points), f"{meta.get('region', '')} (marginal)".strip())


def read_gb_intensity(text: str) -> SignalDocument:
    """Return the series of an answer of the GB Carbon Intensity API: measured, else forecast; average."""
    content, points = _load(text), []
    items = content.get("data") if isinstance(content, dict) else None
    for number, item in enumerate(items if isinstance(items, list) else ()):
        intensity = item.get("intensity") or {}
        value = intensity.get("actual")
        value = intensity.get("forecast") if value is None else value
        if value is not None:
            where = f"item {number}"
            points.append((parse_time(item.get("from"), where), _parse_value(value, where)))
    if not points:
        raise DocumentFault("it has no intensity")
    return SignalDocument(make_series(points), "GB (average)")


SERVICES = {
    "electricity_maps": read_electricity_maps,
    "watttime": read_watttime,
    "gb_carbon_intensity": read_gb_intensity,
}
