"""Verdicts on failures: violations first, then the policy's lists, then the kind."""

import pytest

from oncemore.errors import VIOLATIONS, PolicyError, PolicyViolation, UsageError
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.verdict import (
    CLASS_GROUPS,
    UNMATCHED,
    ErrorClasses,
    decide_verdict,
    find_forbidden,
    forbids_retry,
    matches_class,
)


def fact(code: str, kind: str = "permanent", rule: str = "http:status") -> Failure:
    return Failure(kind, "maybe", None, code, rule)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", VIOLATIONS)
def test_no_policy_makes_a_violation_retryable(code: str) -> None:
    generous = Policy(classes=ErrorClasses(retryable=("TRANSIENT",)), unmatched="retry")
    meant = "QUARANTINE" if code == "CHECKSUM_MISMATCH" else "TERMINAL"
    for kind in ("transient", "permanent"):
        assert decide_verdict(fact(code, kind), generous, "pure") == meant
        assert decide_verdict(fact(code, kind), Policy(unmatched="retry"), "pure") == meant
    for name in (code, code[:5] + "*"):
        with pytest.raises(PolicyError, match=rf"{code}.*may never be retried"):
            Policy(classes=ErrorClasses(retryable=(name,)))


@pytest.mark.parametrize(
    ("name", "code", "fits"),
    [
        ("HTTP_503", "HTTP_503", True),
        ("HTTP_503", "HTTP_500", False),
        ("HTTP_5xx", "HTTP_507", True),
        ("HTTP_5xx", "HTTP_404", False),
        ("HTTP_5xx", "HTTP_5", False),
        ("SQLSTATE_40*", "SQLSTATE_40001", True),
        ("SQLSTATE_40*", "SQLSTATE_23505", False),
        ("NETWORK_TIMEOUT", "TIMEOUT_READ", True),
        ("NETWORK_TIMEOUT", "GRPC_DEADLINE_EXCEEDED", True),
        ("NETWORK_TIMEOUT", "DEADLINE", False),
        ("IO_CONTENTION", "SQLITE_BUSY_SNAPSHOT", True),
        ("THROTTLED", "HTTP_429", True),
        ("PERMANENT", "HTTP_429", False),
    ],
)
def test_a_class_is_a_code_a_pattern_a_kind_or_a_group(name: str, code: str, fits: bool) -> None:
    assert matches_class(fact(code, "throttled"), [name]) is fits


def test_the_lists_are_read_in_order_and_the_rest_is_unmatched() -> None:
    both = ErrorClasses(retryable=("HTTP_5xx",), non_retryable=("HTTP_501",))
    policy = Policy(classes=both)
    assert decide_verdict(fact("HTTP_503"), policy, "pure") == "RETRYABLE"
    assert decide_verdict(fact("HTTP_501"), policy, "pure") == "TERMINAL"
    assert decide_verdict(fact("HTTP_429", "throttled"), policy, "pure") == "TERMINAL"
    assert (
        decide_verdict(fact("HTTP_429", "throttled"), policy.replace(unmatched="retry"), "pure")
        == "RETRYABLE"
    )
    lenient = policy.replace(classes=both._replace(precedence="retryable_first"))
    assert decide_verdict(fact("HTTP_501"), lenient, "pure") == "RETRYABLE"
    assert decide_verdict(fact("HTTP_503"), policy, "once") == "UNKNOWN"


def test_a_list_of_non_retryable_classes_leaves_the_rest_to_the_kind() -> None:
    policy = Policy(classes=ErrorClasses(non_retryable=("HTTP_503",)))
    assert decide_verdict(fact("HTTP_503", "transient"), policy, "pure") == "TERMINAL"
    assert decide_verdict(fact("HTTP_502", "transient"), policy, "pure") == "RETRYABLE"


def test_a_class_in_both_lists_is_a_warning_that_says_which_wins() -> None:
    both = ErrorClasses(retryable=("HTTP_500",), non_retryable=("HTTP_500",))
    assert "HTTP_500 is in both lists; non_retryable wins" in " ".join(Policy(classes=both).warnings())
    with pytest.raises(PolicyError, match=r"classes.precedence is 'first'"):
        Policy(classes=both._replace(precedence="first"))  # type: ignore[arg-type]


def test_no_group_covers_a_violation() -> None:
    assert find_forbidden(CLASS_GROUPS) == ()


def test_a_violation_names_its_rule() -> None:
    assert PolicyViolation("SCHEMA_INVALID", "no field x").code == "SCHEMA_INVALID"
    with pytest.raises(UsageError, match="'NOPE' is not a violation; the codes are SCHEMA_INVALID"):
        PolicyViolation("NOPE")


def test_the_class_exception_means_every_failure_but_those_that_no_policy_retries() -> None:
    everything = Policy(classes=ErrorClasses(retryable=("Exception",), non_retryable=("HTTP_404",)))
    for code in ("HTTP_503", "EXC_ValueError", "EXC_Unheard"):
        assert decide_verdict(fact(code), everything, "pure") == "RETRYABLE"
    assert decide_verdict(fact("HTTP_404"), everything, "pure") == "TERMINAL"
    for never in (*VIOLATIONS, "DEADLINE", "CANCELLED"):
        assert decide_verdict(fact(never), everything, "pure") in ("TERMINAL", "QUARANTINE")


@pytest.mark.parametrize("rule", ["oncemore:NeedsReview", "cause:oncemore:NeedsReview"])
def test_needs_review_is_quarantined_under_every_policy(rule: str) -> None:
    everything = Policy(classes=ErrorClasses(retryable=("Exception",)), unmatched="retry")
    for policy in (Policy(), everything):
        assert decide_verdict(fact("AMBIGUOUS_NAME", rule=rule), policy, "pure") == "QUARANTINE"
    assert decide_verdict(fact("AMBIGUOUS_NAME", rule=rule), everything, "once") == "UNKNOWN"


FIRST = ErrorClasses(("HTTP_404",), ("HTTP_4xx",), "retryable_first")


@pytest.mark.parametrize(
    ("policy", "failure", "forbids"),
    [
        (Policy("p"), fact("HTTP_404"), False),
        (Policy("p"), fact("SCHEMA_INVALID"), True),
        (Policy("p", classes=ErrorClasses((), ("HTTP_404",))), fact("HTTP_404"), True),
        (
            Policy("p", classes=ErrorClasses(("HTTP_404",), ("HTTP_4xx",), "retryable_first")),
            fact("HTTP_404"),
            False,
        ),
        (
            Policy("p", classes=ErrorClasses(("HTTP_404",), ("HTTP_4xx",), "retryable_first")),
            fact("HTTP_403"),
            True,
        ),
        (Policy("p", governed=True, timeout_s=1.0, unmatched="fail"), fact("HTTP_404"), True),
        (Policy("p", governed=True, timeout_s=1.0, unmatched="fail"), fact("HTTP_503", "transient"), False),
        (Policy("p", governed=True, timeout_s=1.0, unmatched="fail"), fact("EXC_X", rule=UNMATCHED), False),
    ],
)
def test_failures_that_on_cannot_make_retryable(policy: Policy, failure: Failure, forbids: bool) -> None:
    assert forbids_retry(failure, policy) is forbids
