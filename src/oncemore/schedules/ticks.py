"""Ticks: the times of a schedule, as POSIX seconds, and which of the missed ones get a run.

A tick is computed from the tick before it and never from the time at which a worker looks. The next tick
after a moment is the same in every process, however its enumeration began: that makes the key of a tick's run
the same everywhere.

Cron expressions are evaluated by cronsim, which treats changes of daylight saving time as Debian's cron does:

    a fixed time (`30 2 * * *`)         in the skipped hour: once, at the end of the gap; in the repeated
                                        hour: once, at its first occurrence
    a repeated one (`*/30 * * * *`)     by real time: nothing in the skipped hour, and both passes of the
                                        repeated hour

Intervals (`every=`) count in real time and know no time zone.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: How many missed ticks get a run with missed="all"; older ones are skipped.
MAX_MISSED = 1000
#: How late a tick may be taken with missed="skip".
LATE_S = 60.0
#: The shortest and the longest interval, in seconds.
MIN_EVERY_S, MAX_EVERY_S = 0.01, 3660 * 86_400.0
#: The end of the year 9999: an expression without a further tick is due then.
LATEST = 253_402_300_799.0
#: Names of common expressions, as cron has them.
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DAY_S = 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: From 2106 on (2**32 s), a float of POSIX seconds no longer gives back every microsecond.
LAST_START = datetime(2100, 1, 1, tzinfo=UTC)


class CronTicks(Value):
    """The ticks of a cron expression in a time zone."""

    expression: str
    tz: str

    def next_after(self, moment: float) -> float:
        """Return the first tick after a moment."""
        return next(self._iterate_ticks(moment), LATEST)

    def list_due(self, first: float, now: float, limit: int) -> list[float]:
        """Return the last `limit` ticks from `first` to `now`."""
        # Back from now in growing steps: a worker that was away for years must not count every minute.
        window_s = _DAY_S
        while True:
            start = max(first - 1.0, now - window_s)
            due = deque(takewhile(now.__ge__, self._iterate_ticks(start)), limit)
            if start < first or len(due) == limit:
                return list(due)
            window_s *= 16

    def _iterate_ticks(self, moment: float) -> Iterator[float]:
        cronsim = load_cronsim()
        last = moment
        for tick in cronsim.CronSim(self.expression, to_datetime(moment, self.tz)):
            # In the second pass of a repeated hour the library starts with the ticks of the first pass.
            if (seconds := tick.timestamp()) > last:
                last = seconds
                yield seconds


class IntervalTicks(Value):
    """Ticks at equal distances from a start, in microseconds: floats would drift."""

    every_us: int
    start_us: int = 0

    def next_after(self, moment: float) -> float:
        """Return the first tick after a moment; there is none before the start."""
        passed_us = round(moment * 1e6) - self.start_us
        number = passed_us // self.every_us + 1 if passed_us >= 0 else 0
        return self._tick_at(number)

    def list_due(self, first: float, now: float, limit: int) -> list[float]:
        """Return the last `limit` ticks from `first` to `now`."""
        low = -((self.start_us - round(first * 1e6)) // self.every_us)
        high = (round(now * 1e6) - self.start_us) // self.every_us
        numbers = range(max(low, 0, high - limit + 1), high + 1)
        return [self._tick_at(number) for number in numbers]

    def _tick_at(self, number: int) -> float:
        return (self.start_us + number * self.every_us) / 1e6


class ChosenTicks(Value):
    """The ticks that get a run, oldest first, the number of skipped ones, and the tick after all of them."""

    ticks: tuple[float, ...]
    skipped: int
    next_tick: float


def choose_ticks(ticks: CronTicks | IntervalTicks, missed: str, first: float, now: float) -> ChosenTicks:
    """Return what to do about the ticks that are due since `first`.

    missed  "all": each of them, the last 1,000 at most; "once": the last one; "skip": the last one if it is
            at most a minute late
    """
    # A new release of the time zone data may have moved a recorded tick: it still gets its run.
    due: Sequence[float] = ticks.list_due(first, now, MAX_MISSED) or [first]
    chosen = due
    if missed != "all":
        is_on_time = missed == "once" or now - due[-1] <= LATE_S
        chosen = due[-1:] if is_on_time else ()
    return ChosenTicks(tuple(chosen), len(due) - len(chosen), ticks.next_after(due[-1]))


def parse_cron(expression: object, tz: str) -> CronTicks:
    """Return the ticks of an expression; refuse one that cron would not take."""
    if not isinstance(expression, str):
        raise UsageError(f"schedule() got {expression!r:.80}; it takes a cron expression such as '0 6 * * *'")
    text = NICKNAMES.get(expression.strip().lower(), " ".join(expression.split()))
    if len(text.split()) != 5:
        raise UsageError(
            f"the cron expression {expression!r} has {len(text.split())} fields; it takes five: minute, "
            "hour, day of month, month, day of week. For seconds write every="
        )
    cronsim = load_cronsim()
    ticks = CronTicks(text, tz)
    try:
        ticks.next_after(0.0)
    except cronsim.CronSimError as error:
        field = str(error).removeprefix("Bad ")
        raise UsageError(f"the cron expression {expression!r} has a wrong {field} field") from None
    return ticks


def parse_interval(every: Any, start: Any) -> IntervalTicks:
    """Return the ticks of an interval: seconds or a timedelta, from an aware datetime or the epoch."""
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not MIN_EVERY_S <= seconds <= MAX_EVERY_S:
        raise UsageError(
            f"every is {every!r}; it takes a timedelta or seconds, {MIN_EVERY_S:g} to {MAX_EVERY_S:g}"
        )
    if start is None:
        return IntervalTicks(round(seconds * 1e6))
    if not isinstance(start, datetime) or start.tzinfo is None or not _EPOCH <= start < LAST_START:
        raise UsageError(f"start is {start!r}; it takes the first tick, an aware datetime from 1970 to 2100")
    return IntervalTicks(round(seconds * 1e6), (start - _EPOCH) // timedelta(microseconds=1))


def find_zone(tz: str) -> tzinfo:
    """Return a time zone by its name; refuse a name that this machine does not know."""
    from zoneinfo import ZoneInfo

    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, TypeError, OSError):
        raise UsageError(
            f"tz is {tz!r}, and this machine has no time zone of that name; write one such as "
            "'Europe/Berlin', or install tzdata if the machine has no time zones at all"
        ) from None


def to_datetime(tick: float, tz: str) -> datetime:
    """Return a tick as an aware datetime."""
    return datetime.fromtimestamp(tick, find_zone(tz))


def tick_name(tick: float) -> str:
    """Return the name of a tick in the key of its run, for a function that does not take the tick."""
    return f"tick {tick:.6f}"


def load_cronsim() -> Any:
    """Return the module that evaluates cron expressions."""
    try:
        import cronsim
    except ImportError as missing:
        raise MissingExtra("cron expressions need cronsim: pip install 'oncemore[cron]'") from missing
    return cronsim
