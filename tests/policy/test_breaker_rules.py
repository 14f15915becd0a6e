"""The circuit breaker's transitions, its probe, and the failures that count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oncemore.errors import PolicyError
from oncemore.limits import breaker_rules
from oncemore.limits.breaker_rules import (
    EVENTS,
    MOVES,
    PASS,
    PROBE,
    STATES,
    BreakerRefusal,
    BreakerRules,
    ProbeHolder,
)
from oncemore.log.record import BreakerRecord
from oncemore.policy.model import Failure

RULES = BreakerRules(failures=3, cooldown_s=300.0)
NEW = BreakerRecord(name="stac")
DOWN = Failure("transient", "maybe", None, "HTTP_503", "test")
SLOW = Failure("throttled", "no", 7.0, "HTTP_429", "test")
WRONG = Failure("permanent", "maybe", None, "HTTP_404", "test")


def after(
    *events: str, rules: BreakerRules = RULES, circuit: BreakerRecord = NEW, now: float = 1000.0
) -> BreakerRecord:
    for event in events:
        made = {"passed": breaker_rules.after_success, "failed": breaker_rules.after_failure}[event]
        circuit = made(rules, circuit, now)
    return circuit


def opened(now: float = 1000.0) -> BreakerRecord:
    return after("failed", "failed", "failed", now=now)


def half_open(now: float = 1300.0) -> BreakerRecord:
    return breaker_rules.take_probe(RULES, opened(), now, ProbeHolder("w1", "run/a", 4, 60.0))


# The table ------------------------------------------------------------------------------------------


def test_every_transition_of_the_table_is_possible_and_no_other() -> None:
    states = {"CLOSED": after("failed"), "OPEN": opened(), "HALF_OPEN": half_open()}
    for state in STATES:
        for event in EVENTS:
            if (state, event) in MOVES:
                assert (
                    breaker_rules.apply_event(RULES, states[state], event, 2000.0).state
                    == MOVES[state, event]
                )  # type: ignore[arg-type]
            else:
                with pytest.raises(KeyError):
                    breaker_rules.apply_event(RULES, states[state], event, 2000.0)  # type: ignore[arg-type]


def test_an_event_that_is_not_in_the_table_changes_nothing() -> None:
    for circuit in (opened(), half_open()):
        assert breaker_rules.after_success(RULES, circuit, 2000.0) is circuit
        assert breaker_rules.after_failure(RULES, circuit, 2000.0) is circuit
        assert breaker_rules.after_probe_release(RULES, circuit, 2000.0, 0) is circuit
    assert breaker_rules.after_probe_release(RULES, NEW, 2000.0, 0) is NEW
    assert breaker_rules.after_success(RULES, NEW, 2000.0) is NEW


@pytest.mark.req("BREAK-2")
def test_the_breaker_opens_after_three_consecutive_failures() -> None:
    assert (BreakerRules().failures, BreakerRules().cooldown_s) == (3, 300.0)
    assert after("failed", "failed", "passed", "failed", "failed").state == "CLOSED"
    circuit = opened()
    assert (circuit.state, circuit.open_until, circuit.open_count, circuit.last_error_code) == (
        "OPEN",
        1300.0,
        1,
        "",
    )
    assert after("failed", "failed").failures == 2


def test_an_open_breaker_refuses_all_calls_until_its_time_and_then_admits_one_probe() -> None:
    circuit = opened()
    assert breaker_rules.decide_admission(circuit, 1299.999) == BreakerRefusal(1300.0)
    assert breaker_rules.decide_admission(circuit, 1300.0) is PROBE
    probing = half_open()
    assert (
        probing.state,
        probing.probe_number,
        probing.probe_worker,
        probing.probe_entity,
        probing.probe_fence,
    ) == (
        "HALF_OPEN",
        1,
        "w1",
        "run/a",
        4,
    )
    assert breaker_rules.decide_admission(probing, 1301.0) == BreakerRefusal(1331.0, probing=True)
    assert breaker_rules.decide_admission(probing, 1359.0) == BreakerRefusal(
        1360.0, probing=True
    )  # no longer than its lease
    assert breaker_rules.decide_admission(NEW, 0.0) is PASS


def test_a_probe_whose_holder_is_dead_or_late_is_taken_over() -> None:
    probing = half_open()
    assert breaker_rules.decide_admission(probing, 1301.0, held=False) is PROBE
    assert breaker_rules.decide_admission(probing, 1360.0) is PROBE
    second = breaker_rules.take_probe(RULES, probing, 1360.0, ProbeHolder("w2", "run/b", 1, 60.0))
    assert (second.probe_number, second.probe_worker) == (2, "w2")
    assert breaker_rules.after_success(RULES, second, 1361.0, 1) is second  # the first one comes back
    assert breaker_rules.after_failure(RULES, second, 1361.0, 1) is second
    assert breaker_rules.after_probe_release(RULES, second, 1361.0, 1) is second
    assert breaker_rules.after_success(RULES, second, 1361.0, 2).state == "CLOSED"


def test_the_outcome_of_a_probe_opens_or_closes_the_breaker() -> None:
    closed = breaker_rules.after_success(RULES, half_open(), 1305.0, 1)
    assert (closed.state, closed.failures, closed.open_until, closed.probe_worker, closed.probe_entity) == (
        "CLOSED",
        0,
        0.0,
        "",
        "",
    )
    again = breaker_rules.after_failure(RULES, half_open(), 1305.0, 1, "HTTP_500")
    assert (again.state, again.open_until, again.open_count, again.last_error_code) == (
        "OPEN",
        1605.0,
        2,
        "HTTP_500",
    )
    given_back = breaker_rules.after_probe_release(RULES, half_open(), 1305.0, 1)
    assert (given_back.state, given_back.open_count) == ("OPEN", 1)
    assert breaker_rules.decide_admission(given_back, 1305.0) is PROBE


def test_a_reset_closes_the_breaker_and_ignores_a_running_probe() -> None:
    for circuit in (opened(), half_open(), after("failed")):
        closed = breaker_rules.after_reset(RULES, circuit, 1310.0)
        assert (closed.state, closed.failures) == ("CLOSED", 0)
        assert breaker_rules.after_failure(RULES, closed, 1311.0, circuit.probe_number).failures == 1


def test_a_clock_that_was_set_back_does_not_lengthen_the_cooldown() -> None:
    assert breaker_rules.decide_admission(opened(now=10_000.0), 0.0) == BreakerRefusal(300.0)


def test_records_describe_the_breaker() -> None:
    assert [breaker_rules.is_open(one) for one in (None, NEW, opened(), half_open())] == [
        False,
        False,
        True,
        True,
    ]
    assert [breaker_rules.is_clean(one) for one in (None, NEW, after("failed"), opened())] == [
        True,
        True,
        False,
        False,
    ]


# A rate ---------------------------------------------------------------------------------------------


def test_a_failure_rate_opens_the_breaker_after_enough_calls() -> None:
    rules = BreakerRules(rate=0.5, window_s=60.0, minimum_calls=4)
    circuit = NEW
    for event in ("failed", "failed", "passed"):
        circuit = after(event, rules=rules, circuit=circuit)
    assert circuit.state == "CLOSED"
    assert after("failed", rules=rules, circuit=circuit).state == "OPEN"
    assert (
        after("passed", rules=rules, circuit=circuit).state == "CLOSED"
    )  # two of four only count at a failure
    assert not breaker_rules.is_clean(after("passed", rules=rules))


def test_calls_older_than_the_window_do_not_count() -> None:
    rules = BreakerRules(rate=0.5, window_s=60.0, minimum_calls=4)
    circuit = after("failed", "failed", "failed", rules=rules, now=1000.0)
    assert sum(slot[0] for slot in circuit.windows.values()) == 3
    later = after("failed", rules=rules, circuit=circuit, now=1061.0)
    assert (later.state, sum(slot[0] for slot in later.windows.values())) == ("CLOSED", 1)
    assert after("failed", rules=rules, circuit=circuit, now=1050.0).state == "OPEN"


def test_successful_calls_may_be_reported_together() -> None:
    rules = BreakerRules(rate=0.5, window_s=60.0, minimum_calls=4)
    circuit = breaker_rules.after_success(rules, NEW, 1000.0, calls=30)
    for _ in range(5):
        circuit = breaker_rules.after_failure(rules, circuit, 1001.0, calls=2)
    assert circuit.state == "CLOSED"
    assert sum(slot[0] for slot in circuit.windows.values()) == 45


# What counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "verdict", "action", "already", "probe", "counts"),
    [
        (DOWN, "RETRYABLE", "retry", False, False, True),
        (DOWN, "RETRYABLE", "retry", True, False, False),  # once for each operation
        (DOWN, "RETRYABLE", "stop", True, False, False),
        (DOWN, "UNKNOWN", "quarantine", False, False, True),
        (DOWN, "TERMINAL", "stop", False, False, False),
        (WRONG, "TERMINAL", "stop", False, False, False),
        (WRONG, "UNKNOWN", "quarantine", False, False, False),
        (SLOW, "RETRYABLE", "retry", False, False, False),  # asked less instead
        (SLOW, "RETRYABLE", "defer", False, False, True),
        (SLOW, "RETRYABLE", "stop", False, False, True),
        (SLOW, "RETRYABLE", "retry", False, True, True),
        (DOWN, "RETRYABLE", "retry", True, True, True),
        (WRONG, "TERMINAL", "stop", False, True, False),
    ],
)
def test_what_counts_as_a_failure(
    failure: Failure, verdict: Any, action: Any, already: bool, probe: bool, counts: bool
) -> None:
    assert breaker_rules.counts_as_failure(RULES, failure, verdict, action, already, probe) is counts


def test_under_attempts_every_failed_call_counts() -> None:
    rules = BreakerRules(counts="attempts")
    assert breaker_rules.counts_as_failure(rules, DOWN, "RETRYABLE", "retry", True, False)
    assert not breaker_rules.counts_as_failure(rules, WRONG, "TERMINAL", "stop", True, False)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"failures": 0}, "failures of a breaker is 0; it takes a whole number from 1"),
        ({"failures": True}, "failures of a breaker is True"),
        ({"minimum_calls": 1.5}, "minimum_calls of a breaker is 1.5"),
        ({"cooldown_s": 0}, "cooldown_s of a breaker is 0; it takes seconds above 0"),
        ({"cooldown_s": "5"}, "cooldown_s of a breaker is '5'"),
        ({"window_s": float("inf")}, "window_s of a breaker is inf"),
        ({"counts": "calls"}, "count of a breaker is 'calls'; the choices are operations, attempts"),
        ({"rate": 0}, "rate of a breaker is 0; it takes a part of 1"),
        ({"rate": True}, "rate of a breaker is True"),
        ({"rate": 1.5}, "rate of a breaker is 1.5"),
    ],
)
def test_rules_that_make_no_sense_are_refused(told: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        breaker_rules.check_rules(BreakerRules(**told))


# Anything, in any order -----------------------------------------------------------------------------


class Anything(RuleBasedStateMachine):
    """Callers ask, return or die in any order: there is at most one probe, and none before its time."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = BreakerRules(failures=2, cooldown_s=10.0)
        self.circuit, self.now = NEW, 1000.0
        self.through: list[int] = []  # calls under way, by the number of their probe; 0 for a usual one
        self.alive = True
        self.streak = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 5.0, 10.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def somebody_asks(self) -> None:
        before = self.circuit
        answer = breaker_rules.decide_admission(before, self.now, held=self.alive)
        if type(answer) is BreakerRefusal:
            assert before.state != "CLOSED"
            assert answer.until > self.now
            return
        if answer is PROBE:
            assert before.open_until <= self.now or not self.alive
            self.circuit = breaker_rules.take_probe(
                self.rules, before, self.now, ProbeHolder("w", "r", 1, 60.0)
            )
            self.alive = True
            self.through.append(self.circuit.probe_number)
        else:
            assert before.state == "CLOSED"
            self.through.append(0)

    @precondition(lambda self: self.through)
    @rule(at=st.integers(0, 99), how=st.sampled_from(["passed", "failed", "released"]))
    def somebody_comes_back(self, at: int, how: str) -> None:
        turn = self.through.pop(at % len(self.through))
        before = self.circuit
        if how == "released":
            self.circuit = breaker_rules.after_probe_release(self.rules, before, self.now, turn)
        else:
            self.circuit = {"passed": breaker_rules.after_success, "failed": breaker_rules.after_failure}[
                how
            ](self.rules, before, self.now, turn)
        if before.state == "HALF_OPEN" and turn != before.probe_number:
            assert self.circuit is before  # only its probe moves it
        if before.state == "OPEN":
            assert self.circuit is before
        if before.state == "CLOSED" and how != "released":
            self.streak = 0 if how == "passed" else self.streak + 1
            assert (self.circuit.state == "OPEN") == (self.streak >= 2)
        if self.circuit.state == "CLOSED" and before.state != "CLOSED":
            self.streak = 0

    @precondition(lambda self: self.circuit.state == "HALF_OPEN")
    @rule()
    def the_holder_dies(self) -> None:
        self.alive = False

    @rule()
    def a_person_resets_it(self) -> None:
        self.circuit, self.streak = breaker_rules.after_reset(self.rules, self.circuit, self.now), 0

    @invariant()
    def it_makes_sense(self) -> None:
        circuit = self.circuit
        assert circuit.state in STATES
        assert (circuit.probe_worker != "") == (circuit.state == "HALF_OPEN")
        assert circuit.state != "CLOSED" or circuit.failures < 2
        assert len([turn for turn in self.through if turn and turn == circuit.probe_number]) <= 1


TestAnything = Anything.TestCase
