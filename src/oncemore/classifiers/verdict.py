"""What a failure means: the fact, read under a policy and the declared effect.

A fact comes from an edge (`Failure`); the verdict is found in this order, and the first that speaks
decides:

    1. bytes that are not what they were, and what the work itself gives to a person to look at
                                      QUARANTINE, whatever a policy says
    2. any other violation (CLASS-2), a cancellation, a deadline that has passed, no memory left
                                      never retried, whatever a policy says
    3. the policy's non_retryable     TERMINAL     } the other way round with
    4. the policy's retryable         RETRYABLE    } precedence: retryable_first
    5. nobody                         the policy's `unmatched`, if it lists classes; else the kind

An effect that cannot be repeated turns every answer into UNKNOWN when the attempt may have taken
effect: nothing but asking can settle that.

A class in a policy is the code of a failure (`HTTP_503`), a pattern (`HTTP_5xx`, `SQLSTATE_40*`), a
kind in capitals (`THROTTLED`), the name of a group below, or `Exception`: every failure there is.
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


class Classes(Value):
    """Which classes of errors a policy retries, and which it never does."""

    retryable: tuple[str, ...] = ()
    non_retryable: tuple[str, ...] = ()
    precedence: Precedence = "non_retryable_first"


#: What may be repeated at all, by kind; conflicts and permanent failures are the caller's to solve.
VERDICTS: Final[dict[Kind, Verdict]] = {
    "transient": "RETRYABLE",
    "throttled": "RETRYABLE",
    "conflict": "TERMINAL",
    "permanent": "TERMINAL",
}

#: The rule an edge gives to what it does not know; a policy's `unmatched` speaks for it.
UNMATCHED = "default:unmatched"

#: Ends that a person, the program or the interpreter decided on: the attempt did not fail, it was stopped.
STOPPED: Final = ("CANCELLED", "INTERRUPTED", "EXIT", "GENERATOR_EXIT", "OUT_OF_MEMORY", "RECURSION")

#: What no policy and no `on=` retries: violations, stopped attempts, and a deadline that has passed (X-58).
NEVER: Final = frozenset((*VIOLATIONS, *STOPPED, "DEADLINE"))

#: Who says that a person has to look: the rule of `NeedsReview`, and a checksum that does not fit (CLASS-8).
REVIEW: Final = "oncemore:NeedsReview"
MISMATCH: Final = "CHECKSUM_MISMATCH"

#: The class that means every failure; those above are out of its reach, as of every other class.
EVERYTHING: Final = "Exception"

#: Names that the source documents use for several codes at once.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "NETWORK_TIMEOUT": ("TIMEOUT", "TIMEOUT_CONNECT", "TIMEOUT_READ", "TIMEOUT_WRITE", "TIMEOUT_POOL",
                        "TIMEOUT_ATTEMPT_LIMIT", "GRPC_DEADLINE_EXCEEDED"),
    "CONNECTION": ("CONNECTION_*", "DNS", "PROTOCOL", "BODY_CUT", "PROXY", "ERRNO_ENET*", "ERRNO_EHOST*",
                   "GRPC_UNAVAILABLE", "NATS_NO_RESPONDERS", "SQLSTATE_08*", "SQLSTATE_57P01",
                   "SQLSTATE_57P02", "SQLSTATE_57P03"),
    "STAC_SLOWDOWN": ("AWS_SlowDown", "STAC_SLOWDOWN"),
    "IO_CONTENTION": ("SQLITE_BUSY*", "SQLITE_LOCKED*", "SQLITE_IOERR*", "ERRNO_EAGAIN", "ERRNO_EBUSY",
                      "ERRNO_EINTR", "ERRNO_EIO", "ERRNO_EDEADLK", "ERRNO_ETXTBSY", "ERRNO_ESTALE"),
}  # fmt: skip


def verdict(failure: Failure, policy: Policy, effect: Effect, *, quarantines: bool = False) -> Verdict:
    """Return what a failure means for work with this effect under this policy.

    quarantines  whether the policy's profile has what is not tried again wait for a person (CLASS-3)
    """
    known = _by_policy(failure, policy)
    if quarantines and known == "TERMINAL":
        known = "QUARANTINE"
    return "UNKNOWN" if effect == "once" and failure.sent == "maybe" else known


def forbids_retry(failure: Failure, policy: Policy) -> bool:
    """Return whether a failure is not retried although `on=` covers its type.

    That holds for what no policy retries, for the policy's own `non_retryable`, and under a governed
    policy for every known failure that its classes do not allow; what no rule knows is left to `on=`.
    """
    if failure.code in NEVER or _needs_review(failure):
        return True
    if policy.governed:
        return failure.rule != UNMATCHED and _by_policy(failure, policy) != "RETRYABLE"
    classes = policy.classes
    if classes is None or not matches(failure, classes.non_retryable):
        return False
    return classes.precedence != "retryable_first" or not matches(failure, classes.retryable)


def _needs_review(failure: Failure) -> bool:
    return failure.code == MISMATCH or failure.rule.removeprefix("cause:") == REVIEW


def _by_policy(failure: Failure, policy: Policy) -> Verdict:
    if _needs_review(failure):
        return "QUARANTINE"
    if failure.code in NEVER:
        return "TERMINAL"
    classes = policy.classes
    if classes is not None:
        lists = [("TERMINAL", classes.non_retryable), ("RETRYABLE", classes.retryable)]
        if classes.precedence == "retryable_first":
            lists.reverse()
        for answer, names in lists:
            if matches(failure, names):
                return answer  # type: ignore[return-value]
    if failure.rule == UNMATCHED or (classes is not None and classes.retryable):
        return "RETRYABLE" if policy.unmatched == "retry" else "TERMINAL"
    return VERDICTS[failure.kind]


def matches(failure: Failure, names: Iterable[str]) -> bool:
    """Whether one of the names, patterns or groups means this failure."""
    return any(_means(name, failure) for name in names)


def _means(name: str, failure: Failure) -> bool:
    if name in GROUPS:
        return any(_fits(pattern, failure.code) for pattern in GROUPS[name])
    return _fits(name, failure.code) or name in (failure.kind.upper(), EVERYTHING)


def _fits(pattern: str, code: str) -> bool:
    """Whether a code fits a pattern: equal, or by a trailing * (a prefix) or xx (any two digits)."""
    if pattern.endswith("*"):
        return code.startswith(pattern[:-1])
    if pattern.endswith("xx"):
        return code[:-2] == pattern[:-2] and code[-2:].isdigit()
    return code == pattern


def forbidden(names: Iterable[str]) -> tuple[str, ...]:
    """Return the violations that a list of retryable classes would cover; a policy may cover none."""
    patterns = [pattern for name in names for pattern in GROUPS.get(name, (name,))]
    return tuple(code for code in VIOLATIONS if any(_fits(pattern, code) for pattern in patterns))
