"""Policies of the exoarmur document: its fields, its checks, its order of classification."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import pytest

import oncemore
from oncemore.classifiers.classify import classify
from oncemore.errors import PolicyError, PolicyWarning
from oncemore.policy import files
from oncemore.policy.backoff import jittered_delay
from oncemore.profiles.exoarmur import RetryCategory, RetryError, RetryManager, RetryPolicy
from oncemore.profiles.exoarmur.policy import READING_CATEGORIES, VERDICT_CATEGORIES, builtin_categories

DEFAULTS = {
    "max_attempts": 3, "base_delay": 1.0, "max_delay": 30.0, "backoff_multiplier": 2.0,
    "jitter_enabled": True, "jitter_factor": 0.1, "retryable_exceptions": [Exception],
    "non_retryable_exceptions": [],
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "max_attempts": 7, "base_delay": 0.25, "max_delay": 60.0, "backoff_multiplier": 3.0,
    "jitter_enabled": False, "jitter_factor": 0.5, "retryable_exceptions": [OSError],
    "non_retryable_exceptions": [KeyError],
}  # fmt: skip


@pytest.mark.req("API-1")
def test_a_policy_is_a_dataclass_with_the_documents_fields_and_defaults() -> None:
    assert dataclasses.is_dataclass(RetryPolicy)
    plain = dataclasses.asdict(RetryPolicy())
    assert {name: plain[name] for name in DEFAULTS} == DEFAULTS
    documented = [field.name for field in dataclasses.fields(RetryPolicy) if not field.kw_only]
    assert documented == list(DEFAULTS)
    ours = {field.name: field.default for field in dataclasses.fields(RetryPolicy) if field.kw_only}
    assert ours == {"timeout_s": None, "precedence": "non_retryable_first", "unmatched": "retry"}
    for name, value in OTHERS.items():
        assert getattr(RetryPolicy(**{name: value}), name) == value
    assert RetryPolicy(5, 2.0, 60.0) == RetryPolicy(max_attempts=5, base_delay=2.0, max_delay=60.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        RetryPolicy().max_attempts = 5  # type: ignore[misc]


@pytest.mark.req("API-2")
def test_a_category_is_a_string_enum_of_17_codes() -> None:
    assert len(list(RetryCategory)) == 17
    assert RetryCategory.KV_GET == "RETRY_KV_GET"
    odd = [member.value for member in RetryCategory if member.value != f"RETRY_{member.name}"]
    assert odd == ["REPLAY_REPLAY_PROCESSING", "REPLAY_REPLAY_VALIDATION"]


@pytest.mark.req("BACKOFF-12")
def test_the_17_policies_are_those_of_the_document() -> None:
    table = """
        NATS_CONNECT           RETRY_NATS_CONNECT           5  1.0  30.0
        NATS_PUBLISH           RETRY_NATS_PUBLISH           3  0.5  10.0
        NATS_SUBSCRIBE         RETRY_NATS_SUBSCRIBE         3  0.5  10.0
        NATS_STREAM_CREATE     RETRY_NATS_STREAM_CREATE     2  2.0  60.0
        KV_CREATE              RETRY_KV_CREATE              2  1.0  30.0
        KV_GET                 RETRY_KV_GET                 3  0.5  10.0
        KV_PUT                 RETRY_KV_PUT                 3  0.5  10.0
        KV_DELETE              RETRY_KV_DELETE              2  1.0  30.0
        EXECUTION_INTENT       RETRY_EXECUTION_INTENT       2  2.0  60.0
        EXECUTION_CONTAINMENT  RETRY_EXECUTION_CONTAINMENT  2  2.0  60.0
        EXECUTION_EXPIRATION   RETRY_EXECUTION_EXPIRATION   1  1.0  30.0
        APPROVAL_CHECK         RETRY_APPROVAL_CHECK         3  1.0  30.0
        APPROVAL_GRANT         RETRY_APPROVAL_GRANT         2  2.0  60.0
        REPLAY_PROCESSING      REPLAY_REPLAY_PROCESSING     1  1.0  30.0
        REPLAY_VALIDATION      REPLAY_REPLAY_VALIDATION     2  1.0  30.0
        API_REQUEST            RETRY_API_REQUEST            3  1.0  30.0
        API_VALIDATION         RETRY_API_VALIDATION         2  0.5  10.0
    """
    rows = [line.split() for line in table.strip().splitlines()]
    manager = RetryManager()
    assert [row[:2] for row in rows] == [[member.name, member.value] for member in RetryCategory]
    for name, _, attempts, base, cap in rows:
        policy = manager.get_policy(name)
        assert (policy.max_attempts, policy.base_delay, policy.max_delay) == (
            int(attempts),
            float(base),
            float(cap),
        )
        assert (policy.backoff_multiplier, policy.jitter_enabled, policy.jitter_factor) == (2.0, True, 0.1)


def test_the_numbers_come_from_the_packaged_profile_with_a_timeout_each() -> None:
    for name, category in builtin_categories().items():
        assert category.rules == files.policy(f"exoarmur/{name}")
        assert (category.rules.name, category.rules.version) == (category.code, "1.0")
        assert category.policy.to_policy(category.code).schedule == category.rules.schedule
    limits = {"NATS": 5, "KV": 5, "EXECUTION": 30, "APPROVAL": 30, "API": 30, "REPLAY": 300}
    for name, category in builtin_categories().items():
        assert category.policy.timeout_s == limits[name.partition("_")[0]]


def test_every_category_is_known_to_read_or_to_act() -> None:
    kinds = {name: category.kind for name, category in builtin_categories().items()}
    assert {name for name, kind in kinds.items() if kind == "reading"} == READING_CATEGORIES
    assert len(READING_CATEGORIES) == 6
    assert VERDICT_CATEGORIES < READING_CATEGORIES


@pytest.mark.req("API-10")
@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_attempts", 0, "a whole number from 1 to 1000"),
        ("max_attempts", math.inf, "a whole number from 1"),
        ("max_attempts", None, "a whole number from 1"),
        ("max_attempts", True, "a whole number from 1"),
        ("max_attempts", 2.0, "a whole number from 1"),
        ("base_delay", -0.1, "a number from 0 up"),
        ("base_delay", math.inf, "a number from 0 up"),
        ("base_delay", math.nan, "a number from 0 up"),
        ("base_delay", "1", "a number from 0 up"),
        ("base_delay", 31, "a number from 0 to max_delay, 30"),
        ("max_delay", -1, "a number from 0 up"),
        ("backoff_multiplier", 0.9, "a number from 1 up"),
        ("jitter_factor", -0.1, "a number from 0 to 1"),
        ("jitter_factor", 1.1, "a number from 0 to 1"),
        ("jitter_factor", True, "a number from 0 to 1"),
        ("jitter_enabled", 1, "True or False"),
        ("retryable_exceptions", [ValueError("an instance")], "a list of exception types"),
        ("retryable_exceptions", [int], "a list of exception types"),
        ("retryable_exceptions", OSError, "a list of exception types"),
        ("retryable_exceptions", [KeyboardInterrupt], "free of cancellation and interrupts"),
        ("non_retryable_exceptions", ["ValueError"], "a list of exception types"),
        ("timeout_s", 0, "more than 0, or None"),
        ("timeout_s", -1, "a number from 0 up"),
        ("precedence", "first", "non_retryable_first or retryable_first"),
        ("unmatched", True, "retry or fail"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_policy_is_refused_with_field_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(PolicyError) as caught:
        RetryPolicy(**{field: value})
    assert str(caught.value).startswith(f"{field} is ")
    assert f"it must be {allowed}" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_attempts": 11}, "up to 11 calls"),
        ({"base_delay": 0.0}, "delays do not grow"),
        ({"backoff_multiplier": 1.0}, "delays do not grow"),
        ({"backoff_multiplier": 1.0, "jitter_enabled": False}, "the delay never grows and has no jitter"),
        (
            {"retryable_exceptions": [KeyError], "non_retryable_exceptions": [LookupError]},
            "KeyError is in both",
        ),
    ],
    ids=str,
)
def test_an_unwise_policy_is_made_with_one_warning_at_the_line_that_made_it(fields: Any, text: str) -> None:
    with pytest.warns(PolicyWarning, match=text) as told:
        RetryPolicy(**fields)
    assert [warning.filename for warning in told] == [__file__]


def test_a_wise_policy_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RetryPolicy()
        RetryPolicy(max_attempts=1, base_delay=0.0)
        RetryPolicy(max_attempts=2, backoff_multiplier=1.0)
        RetryPolicy(non_retryable_exceptions=[ValueError])
        RetryPolicy(retryable_exceptions=(OSError,))  # type: ignore[arg-type]
        RetryPolicy(retryable_exceptions=[BaseException])


def delays(policy: RetryPolicy, seed: str) -> list[float]:
    rules = policy.to_policy()
    numbers = range(1, rules.max_attempts)
    return [jittered_delay(rules.schedule, rules.jitter, rules.max_delay_s, seed, n) for n in numbers]


@pytest.mark.req("BACKOFF-8", "TEST-3")
def test_delays_grow_are_spread_by_their_factor_and_held_at_the_maximum() -> None:
    many = [delays(RetryPolicy(max_attempts=5), f"seed {number}") for number in range(100)]
    for at, (low, high) in enumerate([(0.9, 1.1), (1.8, 2.2), (3.6, 4.4), (7.2, 8.8)]):
        column = [row[at] for row in many]
        assert all(low <= delay <= high for delay in column)
        assert max(column) - min(column) > (high - low) / 2
    assert delays(RetryPolicy(max_attempts=5, jitter_enabled=False), "any") == [1.0, 2.0, 4.0, 8.0]
    capped = [
        delay
        for number in range(100)
        for delay in delays(RetryPolicy(max_attempts=8, max_delay=4.0), f"seed {number}")
    ]
    assert max(capped) == 4.0


@pytest.mark.req("BACKOFF-13")
def test_the_documents_policy_for_critical_operations_works_as_given() -> None:
    policy = RetryPolicy(
        max_attempts=5, base_delay=2.0, max_delay=60.0, backoff_multiplier=1.5, jitter_enabled=True,
        jitter_factor=0.2,
    )  # fmt: skip
    for number in range(100):
        for delay, middle in zip(delays(policy, f"seed {number}"), [2, 3, 4.5, 6.75], strict=True):
            assert middle * 0.8 <= delay <= middle * 1.2


class Refused(ValueError):
    pass


class Stranger(Exception):
    pass


def covered(policy: RetryPolicy, error: Exception, *, strict: bool = False) -> bool:
    return policy.make_covers(strict)(error, classify(error, 0.0))


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ValueError(), False), (Refused(), False), (TypeError(), False), (KeyError(), False),
        (OSError(), True), (Stranger(), True),
    ],
    ids=repr,
)  # fmt: skip
def test_the_non_retryable_list_comes_first_and_holds_for_subclasses(error: Exception, again: bool) -> None:
    policy = RetryPolicy(non_retryable_exceptions=[ValueError, TypeError, KeyError])
    assert covered(policy, error) is again


@pytest.mark.parametrize(
    ("unmatched", "error", "again"),
    [
        ("retry", Stranger(), True),
        ("fail", Stranger(), False),
        ("fail", OSError(), True),
        ("fail", oncemore.AttemptTimeout("cut off"), True),
    ],
)
def test_an_unlisted_error_is_decided_by_unmatched(unmatched: Any, error: Exception, again: bool) -> None:
    assert covered(RetryPolicy(retryable_exceptions=[OSError], unmatched=unmatched), error) is again


@pytest.mark.parametrize(
    "error",
    [
        oncemore.PolicyViolation("SCHEMA_INVALID"), oncemore.PermanentError(), oncemore.UsageError("wrong"),
        MemoryError(), RetryError("RETRY_KV_GET", 3, "inner"), oncemore.DeadlineExceeded("late"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_some_errors_are_final_under_every_policy(error: Exception) -> None:
    policy = RetryPolicy(retryable_exceptions=[type(error), Exception])
    assert not covered(policy, error)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TimeoutError(), True), (ConnectionRefusedError(), True), (oncemore.AttemptTimeout("cut off"), True),
        (oncemore.TransientError(), True), (ValueError("invalid"), False), (Stranger("invalid"), False),
        (AssertionError(), False),
    ],
    ids=repr,
)  # fmt: skip
def test_a_verdict_is_not_requested_twice(error: Exception, again: bool) -> None:
    assert covered(RetryPolicy(), error, strict=True) is again


def test_a_type_that_a_list_names_counts_also_where_a_catch_all_does_not() -> None:
    assert covered(RetryPolicy(retryable_exceptions=[Stranger]), Stranger(), strict=True)
    never = RetryPolicy(non_retryable_exceptions=[TimeoutError])
    assert not covered(never, TimeoutError(), strict=True)
