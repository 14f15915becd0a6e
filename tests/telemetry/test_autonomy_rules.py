"""The autonomy matrix as a pure function: causes, hysteresis, dwell, budget and priority."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.policy.canonical_json import encode_canonical
from oncemore.telemetry.autonomy_rules import (
    LEVELS,
    AutonomyRecord,
    AutonomyRules,
    Thresholds,
    act_by_priority,
    decide_level,
    end_of_period,
    receive_failure,
    recompute_proof,
    reserve_carbon,
    settle_carbon,
    start_of_period,
)

CARBON = AutonomyRules(carbon=Thresholds(slow=500.0, pause=700.0, resume=250.0))
NEW = AutonomyRecord(name="nightly")
#: 2026-11-18T12:00:00Z
NOON = 1_795_003_200.0


def readings(**values: float) -> dict[str, Any]:
    return {name: {"value": value, "source": "constant", "age_s": None} for name, value in values.items()}


def decide(
    rules: AutonomyRules, record: AutonomyRecord, now: float = NOON, **values: float
) -> AutonomyRecord:
    """Return the next record; every decision can be made again from its proof, to the byte."""
    after, proof = decide_level(rules, record, readings(**values), now)
    assert encode_canonical(recompute_proof(proof)) == encode_canonical(proof)
    return after


@pytest.mark.parametrize(
    ("intensity", "level"), [(0, "run"), (499, "run"), (500, "slow"), (699, "slow"), (700, "pause")]
)
def test_intensity_slows_and_pauses(intensity: float, level: str) -> None:
    assert decide(CARBON, NEW, grid_intensity=intensity).level == level


def test_each_cause_gives_its_level_and_its_words() -> None:
    price = AutonomyRules(price=Thresholds(slow=0.3, pause=0.5))
    assert decide(price, NEW, energy_price=0.31).reason == "energy price 0.31 USD/kWh, at or above 0.3"
    assert decide(price, NEW, energy_price=0.6).level == "pause"
    spent = decide(AutonomyRules(escalate_below=0.1), NEW, error_budget=0.05)
    assert (spent.level, spent.reason) == ("escalate", "the error budget is 0.05, at or below 0.1")
    night = AutonomyRules(off_hours=(20, 6))
    assert decide(night, NEW, NOON + 9 * 3600).level == "slow"
    assert decide(night, NEW, NOON - 9 * 3600).level == "slow"
    assert decide(night, NEW).level == "run"
    assert decide(AutonomyRules(off_hours=(11, 13)), NEW).reason == "off hours, 11:00 to 13:00 UTC"


@pytest.mark.req("AUTO-3")
def test_one_signal_pauses_p2_slows_p1_and_lets_p0_run() -> None:
    level = decide(CARBON, NEW, grid_intensity=900).level
    assert [act_by_priority(level, priority) for priority in ("P0", "P1", "P2")] == ["run", "slow", "pause"]
    assert all(act_by_priority(level, "P0") == "run" for level in LEVELS)
    assert all(act_by_priority(level, "P1") != "pause" for level in LEVELS)


def test_a_swinging_signal_changes_the_level_twice_an_hour_at_most() -> None:
    record, changes = NEW, 0
    for crossing in range(10):
        now = NOON + crossing * 360
        after = decide(CARBON, record, now, grid_intensity=520 if crossing % 2 == 0 else 480)
        changes += after.number != record.number
        record = after
    assert changes == 1
    assert record.level == "slow"
    # At 250 and after the dwell time it goes back; before the dwell time it does not.
    assert decide(CARBON, record, record.since + 60, grid_intensity=250).level == "slow"
    assert decide(CARBON, record, record.since + 900, grid_intensity=251).level == "slow"
    assert decide(CARBON, record, record.since + 900, grid_intensity=250).level == "run"


def test_a_soft_cause_waits_for_the_dwell_time_and_a_hard_one_does_not() -> None:
    rules = CARBON._replace(escalate_below=0.0)
    slow = decide(rules, NEW, grid_intensity=600)
    assert decide(rules, slow, NOON + 60, grid_intensity=800).level == "slow"
    assert decide(rules, slow, NOON + 900, grid_intensity=800).level == "pause"
    assert decide(rules, slow, NOON + 60, grid_intensity=800, error_budget=0.0).level == "escalate"


def test_a_pause_without_a_known_end_is_looked_at_again() -> None:
    pause = decide(CARBON, NEW, grid_intensity=800)
    assert pause.until == NOON + CARBON.recheck_s
    assert decide(CARBON, pause, NOON + 60, grid_intensity=800) == pause
    later = decide(CARBON, pause, pause.until, grid_intensity=800)
    assert later.until == pause.until + CARBON.recheck_s
    assert later.number == pause.number


def test_a_missing_signal_is_neutral() -> None:
    missing = {"grid_intensity": {"unavailable": "it has not been fetched yet"}}
    after, proof = decide_level(CARBON, NEW, missing, NOON)
    assert after.level == "run"
    assert proof["inputs"]["readings"] == missing


# The carbon budget ----------------------------------------------------------------------------------

BUDGET = AutonomyRules(cap_kg=2.0, slow_at=0.9)


def spend(record: AutonomyRecord, carbon_kg: float, run: str = "run/a") -> AutonomyRecord:
    return settle_carbon(reserve_carbon(record, run), run, carbon_kg)


def test_a_budget_slows_then_pauses_until_the_month_ends() -> None:
    record = decide(BUDGET, NEW)
    for _ in range(29):
        record = spend(decide(BUDGET, record), 0.06)
    assert decide(BUDGET, record).level == "slow"
    record = spend(spend(spend(record, 0.06), 0.06), 0.06)
    paused = decide(BUDGET, spend(record, 0.05))
    assert paused.level == "pause"
    assert paused.spent_kg == pytest.approx(1.97)
    assert "+ 0.06 > cap 2 kgCO2e" in paused.reason
    assert paused.until == datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    resumed = decide(BUDGET, paused, paused.until)
    assert (resumed.level, resumed.spent_kg) == ("run", 0.0)


def test_what_is_reserved_counts_until_it_is_settled_or_lost() -> None:
    record = reserve_carbon(NEW._replace(largest_kg=0.5), "run/a")
    assert record.reserved == {"run/a": 0.5}
    # Two running attempts and a third: the last one would go beyond the cap.
    both = reserve_carbon(record._replace(spent_kg=0.9), "run/b")
    assert decide(BUDGET, both._replace(period_start=start_of_period("month", NOON))).level == "pause"
    # The process died: its next attempt finds the reservation, which counts as spent.
    again = reserve_carbon(record, "run/a")
    assert (again.spent_kg, again.reserved) == (0.5, {"run/a": 0.5})
    assert settle_carbon(again, "run/a", 0.2).spent_kg == pytest.approx(0.7)


def test_the_first_attempt_under_a_cap_is_measured_before_many_run() -> None:
    record = reserve_carbon(decide(BUDGET, NEW), "run/a")
    waiting = decide(BUDGET, record)
    assert (waiting.level, waiting.reason) == ("slow", "no attempt under the cap has been measured yet")
    measured = decide(BUDGET._replace(min_dwell_s=0.0), settle_carbon(waiting, "run/a", 0.0))
    assert measured.level == "run"


def test_a_pause_by_running_attempts_is_looked_at_again_and_one_by_spent_carbon_lasts_the_period() -> None:
    ran = NEW._replace(period_start=start_of_period("month", NOON), largest_kg=0.5, is_measured=True)
    running = decide(BUDGET, ran._replace(spent_kg=1.0, reserved={"run/a": 0.6}))
    assert (running.level, running.until) == ("pause", NOON + BUDGET.recheck_s)
    assert decide(BUDGET, ran._replace(spent_kg=1.6)).until == end_of_period("month", NOON)
    # The running attempt began before the largest one was measured, and may be as large.
    assert decide(BUDGET, ran._replace(spent_kg=1.1, reserved={"run/a": 0.0})).level == "pause"


def test_a_reservation_outlives_one_end_of_a_period_and_not_two() -> None:
    first = reserve_carbon(decide(BUDGET, NEW._replace(largest_kg=0.5, is_measured=True)), "run/a")
    second = decide(BUDGET, first, end_of_period("month", NOON))
    assert (second.reserved, second.carried) == ({"run/a": 0.5}, ("run/a",))
    third = decide(BUDGET, second, end_of_period("month", second.period_start))
    assert (third.reserved, third.carried) == ({}, ())
    # A run that goes on reserves anew.
    assert reserve_carbon(second, "run/a").carried == ()


@given(st.integers(0, 60_000))
def test_periods_are_those_of_the_calendar(day: int) -> None:
    now = day * 86_400.0 + 12_345
    moment = datetime.fromtimestamp(now, UTC)
    month, year = moment.replace(day=1, hour=0, minute=0, second=0), datetime(moment.year, 1, 1, tzinfo=UTC)
    assert start_of_period("month", now) == month.timestamp()
    assert start_of_period("year", now) == year.timestamp()
    assert end_of_period("year", now) == datetime(moment.year + 1, 1, 1, tzinfo=UTC).timestamp()
    assert datetime.fromtimestamp(start_of_period("week", now), UTC).weekday() == 0
    assert end_of_period("week", now) - start_of_period("week", now) == 7 * 86_400
    assert end_of_period("day", now) == start_of_period("day", now) + 86_400 == (day + 1) * 86_400
    assert start_of_period("month", end_of_period("month", now)) == end_of_period("month", now) > now


# Permanent failures ---------------------------------------------------------------------------------


def test_a_permanent_failure_reaches_the_inbox_and_may_pause() -> None:
    failure = {"run": "a", "step": "report", "code": "SCHEMA_INVALID", "at": NOON}
    told = receive_failure(AutonomyRules(), NEW, failure, NOON)
    assert told.inbox == (failure,)
    assert decide(AutonomyRules(), told).level == "run"
    rules = AutonomyRules(on_permanent="pause")
    paused = decide(rules, receive_failure(rules, NEW, failure, NOON))
    assert (paused.level, paused.reason) == ("pause", "a permanent failure: SCHEMA_INVALID")
    assert paused.until == NOON + rules.recheck_s
    assert decide(rules, paused, NOON + 900).level == "run"
    many = NEW
    for number in range(30):
        many = receive_failure(rules, many, {**failure, "at": number}, NOON)
    assert len(many.inbox) == 20
