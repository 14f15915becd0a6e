"""What waits for a person, and their decisions, on the store of the settings or of an address."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore import opening
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.engine.runtime import Engine

_AGE = re.compile(r"(\d+)\s*([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@contextmanager
def engine_on(store: str | None) -> Iterator[Engine]:
    """Give an engine on a store that is there already; to look at a log makes none."""
    engine = opening.open(store) if store else opening.chosen()
    path = engine.url.removeprefix(opening.SQLITE)
    if engine.url.startswith(opening.SQLITE) and not Path(path).exists():
        raise UsageError(
            f"there is no log at {path}; name the store with --store or ONCEMORE_STORE, or go to the "
            "project's folder"
        )
    with engine:
        yield engine


def since(text: str | None, now: float) -> float | None:
    """Return a moment that is given as a time, or as how long ago: 2h, 3d, 2026-11-16, 2026-11-16T08:00Z."""
    if text is None:
        return None
    ago = _AGE.fullmatch(text.strip().lower())
    if ago is not None:
        return max(0.0, now - int(ago[1]) * _UNITS[ago[2]])
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"since is {text!r}; it takes how long ago (30m, 2h, 3d), or a time (2026-11-16T08:00Z)"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def value_of(text: str) -> Any:
    """Return the value that JSON on a command line stands for."""
    import json

    try:
        return json.loads(text)
    except ValueError as fault:
        raise UsageError(
            f"the value is no JSON: {fault}; a text needs quotes of its own: '\"done\"'"
        ) from None


def when(moment: float) -> str:
    """Return a moment for people: UTC, to the second."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(moment: float, now: float) -> str:
    """Return how long ago a moment was, in one unit."""
    left = max(0.0, now - moment)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if left >= size:
            return f"{math.floor(left / size)} {unit}"
    return f"{math.floor(left)} s"
