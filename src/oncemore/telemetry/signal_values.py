"""Signals as values: their names and units, one reading, and series of values over time.

A *signal* is a fact about the surroundings, such as the carbon intensity of the grid. A *reading* is its
value at one moment, with its source and its age; or the reason why there is none. A missing signal is
neutral: it switches off its own term and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    #: Time in POSIX seconds and value, in the order of time.
    Series = tuple[tuple[float, float], ...]

#: The signals, each with its unit.
UNITS = {
    "grid_intensity": "gCO2/kWh",
    "energy_price": "USD/kWh",
    "compute_unit_cost": "USD/h",
    "queue_depth": "runs",
    "arrival_rate": "runs/s",
    "parallelism": "workers",
    "error_budget": "share",
}
NAMES = tuple(UNITS)
#: Signals that the usage of an attempt stores, and the names that it stores them under (`telemetry.energy`).
STORED_NAMES = {
    "grid_intensity": ("g_per_kwh", "grid_intensity_g_per_kWh"),
    "energy_price": ("usd_per_kwh", "energy_rate_usd_per_kWh"),
    "compute_unit_cost": ("usd_per_h", "compute_unit_cost_usd_per_h"),
    "queue_depth": ("queue", "queue_depth"),
}
NOT_CONFIGURED = "no source is configured"
#: How much later than the moment of a reading its value may be of: it was fetched meanwhile.
CLOCK_TOLERANCE_S = 5.0


class SignalReading(Value):
    """The value of a signal at one moment.

    value   the number in the unit of the signal; None if it is not known
    source  where it comes from: `constant`, `file prices.csv`, `electricity_maps DE (average)`
    at      the time that the value is of; None for a constant, which is of no time
    reason  why there is no value
    """

    value: float | None = None
    source: str = ""
    at: float | None = None
    reason: str = ""


MISSING = SignalReading(reason=NOT_CONFIGURED)


def describe_reading(reading: SignalReading, now: float) -> dict[str, Any]:
    """Return a reading as the proof of a decision holds it: value, source and age, or the reason of none."""
    if reading.value is None:
        return {"unavailable": reading.reason, **({"source": reading.source} if reading.source else {})}
    # Whole milliseconds: the age has no more meaning than that, and the proof must be equal in every process.
    age = None if reading.at is None else max(0.0, round(now - reading.at, 3))
    return {"value": reading.value, "source": reading.source, "age_s": age}


def make_series(points: Iterable[tuple[float, float]]) -> Series:
    """Return points in the order of time; of two points at one time the later one in the list counts."""
    return tuple(sorted(dict(points).items()))


def read_series(series: Series, now: float, source: str, max_age_s: float) -> SignalReading:
    """Return the value that is in force at a time: that of the last point before it."""
    position = bisect_right(series, now + CLOCK_TOLERANCE_S, key=lambda point: point[0])
    if not position:
        reason = "has no values" if not series else f"begins {series[0][0] - now:.0f} s later"
        return SignalReading(source=source, reason=f"the series {reason}")
    at, value = series[position - 1]
    if now - at > max_age_s:
        return SignalReading(
            source=source, reason=f"the last value is {now - at:.0f} s old, more than {max_age_s:g} s"
        )
    return SignalReading(value, source, at)
