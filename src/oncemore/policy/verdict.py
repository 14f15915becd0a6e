"""Turns a failure into a verdict: the classified fact, read under a policy and the declared effect.

The first rule that applies decides:

    1. a checksum that does not match, `NeedsReview`     QUARANTINE under every policy
    2. any other violation (CLASS-2), a cancellation, a passed deadline, exhausted memory
                                                         TERMINAL under every policy
    3. the policy's non_retryable                        TERMINAL     } in the other order with
    4. the policy's retryable                            RETRYABLE    } precedence: retryable_first
    5. no match                                          `unmatched` if the policy lists classes,
                                                         else the kind of the failure

If the effect is `once` and the attempt may have taken effect, every verdict becomes UNKNOWN: only a
question to the provider can settle the outcome.

A class in a policy is the code of a failure (`HTTP_503`), a pattern (`HTTP_5xx`, `SQLSTATE_40*`), a
kind in capitals (`THROTTLED`), the name of a group below, or `Exception` for every failure.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import VIOLATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final, Literal

    from oncemore.policy.model import Effect, Failure, Kind, Verdict
    from oncemore.policy.policy import Policy

    Precedence = Literal["non_retryable_first", "retryable_first"]


class ErrorClasses(Value):
    """The error classes that a policy retries, and those that it never retries."""

    retryable: tuple[str, ...] = ()
    non_retryable: tuple[str, ...] = ()
    precedence: Precedence = "non_retryable_first"


#: The verdict by kind; the caller has to resolve conflicts and permanent failures.
VERDICT_BY_KIND: Final[dict[Kind, Verdict]] = {
    "transient": "RETRYABLE",
    "throttled": "RETRYABLE",
    "conflict": "TERMINAL",
    "permanent": "TERMINAL",
}

#: The rule of a failure that no classifier knows; the policy's `unmatched` decides about it.
UNMATCHED = "default:unmatched"

#: Codes of attempts that a user, the program or the interpreter stopped: they did not fail by themselves.
STOPPED: Final = ("CANCELLED", "INTERRUPTED", "EXIT", "GENERATOR_EXIT", "OUT_OF_MEMORY", "RECURSION")

#: Codes that no policy and no `on=` retries: violations, stopped attempts, a passed deadline (X-58).
NEVER_RETRIED: Final = frozenset((*VIOLATIONS, *STOPPED, "DEADLINE"))

#: Both lead to quarantine: the rule of `NeedsReview`, and the code of a wrong checksum (CLASS-8).
REVIEW_RULE: Final = "oncemore:NeedsReview"
MISMATCH_CODE: Final = "CHECKSUM_MISMATCH"

#: The class that matches every failure; like every class, it cannot override `NEVER_RETRIED`.
ANY_FAILURE: Final = "Exception"

#: Names in the source documents that stand for several codes.
CLASS_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "NETWORK_TIMEOUT": ("TIMEOUT", "TIMEOUT_CONNECT", "TIMEOUT_READ", "TIMEOUT_WRITE", "TIMEOUT_POOL",
                        "TIMEOUT_ATTEMPT_LIMIT", "GRPC_DEADLINE_EXCEEDED"),
    "CONNECTION": ("CONNECTION_*", "DNS", "PROTOCOL", "BODY_CUT", "PROXY", "ERRNO_ENET*", "ERRNO_EHOST*",
                   "GRPC_UNAVAILABLE", "NATS_NO_RESPONDERS", "SQLSTATE_08*", "SQLSTATE_57P01",
                   "SQLSTATE_57P02", "SQLSTATE_57P03"),
    "STAC_SLOWDOWN": ("AWS_SlowDown", "STAC_SLOWDOWN"),
    "IO_CONTENTION": ("SQLITE_BUSY*", "SQLITE_LOCKED*", "SQLITE_IOERR*", "ERRNO_EAGAIN", "ERRNO_EBUSY",
                      "ERRNO_EINTR", "ERRNO_EIO", "ERRNO_EDEADLK", "ERRNO_ETXTBSY", "ERRNO_ESTALE"),
}  # fmt: skip


def decide_verdict(failure: Failure, policy: Policy, effect: Effect, *, quarantines: bool = False) -> Verdict:
    """Return the verdict on a failure of work with this effect under this policy.

    quarantines  whether the policy's profile quarantines work that is not retried (CLASS-3)
    """
    verdict = _policy_verdict(failure, policy)
    if quarantines and verdict == "TERMINAL":
        verdict = "QUARANTINE"
    # A blind retry of `once` work could do it twice; stopping could lose it. Reconcile or a person decides.
    return "UNKNOWN" if effect == "once" and failure.sent == "maybe" else verdict


def forbids_retry(failure: Failure, policy: Policy) -> bool:
    """Return whether a failure is not retried although `on=` covers its type.

    True for codes that no policy retries, for the policy's own `non_retryable`, and under a governed
    policy for every known failure that its classes do not allow. Failures that match no rule are left to
    `on=`.
    """
    if failure.code in NEVER_RETRIED or _needs_review(failure):
        return True
    if policy.governed:
        return failure.rule != UNMATCHED and _policy_verdict(failure, policy) != "RETRYABLE"
    classes = policy.classes
    if classes is None or not matches_class(failure, classes.non_retryable):
        return False
    return classes.precedence != "retryable_first" or not matches_class(failure, classes.retryable)


def _needs_review(failure: Failure) -> bool:
    return failure.code == MISMATCH_CODE or failure.rule.removeprefix("cause:") == REVIEW_RULE


def _policy_verdict(failure: Failure, policy: Policy) -> Verdict:
    if _needs_review(failure):
        return "QUARANTINE"
    if failure.code in NEVER_RETRIED:
        return "TERMINAL"
    classes = policy.classes
    if classes is not None:
        lists = [("TERMINAL", classes.non_retryable), ("RETRYABLE", classes.retryable)]
        if classes.precedence == "retryable_first":
            lists.reverse()
        for verdict, names in lists:
            if matches_class(failure, names):
                return verdict  # type: ignore[return-value]
    # A policy that lists retryable classes has listed all of them: an unlisted failure is unmatched.
    if failure.rule == UNMATCHED or (classes is not None and classes.retryable):
        return "RETRYABLE" if policy.unmatched == "retry" else "TERMINAL"
    return VERDICT_BY_KIND[failure.kind]


def matches_class(failure: Failure, names: Iterable[str]) -> bool:
    """Return whether one of the names, patterns or groups matches this failure."""
    return any(_name_matches(name, failure) for name in names)


def _name_matches(name: str, failure: Failure) -> bool:
    if name in CLASS_GROUPS:
        return any(_pattern_matches(pattern, failure.code) for pattern in CLASS_GROUPS[name])
    return _pattern_matches(name, failure.code) or name in (failure.kind.upper(), ANY_FAILURE)


def _pattern_matches(pattern: str, code: str) -> bool:
    """Return whether a code matches: equal, or by a trailing * (any rest) or xx (two digits)."""
    if pattern.endswith("*"):
        return code.startswith(pattern[:-1])
    if pattern.endswith("xx"):
        return code[:-2] == pattern[:-2] and code[-2:].isdigit()
    return code == pattern


def find_forbidden(names: Iterable[str]) -> tuple[str, ...]:
    """Return the violations that a list of retryable classes would cover; a policy may cover none."""
    # `Exception` covers no violation here: the verdict checks violations before it reads the classes.
    patterns = [pattern for name in names for pattern in CLASS_GROUPS.get(name, (name,))]
    return tuple(code for code in VIOLATIONS if any(_pattern_matches(pattern, code) for pattern in patterns))
