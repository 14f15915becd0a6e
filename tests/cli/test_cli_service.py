"""What the service answers, without any presentation."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.errors import UsageError
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Signals, Tuning
from oncemore.policy.verdict import ErrorClasses
from oncemore.queries import to_plain
from oncemore.queries.keys import compute_key, parse_objects
from oncemore.queries.policy_compare import EXAMPLE_QUESTIONS, compare_policies
from oncemore.queries.policy_question import PolicyQuestion, answer_question
from oncemore.queries.policy_schedule import compute_worst_case, list_delays, sample_delays

LOOP = Policy(
    "kfm-loop", "retry-loop-v11.2", max_attempts=6, timeout_s=3600.0, max_delay_s=900.0,
    schedule=Schedule("exponential", 10.0, exponent="attempt"), jitter=Jitter("additive", 10.0),
    tuning=Tuning(), governed=True,
)  # fmt: skip

spreads = st.sampled_from(
    [Jitter("none"), Jitter("full"), Jitter("equal"), Jitter("decorrelated"), Jitter("additive", 3.0),
     Jitter("proportional", 0.2)]
)  # fmt: skip


@given(spreads, st.text(max_size=5), st.floats(0.01, 10), st.integers(2, 20))
def test_every_draw_lies_between_low_and_high(jitter: Jitter, seed: str, base: float, attempts: int) -> None:
    policy = Policy(max_attempts=attempts, schedule=Schedule("exponential", base), jitter=jitter)
    for wait, drawn in zip(list_delays(policy), sample_delays(policy, seed).delays_s, strict=True):
        assert wait.low_s <= drawn * (1 + 1e-12)
        assert drawn <= wait.high_s * (1 + 1e-12)
        assert wait.tuned_s is None


def test_the_worst_case_adds_up_the_longest_waits() -> None:
    found = compute_worst_case(LOOP)
    assert (found.calls, found.delay_s, found.tuned_s, found.stretch) == (6, 670.0, 1675.0, 2.5)
    assert found.delay_s == sum(wait.high_s for wait in list_delays(LOOP))
    assert found.asked_s == 5 * 900.0
    assert (found.running_s, found.together_s) == (6 * 3600.0, 6 * 3600.0 + 1675.0)


def test_tuning_is_held_at_its_own_limit_and_at_the_cap() -> None:
    clamped = LOOP.replace(tuning=Tuning(max_stretch=1.25))
    assert compute_worst_case(clamped).tuned_s == pytest.approx(670 * 1.25)
    generous = LOOP.replace(tuning=Tuning(max_stretch=100.0))
    assert compute_worst_case(generous).tuned_s == 1675.0, "carbon and price together stretch by 2.5 at most"
    capped = LOOP.replace(max_delay_s=400.0)
    assert [wait.tuned_s for wait in list_delays(capped)] == [75.0, 125.0, 225.0, 400.0, 400.0]


def test_a_limit_of_the_whole_call_bounds_the_worst_case() -> None:
    assert compute_worst_case(Policy(total_timeout_s=20.0)).together_s == 20.0
    assert compute_worst_case(Policy(total_timeout_s=20.0, timeout_s=60.0)).together_s == 20.0
    assert compute_worst_case(Policy(timeout_s=1.0)).together_s == 3 * 1.0 + 3.0
    assert compute_worst_case(Policy()).together_s is None, "attempts without a limit may take any time"


def test_one_attempt_waits_for_nothing() -> None:
    assert list_delays(Policy(max_attempts=1)) == ()
    assert compute_worst_case(Policy(max_attempts=1))[:2] == (1, 0)


# What would it do?


def test_an_answer_is_the_decision_that_the_library_would_take() -> None:
    answer = answer_question(LOOP, PolicyQuestion(attempt=3))
    assert (answer.action, answer.reason) == ("retry", "retry")
    assert answer.delay_s == pytest.approx(82.142307, abs=1e-6)
    assert json.loads(answer.canonical) == json.loads(json.dumps(answer.proof))
    assert "82.1423 s" in answer.explanation


def test_the_world_changes_the_answer() -> None:
    dirty = Signals(grid_intensity=620.0, energy_price=0.31)
    assert answer_question(LOOP, PolicyQuestion(signals=dirty)).delay_s == pytest.approx(
        21.213633 * 2.5, abs=1e-5
    )
    assert answer_question(LOOP, PolicyQuestion(retry_after_s=70.0)).delay_s == 70.0
    assert answer_question(LOOP, PolicyQuestion(retry_after_s=1000.0)).reason == "retry_after_beyond_cap"
    assert answer_question(LOOP, PolicyQuestion(deadline_in_s=0.5)).reason == "wait_beyond_deadline"
    assert answer_question(LOOP, PolicyQuestion(tokens=0.5)).reason == "retry_budget_empty"
    assert answer_question(LOOP, PolicyQuestion(attempt=6)).reason == "max_attempts_exceeded"
    assert (
        answer_question(LOOP.replace(total_timeout_s=60.0), PolicyQuestion(elapsed_s=61.0)).reason
        == "deadline_passed"
    )


def test_a_code_is_read_under_the_policy() -> None:
    only_429 = Policy(classes=ErrorClasses(retryable=("HTTP_429",)))
    assert answer_question(only_429, PolicyQuestion(code="HTTP_429")).action == "retry"
    assert answer_question(only_429, PolicyQuestion(code="HTTP_503")).reason == "not_retryable"
    assert answer_question(Policy(), PolicyQuestion(code="HTTP_503")).action == "retry"
    assert answer_question(Policy(), PolicyQuestion(code="HTTP_404")).reason == "not_retryable"
    assert answer_question(Policy(), PolicyQuestion(code="SCHEMA_INVALID")).reason == "not_retryable"
    assert (
        answer_question(Policy(), PolicyQuestion(code="HTTP_503", effect="once")).reason == "outcome_unknown"
    )


def test_the_seed_is_the_given_one_then_the_policys_then_the_runs() -> None:
    literal = Policy(jitter_seed="always")
    asked = {
        answer_question(policy, question).delay_s
        for policy in (Policy(), literal)
        for question in (PolicyQuestion(run_id="a"), PolicyQuestion(run_id="b"))
    }
    assert len(asked) == 3, "two runs differ under the template and agree under a literal"
    assert (
        answer_question(literal, PolicyQuestion(seed="mine")).delay_s
        == answer_question(Policy(), PolicyQuestion(seed="mine")).delay_s
    )


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(UsageError, match="attempt is 0"):
        answer_question(LOOP, PolicyQuestion(attempt=0))


# Two policies.


def test_a_policy_does_not_differ_from_itself_by_any_measure() -> None:
    found = compare_policies(LOOP, LOOP.replace(name="other", version="retry-loop-v11.3"))
    assert [change.field for change in found.fields] == ["name", "version"]
    assert found.same
    assert all(course.parts_at is None for course in found.courses)
    assert all(pair.a == pair.b for pair in found.schedule)


def test_a_changed_number_shows_as_field_schedule_and_decision() -> None:
    found = compare_policies(LOOP, LOOP.replace(max_attempts=7))
    assert [(change.field, change.a, change.b) for change in found.fields] == [("max_attempts", 6, 7)]
    assert not found.same
    assert found.schedule[5].a is None
    assert found.schedule[5].b is not None
    course = found.courses[0]
    assert course.parts_at == 6
    assert (course.a[5].reason, course.b[5].reason) == ("max_attempts_exceeded", "retry")


def test_a_changed_class_shows_only_in_decisions_and_its_field() -> None:
    stricter = Policy(classes=ErrorClasses(non_retryable=("HTTP_503",)))
    found = compare_policies(Policy(), stricter)
    assert all(pair.a == pair.b for pair in found.schedule)
    parted = {course.example for course in found.courses if course.parts_at}
    assert parted == {"HTTP 503", "HTTP 503, asked to wait 7 s"}
    assert parted < EXAMPLE_QUESTIONS.keys()


def test_waits_bring_the_deadline_nearer() -> None:
    policy = Policy(
        max_attempts=9, jitter=Jitter("none"), schedule=Schedule("fixed", delays=(20.0, 20.0, 21.0))
    )
    near = next(
        c for c in compare_policies(policy, policy).courses if c.example == "45 s before the deadline"
    )
    assert [step.reason for step in near.a] == ["retry", "retry", "wait_beyond_deadline"]


# Keys.

SAMPLE = {
    "operation": "kill_switch_update",
    "tenant_id": "tenant-123",
    "correlation_id": "corr-456",
    "additional_params": {"switch_name": "all_execution"},
}


def test_a_key_is_the_librarys() -> None:
    assert compute_key(SAMPLE).key == "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578"
    legacy = compute_key(SAMPLE, "legacy")
    assert legacy.key == "d5923fa44a7b8d95a2a6ce83a85292c5e7a3243498ee9c86a0294ffcef01bb76"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"operation": "a", "tenant": "b"}, "no part 'tenant' .did you mean tenant_id"),
        ({"tenant_id": "b"}, "operation is missing"),
        ({"operation": "a", "tenant_id": 7}, "tenant_id"),
        ({"operation": "a", "additional_params": [1]}, "additional_params"),
    ],
)
def test_parts_that_make_no_key_are_refused_by_name(parts: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compute_key(parts)  # type: ignore[arg-type]


def test_objects_may_stand_on_one_line_or_on_many() -> None:
    assert list(parse_objects('{"a": 1}{"b":\n2}\n\n {"c": 3}\n')) == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert list(parse_objects(" \n")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": }', "line 2, column 7"),
        ("[1]", "expected an object"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' stands twice"),
    ],
)
def test_what_is_not_objects_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(parse_objects(text))


def test_there_is_a_limit_to_how_many() -> None:
    assert len(list(parse_objects("{}" * 3, max_objects=3))) == 3
    with pytest.raises(UsageError, match="more than 3"):
        list(parse_objects("{}" * 4, max_objects=3))


def test_answers_become_plain_values() -> None:
    assert to_plain((PolicyQuestion(), {1: b"x"}, ...))[1:] == [{"1": "x"}, "Ellipsis"]  # type: ignore[index]
    json.dumps(to_plain(compare_policies(LOOP, Policy())))
