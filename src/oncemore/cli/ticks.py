"""Round numbers for an axis."""

from __future__ import annotations

import math


def ticks(top: float, most: int) -> list[float]:
    """Return at most `most` (but always two) round numbers from 0 to the first at or above `top`."""
    step = _step(top / max(1, most - 1)) if top > 0 else 1.0
    count = max(1, math.ceil(top / step - 1e-9))
    return [step * n for n in range(count + 1)]


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= least * (1 - 1e-9))


def shown(value: float) -> str:
    """Return a number as short as it is exact to a thousandth: 670, 0.25, 21.214, and 4e-05 below that."""
    if value and abs(value) < 0.0005:
        return f"{value:.1g}"
    text = f"{value:.3f}"
    return text.rstrip("0").rstrip(".")
