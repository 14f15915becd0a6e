"""What a failure means under a policy: violations first, then the policy's lists, then the facts."""

import pytest

from oncemore.classifiers.verdict import (
    GROUPS,
    UNMATCHED,
    Classes,
    forbidden,
    forbids_retry,
    matches,
    verdict,
)
from oncemore.errors import VIOLATIONS, PolicyError, UsageError, Violation
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy


def fact(code: str, kind: str = "permanent", rule: str = "http:status") -> Failure:
    return Failure(kind, "maybe", None, code, rule)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", VIOLATIONS)
def test_no_policy_makes_a_violation_retryable(code: str) -> None:
    generous = Policy(classes=Classes(retryable=("TRANSIENT",)), unmatched="retry")
    meant = "QUARANTINE" if code == "CHECKSUM_MISMATCH" else "TERMINAL"
    for kind in ("transient", "permanent"):
        assert verdict(fact(code, kind), generous, "pure") == meant
        assert verdict(fact(code, kind), Policy(unmatched="retry"), "pure") == meant
    for name in (code, code[:5] + "*"):
        with pytest.raises(PolicyError, match=rf"{code}.*CLASS-2"):
            Policy(classes=Classes(retryable=(name,)))


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
    assert matches(fact(code, "throttled"), [name]) is fits


def test_the_lists_are_asked_in_their_order_and_the_rest_is_unmatched() -> None:
    both = Classes(retryable=("HTTP_5xx",), non_retryable=("HTTP_501",))
    policy = Policy(classes=both)
    assert verdict(fact("HTTP_503"), policy, "pure") == "RETRYABLE"
    assert verdict(fact("HTTP_501"), policy, "pure") == "TERMINAL"
    assert verdict(fact("HTTP_429", "throttled"), policy, "pure") == "TERMINAL"
    assert verdict(fact("HTTP_429", "throttled"), policy.but(unmatched="retry"), "pure") == "RETRYABLE"
    lenient = policy.but(classes=both._replace(precedence="retryable_first"))
    assert verdict(fact("HTTP_501"), lenient, "pure") == "RETRYABLE"
    assert verdict(fact("HTTP_503"), policy, "once") == "UNKNOWN"


def test_a_list_of_what_is_never_retried_leaves_the_rest_to_the_facts() -> None:
    policy = Policy(classes=Classes(non_retryable=("HTTP_503",)))
    assert verdict(fact("HTTP_503", "transient"), policy, "pure") == "TERMINAL"
    assert verdict(fact("HTTP_502", "transient"), policy, "pure") == "RETRYABLE"


def test_a_class_in_both_lists_is_a_warning_that_says_which_wins() -> None:
    both = Classes(retryable=("HTTP_500",), non_retryable=("HTTP_500",))
    assert "HTTP_500 is in both lists; non_retryable wins" in " ".join(Policy(classes=both).warnings())
    with pytest.raises(PolicyError, match=r"classes.precedence is 'first'"):
        Policy(classes=both._replace(precedence="first"))  # type: ignore[arg-type]


def test_no_group_covers_a_violation() -> None:
    assert forbidden(GROUPS) == ()


def test_a_violation_names_its_rule() -> None:
    assert Violation("SCHEMA_INVALID", "no field x").code == "SCHEMA_INVALID"
    with pytest.raises(UsageError, match="'NOPE' is not a violation; the codes are SCHEMA_INVALID"):
        Violation("NOPE")


def test_the_class_exception_means_every_failure_but_those_that_no_policy_retries() -> None:
    everything = Policy(classes=Classes(retryable=("Exception",), non_retryable=("HTTP_404",)))
    for code in ("HTTP_503", "EXC_ValueError", "EXC_Unheard"):
        assert verdict(fact(code), everything, "pure") == "RETRYABLE"
    assert verdict(fact("HTTP_404"), everything, "pure") == "TERMINAL"
    for never in (*VIOLATIONS, "DEADLINE", "CANCELLED"):
        assert verdict(fact(never), everything, "pure") in ("TERMINAL", "QUARANTINE")


@pytest.mark.parametrize("rule", ["oncemore:NeedsReview", "cause:oncemore:NeedsReview"])
def test_what_the_work_gives_to_a_person_is_quarantined_whatever_a_policy_says(rule: str) -> None:
    everything = Policy(classes=Classes(retryable=("Exception",)), unmatched="retry")
    for policy in (Policy(), everything):
        assert verdict(fact("AMBIGUOUS_NAME", rule=rule), policy, "pure") == "QUARANTINE"
    assert verdict(fact("AMBIGUOUS_NAME", rule=rule), everything, "once") == "UNKNOWN"


FIRST = Classes(("HTTP_404",), ("HTTP_4xx",), "retryable_first")


@pytest.mark.parametrize(
    ("policy", "failure", "forbids"),
    [
        (Policy("p"), fact("HTTP_404"), False),
        (Policy("p"), fact("SCHEMA_INVALID"), True),
        (Policy("p", classes=Classes((), ("HTTP_404",))), fact("HTTP_404"), True),
        (
            Policy("p", classes=Classes(("HTTP_404",), ("HTTP_4xx",), "retryable_first")),
            fact("HTTP_404"),
            False,
        ),
        (
            Policy("p", classes=Classes(("HTTP_404",), ("HTTP_4xx",), "retryable_first")),
            fact("HTTP_403"),
            True,
        ),
        (Policy("p", governed=True, timeout_s=1.0, unmatched="fail"), fact("HTTP_404"), True),
        (Policy("p", governed=True, timeout_s=1.0, unmatched="fail"), fact("HTTP_503", "transient"), False),
        (Policy("p", governed=True, timeout_s=1.0, unmatched="fail"), fact("EXC_X", rule=UNMATCHED), False),
    ],
)
def test_what_on_may_not_widen(policy: Policy, failure: Failure, forbids: bool) -> None:
    assert forbids_retry(failure, policy) is forbids
