"""The record of a resource, and what becomes of it: values in, values out."""

from __future__ import annotations

import ast
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.errors import UsageError
from oncemore.limits.cooldown_rules import (
    ACQUISITION,
    OUTCOMES,
    VALIDATION,
    CooldownSchedule,
    ResourceOutcome,
    ResourceRecord,
    after_execution,
    after_release,
    check_record,
    derive_state,
    import_record,
    resource_of,
    schedule_for,
    skip_reason,
)

REST = CooldownSchedule()
EIGHT = (
    "acquisition_status", "validation_status", "attempt_count_total", "last_attempt_at",
    "last_attempt_outcome", "last_error_fingerprint", "next_eligible_attempt_at",
    "last_successful_fingerprint",
)  # fmt: skip


def after(
    outcome: str, before: ResourceRecord | None = None, now: float = 1000.0, **more: Any
) -> ResourceRecord:
    return after_execution(before, "p", ResourceOutcome(outcome, now, "A", "fetch", "run/k", 1, **more), REST)


@pytest.mark.req("COOL-2")
def test_the_record_has_all_eight_fields_and_refuses_any_other_value() -> None:
    assert set(EIGHT) <= set(ResourceRecord._fields)
    good = ResourceRecord(resource="p")
    for field, allowed in (
        ("acquisition_status", ACQUISITION),
        ("validation_status", VALIDATION),
        ("last_attempt_outcome", OUTCOMES),
    ):
        for value in allowed:
            assert check_record(good._replace(**{field: value}))
        for value in ("RETRYABLE", "VALIDATED", "valid", None, 1):
            with pytest.raises(UsageError, match=f"{field} is .*must be one of {allowed[0]}"):
                check_record(good._replace(**{field: value}))
    for field, value in (
        ("attempt_count_total", -1), ("attempt_count_total", 1.0), ("attempt_count_total", True),
        ("last_attempt_at", -1.0), ("next_eligible_attempt_at", float("nan")),
        ("next_eligible_attempt_at", True), ("last_error_fingerprint", None), ("resource", ""),
        ("resource", "a\nb"), ("resource", "x" * 201),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=field):
            check_record(good._replace(**{field: value}))


#: The code that names a scientific field, and the one comparison with a value that each may make. Whether a
#: product is there is not retryability; everything else would be.
READS_SCIENCE = {
    "limits/cooldown_rules.py": {
        "VALID",
        "QUARANTINED",
    },  # "released" makes QUARANTINED bytes unvalidated again
    "limits/cooldowns.py": {"VALID"},
    "profiles/nova_cat/state_machine.py": set(),
    "profiles/nova_cat/steps.py": set(),
    "cli/cooldowns.py": set(),
    "demo/nova_cat_demo.py": set(),
}


@pytest.mark.req("CLASS-20")
def test_scientific_state_holds_no_retry_term_and_nothing_derives_retryability_from_it() -> None:
    terms = ("RETRY", "TERMINAL", "TRANSIENT", "PERMANENT", "COOL", "HELD", "SKIP")
    assert not [word for word in (*ACQUISITION, *VALIDATION) if any(term in word for term in terms)]

    source, found = Path(oncemore.__file__).parent, {}
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "acquisition_status" in text or "validation_status" in text:
            found[path.relative_to(source).as_posix()] = {
                value.value
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Compare)
                and getattr(node.left, "attr", "") in ("acquisition_status", "validation_status")
                for value in node.comparators
                if isinstance(value, ast.Constant)
            }
    assert found == READS_SCIENCE, "a new reader of scientific state must not decide about retries by it"

    for outcome, released_at, now in itertools.product((*OUTCOMES, ""), (0.0, 5.0), (0.0, 1e9)):
        operational: dict[str, Any] = {
            "last_attempt_outcome": outcome, "released_at": released_at, "next_eligible_attempt_at": 1000.0,
        }  # fmt: skip
        answers = {
            skip_reason(ResourceRecord(acquisition_status=one, validation_status=other, **operational), now)
            for one, other in itertools.product(ACQUISITION, ("UNVALIDATED", "QUARANTINED"))
        }
        assert len(answers) == 1, "the same operational state gives the same answer"
    for outcome in OUTCOMES:
        for one, other in itertools.product(ACQUISITION, VALIDATION):
            before = ResourceRecord(resource="p", acquisition_status=one, validation_status=other)
            made, plain = after(outcome, before), after(outcome)
            assert made.last_attempt_outcome == outcome
            assert made.next_eligible_attempt_at == plain.next_eligible_attempt_at


@pytest.mark.req("X-17")
def test_validated_is_read_as_valid() -> None:
    made = import_record("p", {"validation_status": "VALIDATED", "acquisition_status": "ACQUIRED"})
    assert (made.validation_status, made.state) == ("VALID", "DONE")
    assert skip_reason(made, 0.0) == "SKIPPED_DUPLICATE"
    assert import_record("p", {"last_attempt_at": None}) == ResourceRecord(resource="p")
    with pytest.raises(UsageError, match="retries is not a field of a resource"):
        import_record("p", {"retries": 3})


# The checks -----------------------------------------------------------------------------------------


@pytest.mark.req("COOL-4")
def test_a_millisecond_before_its_time_it_is_left_alone_and_at_its_time_it_is_not() -> None:
    cooling = after("RETRYABLE_FAILURE")
    at = cooling.next_eligible_attempt_at
    assert skip_reason(cooling, at - 0.001) == "SKIPPED_BACKOFF"
    assert skip_reason(cooling, at) == ""


@pytest.mark.req("COOL-5")
def test_the_checks_are_made_in_their_order() -> None:
    late = {"next_eligible_attempt_at": 9e9}
    valid = ResourceRecord(validation_status="VALID", last_attempt_outcome="QUARANTINE", **late)  # type: ignore[arg-type]
    assert skip_reason(valid, 0.0) == "SKIPPED_DUPLICATE"
    assert skip_reason(valid._replace(validation_status="QUARANTINED"), 0.0) == "SKIPPED_QUARANTINED"
    terminal = ResourceRecord(last_attempt_outcome="TERMINAL_FAILURE", **late)  # type: ignore[arg-type]
    assert skip_reason(terminal, 0.0) == "SKIPPED_TERMINAL"
    assert skip_reason(ResourceRecord(**late), 0.0) == "SKIPPED_BACKOFF"  # type: ignore[arg-type]
    assert skip_reason(ResourceRecord(), 0.0) == skip_reason(None, 0.0) == ""


# What becomes of it ---------------------------------------------------------------------------------


@pytest.mark.req("COOL-9")
def test_the_four_outcomes_leave_their_values() -> None:
    done = after("SUCCESS", after("RETRYABLE_FAILURE"), content="sha256:51ab")
    assert done[2:5] == ("ACQUIRED", "VALID", 2)
    assert (done.last_attempt_outcome, done.last_successful_fingerprint) == ("SUCCESS", "sha256:51ab")
    assert (done.next_eligible_attempt_at, done.state) == (0.0, "DONE")
    passing = after("RETRYABLE_FAILURE", error_fingerprint="f", error_class="HTTP_429")
    assert passing[2:9] == ("FAILED", "UNVALIDATED", 1, 1000.0, "RETRYABLE_FAILURE", "f", 1300.0)
    was = ResourceRecord(resource="p", validation_status="QUARANTINED", released_at=1.0)
    assert after("RETRYABLE_FAILURE", was).validation_status == "QUARANTINED", "it stays as it was"
    final = after("TERMINAL_FAILURE")
    assert (final[2:5], final.state) == (("FAILED", "UNVALIDATED", 1), "HELD")
    doubt = after("QUARANTINE", kept=True)
    assert (doubt[2:5], doubt.state) == (("ACQUIRED", "QUARANTINED", 1), "HELD")
    assert after("QUARANTINE")[2:4] == ("FAILED", "UNVALIDATED"), "there are no bytes to review"


@pytest.mark.req("COOL-6", "COOL-7")
def test_cooldowns_double_up_to_their_cap_and_stay_there() -> None:
    record, waits = None, []
    for number in range(1, 13):
        record = after("RETRYABLE_FAILURE", record, now=1e6 * number)
        assert record.attempt_count_total == number
        waits.append(record.next_eligible_attempt_at - 1e6 * number)
    assert waits == [300, 600, 1200, 2400, 4800, 9600, 19200, 38400, 76800, 86400, 86400, 86400]


@pytest.mark.req("COOL-6")
def test_the_longest_wish_wins() -> None:
    assert after("RETRYABLE_FAILURE", retry_after=200.0).next_eligible_attempt_at == 1300.0
    assert after("RETRYABLE_FAILURE", retry_after=900.0).next_eligible_attempt_at == 1900.0
    longer = ResourceRecord(resource="p", next_eligible_attempt_at=5000.0)
    assert after("RETRYABLE_FAILURE", longer).next_eligible_attempt_at == 5000.0


@pytest.mark.req("COOL-10")
def test_a_release_lets_it_be_asked_for_and_forgets_no_count() -> None:
    for outcome in ("QUARANTINE", "TERMINAL_FAILURE", "RETRYABLE_FAILURE"):
        held = after(outcome, kept=True)
        free = after_release(held, 1001.0)
        assert skip_reason(held, 1000.5)
        assert (skip_reason(free, 1001.0), free.state, free.attempt_count_total) == ("", "READY", 1)
        assert free.last_attempt_outcome == outcome, "what happened stays true"
        assert skip_reason(after(outcome, free, now=1002.0, kept=True), 1002.0), (
            "and the next failure holds again"
        )


def test_the_state_follows_from_the_other_fields_whatever_happens() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(300):
        record, now, count = None, 1000.0, 0
        for _ in range(chance.randrange(1, 8)):
            now += chance.uniform(0.0, 5000.0)
            if record is not None and chance.random() < 0.2 and record.state in ("HELD", "COOLING"):
                record = after_release(record, now)
            elif not skip_reason(record, now):
                record, count = (
                    after(chance.choice(OUTCOMES), record, now, kept=chance.random() < 0.5),
                    count + 1,
                )
            assert record is None or (record.state, record.attempt_count_total) == (
                derive_state(record),
                count,
            )


# What a user says -----------------------------------------------------------------------------------


@pytest.mark.req("COOL-7")
def test_a_provider_may_have_numbers_of_its_own() -> None:
    made = oncemore.Cooldown("p", base_s=10, overrides={"eso": {"base_s": 900, "cap_s": 1000}})
    assert schedule_for(made, "mast") == CooldownSchedule(10.0, 2.0, 86_400.0)
    assert schedule_for(made, "eso") == CooldownSchedule(900.0, 2.0, 1000.0)
    by_policy = {"": CooldownSchedule(1.0, 3.0, 50.0), "cfa": CooldownSchedule(7.0)}
    plain = oncemore.Cooldown("p")
    assert (schedule_for(plain, "x", by_policy), schedule_for(plain, "cfa", by_policy)) == (
        by_policy[""],
        by_policy["cfa"],
    )
    assert schedule_for(plain) == CooldownSchedule(300.0, 2.0, 86_400.0)
    assert hash(made) == hash(oncemore.Cooldown("p", base_s=10, overrides={"eso": {}}))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"resource": ""}, "resource is ''"),
        ({"resource": 7}, "resource is 7"),
        ({"resource": "p", "base_s": -1}, "base_s is -1"),
        ({"resource": "p", "cap_s": float("inf")}, "cap_s is inf"),
        ({"resource": "p", "multiplier": 0.5}, "multiplier is 0.5; it must be a number from 1"),
        ({"resource": "p", "multiplier": True}, "multiplier is True"),
        ({"resource": "p", "overrides": {"eso": 3}}, "overrides is .*by provider"),
        ({"resource": "p", "overrides": {"": {}}}, "overrides is"),
        ({"resource": "p", "overrides": {"eso": {"jitter": 1}}}, "overrides of eso: jitter is not a number"),
        ({"resource": "p", "overrides": {"eso": {"base_s": "x"}}}, "overrides of eso: base_s is 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_birth(told: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        oncemore.Cooldown(**told)


def test_what_a_call_asks_for_is_a_text_or_nothing() -> None:
    by_call = oncemore.Cooldown(lambda product, **more: product)
    assert (
        resource_of(by_call, ("p",), {"x": 1}),
        resource_of(by_call, (None,), {}),
        resource_of(by_call, ("",), {}),
    ) == ("p", "", "")
    assert resource_of(oncemore.Cooldown("the station"), (1, 2), {}) == "the station"
    with pytest.raises(UsageError, match="failures is 0"):
        REST.delay_s(0)
