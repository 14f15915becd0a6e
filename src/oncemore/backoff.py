"""Schedules for `wait=`: `oncemore.backoff.exponential(1, cap=20)`; `policy.backoff` computes the delays."""

from __future__ import annotations

from oncemore.policy.backoff import Schedule
from oncemore.policy.policy import check_schedule
from oncemore.retries.options import as_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.backoff import Exponent
    from oncemore.retries.options import Seconds

__all__ = ["exponential", "fixed", "linear"]


def exponential(
    base: Seconds = 1.0, *, factor: float = 2.0, cap: Seconds | None = None, exponent: Exponent = "attempt-1"
) -> Schedule:
    """Plan delays of base, base * factor, base * factor ** 2, … up to the cap (30 s unless given).

    With exponent="attempt" the first delay is already base * factor.
    """
    cap_s = None if cap is None else as_seconds("cap", cap)
    return check_schedule(
        Schedule("exponential", as_seconds("base", base), factor, exponent, delays=(), cap=cap_s)
    )


def linear(step: Seconds, *, cap: Seconds | None = None) -> Schedule:
    """Plan delays of step, 2 * step, 3 * step, … up to the cap (30 s unless given)."""
    cap_s = None if cap is None else as_seconds("cap", cap)
    return check_schedule(Schedule("linear", as_seconds("step", step), cap=cap_s))


def fixed(*delays: Seconds) -> Schedule:
    """Plan these delays in this order; the last one repeats."""
    return check_schedule(Schedule("fixed", delays=tuple(as_seconds("delay", delay) for delay in delays)))
