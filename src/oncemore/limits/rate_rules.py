"""The rules of a rate limit: each call takes the next free slot.

A rate of n per period spaces calls by period/n, so that no interval of one period has more than n. After an
idle period a call starts at once, or up to `burst` of them. The only state is the time of the next free slot
(the generic cell rate algorithm).
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
MOST, LONGEST_S = 1_000_000, 31_536_000.0


class RateLimit(Value):
    """A number of calls per period, up to `burst` of them at once after an idle period."""

    per: int
    period_s: float = 1.0
    burst: int = 1

    @property
    def interval_s(self) -> float:
        """Seconds between two calls."""
        return self.period_s / self.per


def parse_rate(text: object, burst: int = 1) -> RateLimit:
    """Parse a rate such as 10/s, 100/min, 5/h or 1/10s."""
    compact = text.replace(" ", "") if isinstance(text, str) else ""
    count, slash, period = compact.partition("/")
    number = period.rstrip("abcdefghijklmnopqrstuvwxyz")
    # "10/s" has no number of units: it means one.
    unit, units = period[len(number) :], number or "1"
    if not slash or not count.isdecimal() or not units.isdecimal() or unit not in UNITS:
        raise UsageError(f"rate is {text!r}; it takes calls and a time: 10/s, 100/min, 5/h, 1/10s")
    return check_rate(RateLimit(int(count), int(units) * UNITS[unit], burst))


def check_rate(rate: RateLimit) -> RateLimit:
    """Return the rate; raise `UsageError` naming the first value out of range."""
    if not 1 <= rate.per <= MOST or not 0 < rate.period_s <= LONGEST_S:
        raise UsageError(
            f"rate is {rate.per} in {rate.period_s:g} s; it takes 1 to {MOST:,} calls in up to a year"
        )
    if type(rate.burst) is not int or not 1 <= rate.burst <= rate.per:
        raise UsageError(f"burst is {rate.burst!r}; it takes a whole number from 1 to the {rate.per} calls")
    return rate


def take_slots(rate: RateLimit, next_at: float, now: float, count: int = 1) -> tuple[float, float]:
    """Return the time of the first of `count` slots, and the time of the next free slot.

    A time in the past means that the call may start now.
    """
    step = rate.interval_s
    # Slots in the past are what makes a burst: they are all due at once.
    earliest = now - (rate.burst - 1) * step
    # The bound limits the wait after a clock was set back by a large amount.
    start = max(earliest, min(next_at, now + LONGEST_S))
    return start, start + count * step
