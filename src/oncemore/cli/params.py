"""Kinds of words that commands take: durations, sizes, names with values."""

from __future__ import annotations

import math
import re

import click

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNITS = {
    "": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0,
    "y": 31_557_600.0,
}  # fmt: skip
_BYTES = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


class Duration(click.ParamType[float]):
    """Seconds, or a number with its unit: 90, 1.5h, 2m30s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a duration; all of it must make sense."""
        if isinstance(value, float):
            return value
        seconds = duration(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no time; write seconds, or 500ms, 90s, 5m, 1h30m, 90d.", param, ctx)
        return seconds


def duration(text: str) -> float | None:
    """Return seconds, or None if the text is no duration."""
    text = text.strip()
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdwy]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        return None
    if len(parts) > 1 and any(not unit for _, unit in parts):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return seconds if math.isfinite(seconds) else None


def span(seconds: float) -> str:
    """Return a duration for people: 0.1 s, 45 s, 12 min 05 s, 1 h 02 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class Size(click.ParamType[int]):
    """Bytes, or a number with K, M or G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a size."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,15})([BKMG]?)i?B?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no size; write bytes, or 500K, 10M, 2G.", param, ctx)
        return int(found[1]) * _BYTES[found[2].upper()]


class Pair(click.ParamType[tuple[str, str]]):
    """A name and its value."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Read NAME=VALUE."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals or "\0" in text:
            self.fail(f"{value!r} is not of the form NAME=VALUE.", param, ctx)
        return name, text


DURATION, SIZE, PAIR = Duration(), Size(), Pair()
