"""Whole calls, decided to their end under any policy and any run of bad luck.

The properties of single decisions are tested beside the core. Here an adversary fails every attempt in
the worst way it can think of, and the call must still end in time, in number, and without once
undercutting a provider. `make torture` tries twenty times as many adversaries.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.decide import Decision, Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Signals, Tuning

START = 1_700_000_000.0

seconds = st.floats(0, 10_000)
seeds = st.text(max_size=20)

schedules = st.one_of(
    st.builds(
        Schedule,
        st.just("exponential"),
        base=st.floats(0, 100),
        factor=st.floats(1, 1e6),
        exponent=st.sampled_from(("attempt", "attempt-1")),
    ),
    st.builds(Schedule, st.just("linear"), base=st.floats(0, 100)),
    st.builds(Schedule, st.just("fixed"), delays=st.lists(seconds, min_size=1, max_size=8).map(tuple)),
)
jitters = st.one_of(
    st.builds(Jitter, st.sampled_from(("none", "full", "equal", "decorrelated"))),
    st.builds(Jitter, st.just("additive"), amount=seconds),
    st.builds(Jitter, st.just("proportional"), amount=st.floats(0, 1)),
)
# Through a function, because `builds` would otherwise invent values for fields with a default.
tunings = st.builds(
    lambda stretch, buffer, bias: Tuning(max_stretch=stretch, min_buffer_s=buffer, deadline_bias=bias),
    st.floats(1, 5),
    st.floats(1, 10_000),
    st.booleans(),
)
policies = st.builds(
    Policy,
    max_attempts=st.integers(1, 12),
    schedule=schedules,
    jitter=jitters,
    max_delay_s=st.floats(100, 20_000),
    total_timeout_s=st.none() | st.floats(0.001, 100_000),
    retry_cost=st.floats(0, 3),
    tuning=st.none() | tunings,
)
failures = st.builds(
    lambda kind, asked: Failure(kind, retry_after=asked),
    st.sampled_from(("transient", "throttled")),
    st.none() | st.floats(0, 100) | st.sampled_from((None, None, 0.0, 30_000.0)),
)
signals = st.none() | st.builds(
    Signals,
    grid_intensity=st.none() | st.floats(0, 2_000),
    energy_price=st.none() | st.floats(0, 2),
    queue_depth=st.none() | st.floats(0, 1_000),
    parallelism=st.none() | st.floats(1, 100),
    error_budget=st.none() | st.floats(-1, 1),
)


@st.composite
def situations(draw: st.DrawFn, policy: Policy) -> list[Situation]:
    """Return one failed attempt after the other; each starts when the wait before it is over.

    Most calls meet no hold and no empty budget, or hardly one would see its third attempt.
    """
    seed = draw(seeds)
    expected = draw(st.none() | st.floats(0, 100))
    held = draw(st.sampled_from((False, False, False, True)))
    metered = draw(st.sampled_from((False, False, False, True)))
    deadline = draw(st.none() | st.floats(START - 10, START + 100_000))
    now, met = START, []
    for attempt in range(1, policy.max_attempts + 2):
        now += draw(st.floats(0, 100))
        at = Situation(
            attempt=attempt,
            failure=draw(failures),
            verdict="RETRYABLE",
            now=now,
            seed=seed,
            started_at=START,
            deadline=deadline,
            expected_s=expected,
            budget_tokens=draw(st.floats(0, 10)) if metered else None,
            hold_until=draw(st.floats(START - 10, START + 10_000)) if held else None,
            signals=draw(signals),
        )
        met.append(at)
        decided = decide_retry(policy, at)
        if decided.action != "retry":
            break
        now += decided.delay_s
    return met


calls = policies.flatmap(lambda policy: st.tuples(st.just(policy), situations(policy)))


def ends_of(policy: Policy, at: Situation) -> float:
    """The latest moment at which anything may still run."""
    own = math.inf if policy.total_timeout_s is None else START + policy.total_timeout_s
    return min(own, math.inf if at.deadline is None else at.deadline)


def holds(policy: Policy, at: Situation, decided: Decision) -> None:
    """What must be true of every single wait on the way."""
    assert 0 <= decided.delay_s < math.inf
    assert decided.delay_s <= policy.max_delay_s
    asked = at.failure.retry_after
    assert asked is None or decided.delay_s >= asked
    assert decided.delay_s <= ends_of(policy, at) - at.now - (at.expected_s or 0.0)
    assert at.budget_tokens is None or at.budget_tokens >= policy.retry_cost
    assert at.hold_until is None or at.hold_until <= at.now


@pytest.mark.req("BACKOFF-1", "BACKOFF-14", "BACKOFF-16")
@given(calls)
def test_a_call_ends_and_no_wait_on_the_way_breaks_a_bound(call: tuple[Policy, list[Situation]]) -> None:
    policy, met = call
    decisions = [decide_retry(policy, at) for at in met]
    assert len(met) <= policy.max_attempts
    assert [decided.action for decided in decisions[:-1]] == ["retry"] * (len(met) - 1)
    assert decisions[-1].action in {"stop", "defer"}
    assert decisions[-1].delay_s == 0
    for at, decided in zip(met[:-1], decisions[:-1], strict=True):
        holds(policy, at, decided)


@pytest.mark.req("PROD-5")
@given(calls)
def test_a_call_decided_again_from_its_record_gives_the_same_bytes(
    call: tuple[Policy, list[Situation]],
) -> None:
    policy, met = call
    again = policy.replace()
    for at in met:
        copy = Situation(*at)._replace(failure=Failure(*at.failure))
        assert decide_retry(policy, at).proof_bytes() == decide_retry(again, copy).proof_bytes()
        assert decide_retry(policy, at).explain() == decide_retry(again, copy).explain()
