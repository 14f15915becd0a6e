"""RATE: how many calls in a time. Each call has its moment; moments are handed out, never two at once.

A rate of n per period puts calls a step of period/n apart, so that no stretch of a period has more than n. A
call that comes when nobody was there for a while goes at once; `burst` lets that many go at once then. All
that has to be remembered is the moment of the next call (the generic cell rate algorithm).
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
MOST, LONGEST_S = 1_000_000, 31_536_000.0


class Pulse(Value):
    """So many calls in each period, up to `burst` of them at once after a rest."""

    per: int
    period_s: float = 1.0
    burst: int = 1

    @property
    def step_s(self) -> float:
        """How far apart calls are."""
        return self.period_s / self.per


def pulse_of(text: object, burst: int = 1) -> Pulse:
    """Return the rate that a text says: 10/s, 100/min, 5/h, 1/10s."""
    said = text.replace(" ", "") if isinstance(text, str) else ""
    count, slash, period = said.partition("/")
    number = period.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit, many = period[len(number) :], number or "1"
    if not slash or not count.isdecimal() or not many.isdecimal() or unit not in UNITS:
        raise UsageError(f"rate is {text!r}; it takes calls and a time: 10/s, 100/min, 5/h, 1/10s")
    return check_pulse(Pulse(int(count), int(many) * UNITS[unit], burst))


def check_pulse(pulse: Pulse) -> Pulse:
    """Return a rate whose numbers make sense, or say which one does not."""
    if not 1 <= pulse.per <= MOST or not 0 < pulse.period_s <= LONGEST_S:
        raise UsageError(
            f"rate is {pulse.per} in {pulse.period_s:g} s; it takes 1 to {MOST:,} calls in up to a year"
        )
    if type(pulse.burst) is not int or not 1 <= pulse.burst <= pulse.per:
        raise UsageError(f"burst is {pulse.burst!r}; it takes a whole number from 1 to the {pulse.per} calls")
    return pulse


def take(pulse: Pulse, next_at: float, now: float, count: int = 1) -> tuple[float, float]:
    """Return the moment of the first of so many calls, a step apart, and that of whoever comes next.

    A moment that has passed means now. A clock that was set back makes nobody wait for longer than it takes
    to hand out what was handed out.
    """
    step = pulse.step_s
    earliest = now - (pulse.burst - 1) * step
    start = max(earliest, min(next_at, now + LONGEST_S))
    return start, start + count * step
