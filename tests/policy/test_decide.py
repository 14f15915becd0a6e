"""Decisions: bounded, never too early, never too late, and byte-identical when repeated."""

import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.errors import UsageError
from oncemore.policy.backoff import FULL_JITTER, NO_JITTER, Jitter, Schedule
from oncemore.policy.canonical_json import encode_canonical
from oncemore.policy.decide import Decision, Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Signals, Tuning

PLAIN = Policy(
    "plain", max_attempts=4, schedule=Schedule("fixed", delays=(5.0, 10.0, 20.0)), jitter=NO_JITTER
)


def failed(attempt: int = 1, retry_after: float | None = None, **more: object) -> Situation:
    failure = Failure("transient", "maybe", retry_after, "HTTP_503", "http:status")
    return Situation(attempt, failure, "RETRYABLE", 1000.0, **more)  # type: ignore[arg-type]


def shown(decision: Decision) -> tuple[object, ...]:
    return decision.action, decision.reason, decision.delay_s, decision.not_before


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (failed(1), ("retry", "retry", 5.0, 1005.0)),
        (failed(3), ("retry", "retry", 20.0, 1020.0)),
        (failed(4), ("stop", "max_attempts_exceeded", 0.0, None)),
        (failed(4, 7.0), ("stop", "max_attempts_exceeded", 0.0, 1007.0)),
        (failed(1, 7.0), ("retry", "retry", 7.0, 1007.0)),
        (failed(1, 3.0), ("retry", "retry", 5.0, 1005.0)),
        (failed(1, 30.0), ("retry", "retry", 30.0, 1030.0)),
        (failed(1, 31.0), ("defer", "retry_after_beyond_cap", 0.0, 1031.0)),
        (failed(1, 31.0, deadline=1020.0), ("stop", "retry_after_beyond_deadline", 0.0, 1031.0)),
        (failed(1, 6.0, deadline=1005.5), ("stop", "retry_after_beyond_deadline", 0.0, 1006.0)),
        (failed(1, deadline=1005.0), ("stop", "wait_beyond_deadline", 0.0, 1005.0)),
        (failed(1, deadline=1005.1), ("retry", "retry", 5.0, 1005.0)),
        (failed(1, deadline=999.0), ("stop", "deadline_passed", 0.0, None)),
        (failed(1, deadline=1000.0), ("stop", "deadline_passed", 0.0, None)),
        (failed(3, deadline=1030.0, expected_s=20.0), ("retry", "retry", 10.0, 1010.0)),
        (failed(1, deadline=1015.0, expected_s=20.0), ("stop", "deadline_passed", 0.0, None)),
        (failed(1, hold_until=1300.0, hold_reason="breaker open"), ("defer", "held", 0.0, 1300.0)),
        (failed(1, hold_until=999.0), ("retry", "retry", 5.0, 1005.0)),
        (failed(1, budget_tokens=0.5), ("stop", "retry_budget_empty", 0.0, None)),
        (failed(1, budget_tokens=1.0), ("retry", "retry", 5.0, 1005.0)),
    ],
)
def test_the_table_of_decisions(situation: Situation, expected: tuple[object, ...]) -> None:
    assert shown(decide_retry(PLAIN, situation)) == expected


@pytest.mark.parametrize(
    ("verdict", "action", "reason"),
    [
        ("TERMINAL", "stop", "not_retryable"),
        ("QUARANTINE", "quarantine", "quarantined"),
        ("UNKNOWN", "quarantine", "outcome_unknown"),
    ],
)
def test_a_failure_that_is_not_retryable_stops_after_the_first_attempt(
    verdict: str, action: str, reason: str
) -> None:
    decision = decide_retry(PLAIN, failed()._replace(verdict=verdict))  # type: ignore[arg-type]
    assert (decision.action, decision.reason, decision.delay_s) == (action, reason, 0.0)


def test_no_delay_and_no_attempt_starts_that_cannot_finish_in_time() -> None:
    long = PLAIN.replace(schedule=Schedule("fixed", delays=(60.0,)))
    assert decide_retry(long, failed(deadline=1030.0, expected_s=20.0)).delay_s == 10.0
    assert decide_retry(long, failed(deadline=1015.0, expected_s=20.0)).action == "stop"


def test_the_policys_own_limit_counts_from_the_start_of_the_call() -> None:
    limited = PLAIN.replace(total_timeout_s=12.0)
    assert decide_retry(limited, failed(1, started_at=995.0)).action == "retry"
    assert decide_retry(limited, failed(1, started_at=990.0)).reason == "wait_beyond_deadline"
    assert (
        decide_retry(limited, failed(1, started_at=995.0, deadline=1004.0)).reason == "wait_beyond_deadline"
    )
    assert decide_retry(limited, failed(1)).action == "retry"


@pytest.mark.req("BACKOFF-14")
def test_no_delay_follows_the_last_attempt() -> None:
    for most in range(1, 8):
        policy = PLAIN.replace(max_attempts=most)
        decisions = [decide_retry(policy, failed(n)) for n in range(1, most + 1)]
        assert [d.action for d in decisions] == ["retry"] * (most - 1) + ["stop"]
        assert decisions[-1].delay_s == 0.0


@pytest.mark.req("BACKOFF-2")
def test_one_attempt_means_one_call_and_no_delay() -> None:
    assert shown(decide_retry(PLAIN.replace(max_attempts=1), failed(1))) == (
        "stop",
        "max_attempts_exceeded",
        0.0,
        None,
    )


policies = st.builds(
    Policy,
    max_attempts=st.integers(1, 50),
    schedule=st.builds(
        Schedule,
        st.sampled_from(["exponential", "linear", "fixed"]),
        st.floats(0, 100),
        st.floats(1, 10),
        st.sampled_from(["attempt", "attempt-1"]),
        st.lists(st.floats(0, 100), min_size=1, max_size=5).map(tuple),
    ),
    jitter=st.sampled_from(
        [
            NO_JITTER,
            FULL_JITTER,
            Jitter("equal"),
            Jitter("additive", 3.0),
            Jitter("proportional", 0.3),
            Jitter("decorrelated"),
        ]
    ),
    max_delay_s=st.floats(100, 1000),
    total_timeout_s=st.none() | st.floats(0.1, 1e4),
    tuning=st.none() | st.just(Tuning()),
)
situations = st.builds(
    Situation,
    attempt=st.integers(1, 60),
    failure=st.builds(
        Failure, st.sampled_from(["transient", "throttled"]), st.sampled_from(["no", "maybe"]),
        st.none() | st.floats(0, 5000),
    ),
    verdict=st.sampled_from(["RETRYABLE", "RETRYABLE", "TERMINAL", "UNKNOWN"]),
    now=st.floats(1e9, 2e9),
    seed=st.text(max_size=5),
    started_at=st.none() | st.floats(1e9, 2e9),
    deadline=st.none() | st.floats(1e9, 2e9),
    expected_s=st.none() | st.floats(0, 1000),
    budget_tokens=st.none() | st.floats(0, 5),
    hold_until=st.none() | st.floats(1e9, 2e9),
    signals=st.none() | st.builds(
        Signals, *[st.none() | st.floats(0, 1000)] * 5
    ),
)  # fmt: skip


@pytest.mark.unmeasured
@given(policies, situations)
def test_never_unbounded_never_early_never_late(policy: Policy, at: Situation) -> None:
    decision = decide_retry(policy, at)
    if decision.action != "retry":
        assert decision.delay_s == 0.0
        return
    assert at.attempt < policy.max_attempts
    assert at.verdict == "RETRYABLE"
    assert 0 <= decision.delay_s <= policy.max_delay_s
    assert decision.not_before == at.now + decision.delay_s
    if at.failure.retry_after is not None:
        assert decision.delay_s >= at.failure.retry_after
    if at.deadline is not None:
        assert decision.delay_s <= at.deadline - at.now - (at.expected_s or 0.0)
    if at.hold_until is not None:
        assert at.hold_until <= at.now
    if at.budget_tokens is not None:
        assert at.budget_tokens >= policy.retry_cost


@pytest.mark.unmeasured
@given(policies, situations)
def test_same_inputs_same_bytes(policy: Policy, at: Situation) -> None:
    again = Situation(*at)
    copy = policy.replace()
    decision = decide_retry(policy, at)
    assert decision.proof_bytes() == decide_retry(copy, again).proof_bytes()
    assert decision.proof_bytes() == encode_canonical(decision.proof())
    json.loads(decide_retry(policy, at).proof_bytes())


def test_a_proof_of_odd_texts_and_whole_numbers_has_the_same_bytes_both_ways() -> None:
    odd = Failure("transient", "no", 7, 'E"\\\u0007é', "rule\n")
    at = Situation(
        1, odd, "RETRYABLE", 1000, 'se"ed', 999, 2000, 3, 5, None, 'held"', Signals(1.0, 2.0, 3.0, 4.0, 5.0)
    )
    decision = decide_retry(PLAIN.replace(tuning=Tuning(), name='po"licy'), at)
    assert decision.proof_bytes() == encode_canonical(decision.proof())
    final = decide_retry(PLAIN, at._replace(verdict="TERMINAL"))
    assert final.proof()["terms"] is None
    assert final.proof_bytes() == encode_canonical(final.proof())
    with pytest.raises(UsageError, match="surrogate"):
        decide_retry(PLAIN, at._replace(seed="\ud800")).proof_bytes()


@pytest.mark.unmeasured
@given(policies, st.integers(0, 2**32))
def test_a_call_that_always_fails_ends(policy: Policy, seed: int) -> None:
    failure = Failure("transient")
    for attempt in itertools.count(1):
        assert attempt <= policy.max_attempts
        if decide_retry(policy, Situation(attempt, failure, "RETRYABLE", 0.0, str(seed))).action != "retry":
            break


SCRIPT = """
from oncemore.policy.backoff import *; from oncemore.policy.decide import *
from oncemore.policy.model import *
from oncemore.policy.policy import *
from oncemore.policy.canonical_json import run_seed as seed_of; import sys
p = Policy("p", max_attempts=6, schedule=Schedule("exponential", 10.0, 2.0, "attempt"),
           jitter=Jitter("additive", 10.0), max_delay_s=900.0)
for n in range(1, 7):
    f = Failure("transient", "maybe", None, "HTTP_503", "http:status")
    s = Situation(n, f, "RETRYABLE", 1.8e9 + n, seed_of(sys.argv[1]), 1.8e9)
    sys.stdout.buffer.write(decide_retry(p, s).proof_bytes() + b"\\n")
"""


def proofs(run: str, **environment: str) -> bytes:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, run], env=env, capture_output=True, check=True, cwd="/"
    ).stdout


@pytest.mark.req("PROD-5")
def test_proofs_are_the_same_in_other_processes_and_differ_only_by_the_draw_between_runs() -> None:
    here = proofs("run-1", PYTHONHASHSEED="0", TZ="UTC", LC_ALL="C")
    assert here == proofs("run-1", PYTHONHASHSEED="77", TZ="Asia/Kolkata", LC_ALL="C.UTF-8")
    other = proofs("run-2", PYTHONHASHSEED="0", TZ="UTC", LC_ALL="C")
    assert other != here
    drawn = {"seed", "u", "jittered_s", "delay_s", "not_before", "sentence"}
    for one, two in zip(here.splitlines(), other.splitlines(), strict=True):
        assert without(json.loads(one), drawn) == without(json.loads(two), drawn)


def without(value: object, names: set[str]) -> object:
    if isinstance(value, dict):
        return {name: without(inner, names) for name, inner in value.items() if name not in names}
    return value
