"""A policy is checked when it is created; every error names the field and the allowed values."""

import math

import pytest

from oncemore.errors import PolicyError
from oncemore.policy import policy as policies
from oncemore.policy.backoff import NO_JITTER, Jitter, Schedule
from oncemore.policy.policy import STANDARD, Policy
from oncemore.policy.tuning import Tuning


@pytest.mark.req("API-10", "TEST-1")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is 0; it must be a whole number from 1 to 1000"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"max_attempts": None}, "max_attempts is None"),
        ({"max_attempts": math.inf}, "max_attempts is inf"),
        ({"max_attempts": 2.5}, "max_attempts is 2.5"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"max_attempts": 1001}, "from 1 to 1000"),
        ({"schedule": Schedule("exponential", -1.0)}, "schedule.base is -1.0; it must be a number from 0"),
        ({"schedule": Schedule("exponential", math.inf)}, "schedule.base is inf"),
        ({"schedule": Schedule("exponential", math.nan)}, "schedule.base is nan"),
        (
            {"schedule": Schedule("exponential", 1.0, 0.5)},
            "schedule.factor is 0.5; it must be a number from 1",
        ),
        ({"schedule": Schedule("exponential", 60.0)}, "max_delay_s is 30 but the first delay is 60"),
        ({"schedule": Schedule("exponential", 1.0, 2.0, "n")}, "schedule.exponent is 'n'; it must be one of"),
        (
            {"schedule": Schedule("cubic")},
            "schedule is 'cubic'; it must be one of exponential, linear, fixed",
        ),
        ({"schedule": Schedule("fixed")}, "schedule.delays is empty"),
        ({"schedule": Schedule("fixed", delays=(1.0, -2.0))}, "schedule.delays, number 2, is -2.0"),
        ({"schedule": Schedule("exponential", 1.0, cap=-1.0)}, "schedule.cap is -1.0"),
        ({"max_delay_s": -1}, "max_delay_s is -1"),
        ({"max_delay_s": math.inf}, "max_delay_s is inf"),
        ({"jitter": Jitter("wild")}, "jitter is 'wild'; it must be one of none, full, equal"),
        ({"jitter": Jitter("proportional", 1.5)}, "jitter.amount is 1.5; it must be a number from 0 to 1"),
        ({"jitter": Jitter("proportional", -0.1)}, "jitter.amount is -0.1"),
        ({"jitter": Jitter("additive", "2")}, "jitter.amount is '2'"),
        ({"jitter_seed": ""}, "jitter_seed is ''; it must be <sha256(run_id)>"),
        ({"jitter_seed": "<md5(run_id)>"}, "jitter_seed is '<md5(run_id)>'"),
        ({"timeout_s": 0}, "timeout_s is 0; it must be more than 0"),
        ({"timeout_s": -3}, "timeout_s is -3"),
        ({"total_timeout_s": False}, "total_timeout_s is False"),
        ({"retry_cost": -1}, "retry_cost is -1"),
        ({"unmatched": "maybe"}, "unmatched is 'maybe'; it must be one of retry, fail"),
        ({"tuning": Tuning(carbon_low=600.0)}, "tuning.carbon_high must be above tuning.carbon_low"),
        ({"tuning": Tuning(max_stretch=0.5)}, "tuning.max_stretch is 0.5; it must be 1 or more"),
        ({"tuning": Tuning(min_buffer_s=0)}, "tuning.min_buffer_s is 0; it must be more than 0"),
        ({"tuning": Tuning(price_peak=-1)}, "tuning.price_peak is -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_refused_by_name_with_its_range(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**fields)  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "timeout_s is missing"),
        ({"timeout_s": 5.0, "unmatched": "retry"}, "unmatched is 'retry'"),
        (
            {"timeout_s": 5.0, "schedule": Schedule("exponential", 1.0, 1.0), "jitter": NO_JITTER},
            "grow up to the cap",
        ),
        (
            {"timeout_s": 5.0, "schedule": Schedule("fixed", delays=(0.0,)), "jitter": NO_JITTER},
            "grow up to the cap",
        ),
    ],
)
def test_governed_policies_are_held_to_the_stricter_rules(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Policy(governed=True, **fields)  # type: ignore[arg-type]


def test_a_constant_delay_is_refused_when_governed_and_a_warning_elsewhere() -> None:
    constant = {"schedule": Schedule("exponential", 2.0, 1.0), "jitter": NO_JITTER, "timeout_s": 5.0}
    with pytest.raises(PolicyError, match="grow up to the cap"):
        Policy(governed=True, **constant)  # type: ignore[arg-type]
    assert "never grows" in " ".join(Policy(**constant).warnings())  # type: ignore[arg-type]
    assert (
        Policy(max_attempts=2, schedule=Schedule("fixed", delays=(1.0,)), jitter=NO_JITTER).warnings() == []
    )


def test_a_good_governed_policy_is_made() -> None:
    governed = Policy(governed=True, timeout_s=5.0)
    assert (governed.governed, governed.max_crashes, Policy().max_crashes) == (True, None, 20)
    with pytest.raises(PolicyError, match="max_crashes is 20; a governed policy counts"):
        Policy(governed=True, timeout_s=5.0, max_crashes=20)
    with pytest.raises(PolicyError, match="max_crashes is 0"):
        Policy(max_crashes=0)
    assert governed.to_dict().keys().isdisjoint({"max_crashes"}), "its digest is that of older logs"
    assert Policy().digest != Policy(max_crashes=None).digest
    assert governed.governed


def test_the_standard_policy_is_as_settled() -> None:
    assert STANDARD.max_attempts == 3
    assert STANDARD.max_delays() == [1.0, 2.0]
    assert STANDARD.max_delay_s == 30.0
    assert (STANDARD.timeout_s, STANDARD.total_timeout_s, STANDARD.unmatched) == (None, None, "fail")
    assert not STANDARD.governed
    assert STANDARD.warnings() == []


@pytest.mark.parametrize(
    ("schedule", "jitter", "cap", "total"),
    [
        (Schedule("exponential", 10.0, 2.0, "attempt"), Jitter("additive", 10.0), 900.0, 670.0),
        (Schedule("exponential", 1.0), Jitter("proportional", 0.1), None, 1.1 + 2.2 + 4.4 + 8.8 + 17.6),
        (Schedule("exponential", 1.0), Jitter("equal"), None, 31.0),
        (Schedule("exponential", 1.0), Jitter("decorrelated"), None, 3.0 + 9.0 + 27.0 + 30.0 + 30.0),
        (Schedule("fixed", delays=(10.0, 60.0, 180.0)), NO_JITTER, None, 10.0 + 60.0 + 3 * 180.0),
    ],
)
def test_the_worst_case_is_the_sum_of_the_longest_delays(
    schedule: Schedule, jitter: Jitter, cap: float | None, total: float
) -> None:
    policy = Policy(max_attempts=6, schedule=schedule, jitter=jitter, max_delay_s=cap)
    assert policy.max_total_delay_s == pytest.approx(total)


@pytest.mark.req("BACKOFF-20")
@pytest.mark.parametrize(
    "policy",
    [Policy(max_attempts=11), Policy(max_attempts=5, schedule=Schedule("fixed", delays=(1000.0,)))],
)
def test_large_bounds_are_flagged_with_their_worst_case(policy: Policy) -> None:
    text = " ".join(policy.warnings())
    assert f"up to {policy.max_attempts} calls" in text
    assert f"{policy.max_total_delay_s:g} s of waiting" in text


def test_a_changed_schedule_brings_its_own_cap() -> None:
    slow = STANDARD.replace(schedule=Schedule("fixed", delays=(10.0, 180.0)))
    assert slow.max_delay_s == 180.0
    assert slow.replace(max_attempts=5).max_delay_s == 180.0
    assert STANDARD.replace(schedule=Schedule("exponential", 1.0, cap=7.0)).max_delay_s == 7.0
    long = Schedule("fixed", delays=(40.0,))
    assert Policy(schedule=long, jitter=Jitter("additive", 2.0)).max_delay_s == 42.0
    assert Policy(schedule=long, jitter=Jitter("proportional", 0.5)).max_delay_s == 60.0
    assert Policy(schedule=long, jitter=Jitter("full")).max_delay_s == 40.0


def test_a_digest_means_the_fields() -> None:
    assert Policy("a").digest == Policy("a").digest
    assert Policy("a").digest != Policy("a", max_attempts=4).digest
    assert len({Policy("a", tuning=Tuning()).digest, Policy("a").digest}) == 2


def test_the_cache_of_policy_facts_is_bounded() -> None:
    for n in range(policies._MAX_CACHED_FACTS + 5):
        policies.policy_facts(Policy(f"policy-{n}"))
    assert len(policies._facts_cache) <= policies._MAX_CACHED_FACTS
