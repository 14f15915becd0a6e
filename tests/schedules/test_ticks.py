"""The arithmetic of ticks, against plain enumerations of every minute."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.schedules.ticks import (
    LATE_S,
    MAX_MISSED,
    CronTicks,
    IntervalTicks,
    choose_ticks,
    parse_cron,
    parse_interval,
)

MINUTE_S = 60
#: Days on which the clocks change: Berlin in both directions, Lord Howe by half an hour, New York, and none.
CHANGES = (
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)),
    ("UTC", datetime(2028, 2, 28, tzinfo=UTC)),
)
minutes = st.sampled_from(["*", "*/15", "*/7", "0", "30", "5,45", "10-12"])
hours = st.sampled_from(["*", "*/6", "1", "2", "1,2,3", "0-2", "23"])
days = st.sampled_from(["*", "*", "*/2", "1", "29"])
weekdays = st.sampled_from(["*", "*", "0", "MON-FRI"])


def parse_field(text: str, low: int, high: int) -> set[int]:
    """Return the values of a field of the expressions above."""
    text = text.replace("MON-FRI", "1-5")
    if text.startswith("*"):
        step = int(text.partition("/")[2] or 1)
        return set(range(low, high + 1, step))
    values: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        values |= set(range(int(first), int(last or first) + 1))
    return values


def matches(expression: str, wall: datetime) -> bool:
    minute, hour, day, _, weekday = expression.split()
    on_day = wall.day in parse_field(day, 1, 31)
    on_weekday = wall.isoweekday() % 7 in parse_field(weekday, 0, 6)
    is_day = on_day and on_weekday if "*" in day[0] + weekday[0] else on_day or on_weekday
    return is_day and wall.hour in parse_field(hour, 0, 23) and wall.minute in parse_field(minute, 0, 59)


def enumerate_plainly(expression: str, tz: str, start: datetime, end: datetime) -> list[float]:
    """Return the ticks after `start` up to `end`, by looking at every minute."""
    zone = ZoneInfo(tz)
    minute, hour, *_ = expression.split()
    first, count = int(start.timestamp()) // MINUTE_S * MINUTE_S, int((end - start).total_seconds()) // 60
    moments = [first + MINUTE_S * number for number in range(count + 2)]
    if minute[0] == "*" or hour[0] == "*" or tz == "UTC":
        found = {at for at in moments if matches(expression, datetime.fromtimestamp(at, zone))}
    else:
        # A fixed time of the wall clock: each once, in the gap at its end, in the fold the first one.
        found = set()
        wall = datetime.fromtimestamp(first - 7200, zone).replace(tzinfo=None)
        for number in range(count + 240):
            local = wall + timedelta(minutes=number)
            if matches(expression, local):
                exists = [at for at in range(240) if _exists(local + timedelta(minutes=at), zone)]
                found.add(int((local + timedelta(minutes=exists[0])).replace(tzinfo=zone).timestamp()))
    return sorted(float(at) for at in found if start.timestamp() < at <= end.timestamp())


def _exists(wall: datetime, zone: ZoneInfo) -> bool:
    aware = wall.replace(tzinfo=zone)
    return aware.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == wall


@given(
    minute=minutes,
    hour=hours,
    day=days,
    weekday=weekdays,
    change=st.sampled_from(CHANGES),
    offset_s=st.integers(-6 * 3600, 36 * 3600),
    micros=st.sampled_from([0, 1, 500_000, 999_999]),
)
def test_cron_ticks_are_those_of_a_plain_enumeration_from_any_start(
    minute: str, hour: str, day: str, weekday: str, change: tuple[str, datetime], offset_s: int, micros: int
) -> None:
    """Also in the second pass of a repeated hour, and one tick at a time or all at once."""
    tz, around = change
    if tz == "Australia/Lord_Howe" and "*" in minute[0] + hour[0]:
        # After a change by half an hour cronsim misses repeated times for that day (docs/adr/0048).
        minute, hour = "30", "2"
    expression = f"{minute} {hour} {day} * {weekday}"
    start = around + timedelta(seconds=offset_s, microseconds=micros)
    end = start + timedelta(hours=30)
    expected = enumerate_plainly(expression, tz, start, end)
    ticks = CronTicks(expression, tz)
    one_by_one: list[float] = []
    at = start.timestamp()
    while (at := ticks.next_after(at)) <= end.timestamp():
        one_by_one.append(at)
    assert one_by_one == expected
    if expected:
        assert ticks.list_due(expected[0], end.timestamp(), 10_000) == expected
        assert ticks.list_due(expected[0], end.timestamp(), 3) == expected[-3:]


@given(
    every_us=st.integers(10_000, 10**12),
    start_us=st.integers(0, 4 * 10**15),
    moment_us=st.integers(0, 4 * 10**15),
    limit=st.integers(1, 20),
)
def test_intervals_are_exact(every_us: int, start_us: int, moment_us: int, limit: int) -> None:
    ticks = IntervalTicks(every_us, start_us)
    at = ticks.next_after(moment_us / 1e6)
    number = Fraction(round(at * 1e6) - start_us, every_us)
    assert number.denominator == 1
    assert number >= 0
    assert round(at * 1e6) > moment_us
    assert number == 0 or round(at * 1e6) - every_us <= moment_us
    later = (round(at * 1e6) + 30 * every_us + 1) / 1e6
    listed = ticks.list_due(at, later, limit)
    one_by_one = list(itertools.islice(_iterate(ticks, at), 31))
    assert listed == one_by_one[-limit:]
    assert len(one_by_one) == 31
    assert one_by_one[-1] <= later < ticks.next_after(later)


def _iterate(ticks: IntervalTicks, first: float):  # type: ignore[no-untyped-def]
    at = first
    while True:
        yield at
        at = ticks.next_after(at)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Fixed times: once each. 02:30 does not exist on that day, and its run comes at 03:00.
        ("30 2 * * *", ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("0 3 * * *", ["2026-03-28T03:00+01:00", "2026-03-29T03:00+02:00", "2026-03-30T03:00+02:00"]),
        # By real time: nothing between 01:30 and 03:00, which is the next half hour.
        ("*/30 1-3 29 * *", ["2026-03-29T01:00+01:00", "2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"]),
    ],
)
def test_the_skipped_hour(expression: str, expected: list[str]) -> None:
    assert _ticks_from(expression, "2026-03-28T00:00+01:00", len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Fixed times: the first of the two 02:30.
        ("30 2 * * *", ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        # By real time: both passes of the hour.
        (
            "*/30 2 25 * *",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00",
             "2026-10-25T02:30+01:00"],
        ),
        ("0 * 25 * *", [f"2026-10-25T{hour}:00+0{offset}:00" for hour, offset in
                        (("00", 2), ("01", 2), ("02", 2), ("02", 1), ("03", 1))]),
    ],
)  # fmt: skip
def test_the_repeated_hour(expression: str, expected: list[str]) -> None:
    assert _ticks_from(expression, "2026-10-24T00:00+02:00", len(expected)) == expected


def _ticks_from(expression: str, start: str, count: int) -> list[str]:
    ticks, at, found = (
        CronTicks(expression, "Europe/Berlin"),
        datetime.fromisoformat(start).timestamp(),
        list[str](),
    )
    for _ in range(count):
        at = ticks.next_after(at)
        found.append(datetime.fromtimestamp(at, ZoneInfo("Europe/Berlin")).isoformat(timespec="minutes"))
    return found


def test_a_registration_in_the_second_pass_of_an_hour_does_not_look_back() -> None:
    second = datetime.fromisoformat("2026-10-25T02:10+01:00").timestamp()
    at = CronTicks("30 2 * * *", "Europe/Berlin").next_after(second)
    assert at == datetime.fromisoformat("2026-10-26T02:30+01:00").timestamp()


@given(
    count=st.integers(1, 40),
    missed=st.sampled_from(["skip", "once", "all"]),
    late_s=st.floats(0, 119, allow_nan=False),
)
def test_missed_ticks_by_their_policy(count: int, missed: str, late_s: float) -> None:
    ticks = IntervalTicks(120 * 10**6)
    due = [120.0 * number for number in range(1, count + 1)]
    chosen = choose_ticks(ticks, missed, due[0], due[-1] + late_s)
    expected = {
        "all": due,
        "once": due[-1:],
        "skip": due[-1:] if due[-1] + late_s - due[-1] <= LATE_S else [],
    }[missed]
    assert list(chosen.ticks) == expected
    assert chosen.skipped == count - len(expected)
    assert chosen.next_tick == due[-1] + 120


@pytest.mark.parametrize("ticks", [parse_interval(60, None), parse_cron("* * * * *", "UTC")])
def test_years_without_a_worker_are_cut_off(ticks: CronTicks | IntervalTicks) -> None:
    now = 5 * 365 * 86_400.0
    chosen = choose_ticks(ticks, "all", 60.0, now)
    assert list(chosen.ticks) == [now - 60 * number for number in range(MAX_MISSED)][::-1]
    assert chosen.next_tick == now + 60


def test_a_tick_that_new_time_zone_data_has_moved_still_gets_its_run() -> None:
    chosen = choose_ticks(CronTicks("0 6 * * *", "UTC"), "once", 100.0, 200.0)
    assert (chosen.ticks, chosen.next_tick) == ((100.0,), 6 * 3600.0)


def test_names_of_common_expressions() -> None:
    assert parse_cron("@daily", "UTC").next_after(1.0) == 86_400.0
    assert parse_cron(" @Hourly ", "UTC").next_after(1.0) == 3600.0
    assert parse_interval(timedelta(minutes=5), None).next_after(0.0) == 300.0
