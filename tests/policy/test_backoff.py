"""Schedules, jitter and caps of delays."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.policy.backoff import (
    FULL_JITTER,
    NO_JITTER,
    SPREADS,
    Jitter,
    Schedule,
    delay_terms,
    jittered_delay,
    largest_delay,
    planned_delay,
)
from oncemore.policy.canonical_json import draw_uniform, run_seed
from oncemore.policy.policy import Policy

RUN = "0193a000-0000-7000-8000-000000000001"
SEED = "e5b98e905ec655bde09d063b91a602f256857065a49798c351aacc1f9015b68f"

KFM_LOOP = Policy(
    "kfm-loop", max_attempts=6, schedule=Schedule("exponential", 10.0, 2.0, "attempt"),
    jitter=Jitter("additive", 10.0), max_delay_s=900.0,
)  # fmt: skip
KFM_RULES = Policy(
    "kfm-rules", max_attempts=5, schedule=Schedule("exponential", 0.5, 2.0, "attempt"), jitter=FULL_JITTER,
    max_delay_s=30.0,
)  # fmt: skip
NATS_CONNECT = Policy(
    "NATS_CONNECT", max_attempts=5, schedule=Schedule("exponential", 1.0, 2.0, "attempt-1"),
    jitter=Jitter("proportional", 0.1), max_delay_s=30.0,
)  # fmt: skip


def delays(policy: Policy, seed: str = SEED) -> list[float]:
    numbers = range(1, policy.max_attempts)
    return [jittered_delay(policy.schedule, policy.jitter, policy.max_delay_s, seed, n) for n in numbers]


def test_the_seed_of_a_run_is_the_hash_of_its_id() -> None:
    assert run_seed(RUN) == SEED


@pytest.mark.req("BACKOFF-15")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (KFM_LOOP, [21.213633, 49.584878, 82.142307, 169.361387, 321.516047]),
        (KFM_RULES, [0.121363, 1.916976, 0.856923, 7.489109]),
        (NATS_CONNECT, [0.924273, 2.183395, 3.771385, 8.697822]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_published_vectors_hold_to_six_decimals(policy: Policy, expected: list[float]) -> None:
    assert [round(draw_uniform(SEED, n), 6) for n in range(1, 6)] == [
        0.121363,
        0.958488,
        0.214231,
        0.936139,
        0.151605,
    ]
    assert [round(delay, 6) for delay in delays(policy)] == expected


@pytest.mark.req("BACKOFF-5")
def test_full_jitter_fills_its_ceiling_evenly() -> None:
    for n, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0)):
        drawn = sorted(
            jittered_delay(KFM_RULES.schedule, FULL_JITTER, 30.0, run_seed(f"run-{k}"), n) / ceiling
            for k in range(10_000)
        )
        assert drawn[0] >= 0
        assert drawn[-1] <= 1
        # Kolmogorov-Smirnov: p > 0.01 for 10,000 draws means a distance below 1.63 / sqrt(n).
        distance = max(max((i + 1) / 10_000 - x, x - i / 10_000) for i, x in enumerate(drawn))
        assert distance < 1.63 / math.sqrt(10_000)


@pytest.mark.req("BACKOFF-6")
def test_additive_jitter_of_zero_gives_the_plain_exponential() -> None:
    bare = KFM_LOOP.replace(jitter=Jitter("additive", 0.0))
    assert delays(bare) == [20, 40, 80, 160, 320]
    assert bare.max_delay_s == 900


def test_additive_jitter_is_capped_after_it_is_added() -> None:
    tight = KFM_LOOP.replace(max_delay_s=45.0)
    assert delays(tight)[1:] == [45.0] * 4


@pytest.mark.req("BACKOFF-8")
def test_proportional_jitter_moves_each_delay_within_its_fraction() -> None:
    default = Policy(max_attempts=5, jitter=Jitter("proportional", 0.1))
    for n, middle in enumerate((1.0, 2.0, 4.0, 8.0), 1):
        seen = [delays(default, run_seed(str(k)))[n - 1] for k in range(100)]
        assert middle * 0.9 <= min(seen)
        assert max(seen) <= middle * 1.1
        assert max(seen) - min(seen) > middle * 0.1  # more than half of the range
    assert delays(default.replace(jitter=NO_JITTER)) == [1, 2, 4, 8]


def test_proportional_jitter_never_exceeds_the_cap() -> None:
    policy = Policy(max_attempts=20, jitter=Jitter("proportional", 1.0), max_delay_s=10.0)
    seen = [delay for k in range(50) for delay in delays(policy, str(k))]
    assert max(seen) == 10.0
    assert min(seen) >= 0.0


@pytest.mark.req("BACKOFF-9")
def test_a_linear_schedule_grows_by_its_step() -> None:
    schedule = Schedule("linear", 0.25)
    assert [planned_delay(schedule, n) for n in (1, 2, 3)] == [0.25, 0.5, 0.75]


def test_a_fixed_schedule_repeats_its_last_delay() -> None:
    schedule = Schedule("fixed", delays=(2.0, 10.0, 30.0))
    assert [planned_delay(schedule, n) for n in range(1, 6)] == [2, 10, 30, 30, 30]


@pytest.mark.req("BACKOFF-13")
def test_the_custom_policy_for_critical_operations_works_as_printed() -> None:
    critical = Policy(
        max_attempts=5, schedule=Schedule("exponential", 2.0, 1.5), max_delay_s=60.0,
        jitter=Jitter("proportional", 0.2),
    )  # fmt: skip
    for seed in map(str, range(100)):
        for delay, middle in zip(delays(critical, seed), (2, 3, 4.5, 6.75), strict=True):
            assert middle * 0.8 <= delay <= middle * 1.2


def test_equal_jitter_never_waits_less_than_half() -> None:
    policy = Policy(max_attempts=6, jitter=Jitter("equal"))
    for seed in map(str, range(200)):
        for n, delay in enumerate(delays(policy, seed), 1):
            assert 0.5 * 2 ** (n - 1) <= delay <= 2 ** (n - 1)


def test_decorrelated_jitter_lies_between_the_base_and_three_times_the_delay_before() -> None:
    policy = Policy(max_attempts=12, schedule=Schedule("exponential", 0.5), jitter=Jitter("decorrelated"))
    for seed in map(str, range(200)):
        before = 0.5
        for delay in delays(policy, seed):
            assert 0.5 <= delay <= min(30.0, 3 * before)
            before = delay


@pytest.mark.req("BACKOFF-18")
def test_many_callers_that_fail_at_once_retry_at_different_times() -> None:
    tenths = [0] * 10
    for k in range(1000):
        delay = jittered_delay(KFM_RULES.schedule, FULL_JITTER, 30.0, run_seed(f"caller-{k}"), 1)
        tenths[int(delay / 1.0 * 10)] += 1
    assert max(tenths) <= 150


def test_a_huge_exponent_is_held_at_the_cap_instead_of_overflowing() -> None:
    schedule = Schedule("exponential", 1.0, 1e6)
    assert jittered_delay(schedule, NO_JITTER, 30.0, "", 1000) == 30.0
    assert jittered_delay(Schedule("exponential", 0.0, 1e6), NO_JITTER, 30.0, "", 1000) == 0.0
    assert planned_delay(schedule, 1000) == planned_delay(schedule, 51) == 1e300
    assert largest_delay(schedule, Jitter("decorrelated"), 30.0, 1000) == 30.0


@given(
    shape=st.sampled_from(["exponential", "linear", "fixed"]),
    spread=st.sampled_from([*SPREADS, "decorrelated"]),
    base=st.floats(0, 1e4),
    factor=st.floats(1, 1e3),
    cap=st.floats(0, 1e5),
    amount=st.floats(0, 1),
    seed=st.text(max_size=8),
    n=st.integers(1, 1000),
)
def test_no_delay_is_ever_negative_or_above_the_cap_or_above_the_announced_worst_case(
    shape: str, spread: str, base: float, factor: float, cap: float, amount: float, seed: str, n: int
) -> None:
    schedule = Schedule(shape, base, factor, "attempt", (base, base * 2))  # type: ignore[arg-type]
    jitter = Jitter(spread, amount)  # type: ignore[arg-type]
    delay = jittered_delay(schedule, jitter, max(cap, base), seed, n)
    assert 0 <= delay <= max(cap, base)
    assert delay <= largest_delay(schedule, jitter, max(cap, base), n) * (1 + 1e-12)
    assert delay == jittered_delay(schedule, jitter, max(cap, base), seed, n)
    assert delay == delay_terms(schedule, jitter, max(cap, base), seed, n)[2]


def test_draws_of_one_seed_are_spread_over_the_unit_interval() -> None:
    seed = str(random.Random(1).random())
    drawn = [draw_uniform(seed, n) for n in range(1, 1001)]
    assert 0 <= min(drawn) < 0.01
    assert 0.99 < max(drawn) < 1
    assert 0.45 < sum(drawn) / 1000 < 0.55
