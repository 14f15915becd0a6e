"""Rules for errors that carry other errors: groups, other retry libraries' wrappers and our own errors.

The wrapper of another retry library hides the last failure, which is the one that counts. Our own
errors are final, so that an outer retry does not multiply the attempts of an inner one: they keep the
code of the original failure, and only `AttemptTimeout`, which ends one attempt and not the work, is
transient. `TransientError`, `PermanentError`, `NeedsReview` and `PolicyViolation` are raised by users
and classified as their names say.
"""

from __future__ import annotations

from oncemore.errors import VIOLATIONS
from oncemore.policy.model import Failure
from oncemore.policy.verdict import STOPPED, UNMATCHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Sent

#: Rank of the kinds; 2 is for unmatched failures, whose verdict the policy decides.
_SEVERITY: Final = {"transient": 0, "throttled": 1, "conflict": 3, "permanent": 4}


def _rank_severity(failure: Failure) -> int:
    """Return the rank of a failure; failures that no policy can retry rank above the rest."""
    if failure.code in STOPPED:
        return 6
    if failure.code in VIOLATIONS:
        return 5
    return 2 if failure.rule == UNMATCHED else _SEVERITY[failure.kind]


def _classify_group(error: BaseException, classification: Classification, _rule: str) -> Failure | None:
    """Classify a group by its worst leaf.

    A group is retryable only if every leaf is; it may have taken effect if any leaf may have; its wait is
    the longest of all leaves. A group with more leaves than `MAX_ERRORS` is unmatched.
    """
    worst: Failure | None = None
    sent: Sent = "no"
    wait: float | None = None
    for leaf in error.exceptions:  # type: ignore[attr-defined]
        if classification.errors_left <= 0:
            return None
        failure = classification.classify_error(leaf)
        if worst is None or _rank_severity(failure) > _rank_severity(worst):
            worst = failure
        if failure.sent == "maybe":
            sent = "maybe"
        if failure.retry_after is not None and (wait is None or failure.retry_after > wait):
            wait = failure.retry_after
    if worst is None:
        return None
    # An unmatched failure must stay unmatched: the policy's `unmatched` decides about it.
    keeps_rule = worst.rule == UNMATCHED or worst.rule.startswith("group:")
    return worst._replace(
        sent=sent, retry_after=wait, rule=worst.rule if keeps_rule else f"group:{worst.rule}"
    )


def _classify_tenacity(error: BaseException, classification: Classification, rule: str) -> Failure:
    last = getattr(error, "last_attempt", None)
    # The last attempt may have returned an unwanted value. timeout=0: never wait for a running attempt.
    inner = last.exception(timeout=0) if last is not None and last.done() else None
    return (
        classification.classify_if_known(inner)
        or classification.classify_wrapped(error)
        or _exhausted_failure(rule)
    )


def _classify_google_retry(error: BaseException, classification: Classification, rule: str) -> Failure:
    return (
        classification.classify_if_known(getattr(error, "cause", None))
        or classification.classify_wrapped(error)
        or _exhausted_failure(rule)
    )


def _exhausted_failure(rule: str) -> Failure:
    return Failure("permanent", "maybe", None, "RETRIES_EXHAUSTED", rule)


def _classify_own_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    inner = classification.classify_wrapped(error)
    # The kind is permanent in both cases: the inner retry has already used its attempts.
    if inner is None:
        return Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)
    return Failure("permanent", inner.sent, None, inner.code, rule)


def _classify_violation(error: BaseException, _classification: Classification, rule: str) -> Failure:
    code = getattr(error, "code", None)
    return Failure("permanent", "maybe", None, code if code in VIOLATIONS else "PermanentError", rule)


def _classify_needs_review(error: BaseException, _classification: Classification, rule: str) -> Failure:
    code = getattr(error, "code", None)
    return Failure("permanent", "maybe", None, code if isinstance(code, str) else "NeedsReview", rule)


TABLES: Final[dict[str, Table]] = {
    "builtins": {"BaseExceptionGroup": _classify_group},
    "tenacity": {"RetryError": _classify_tenacity},
    "google": {"RetryError": _classify_google_retry},
    "oncemore": {
        "AttemptTimeout": ("transient", "maybe", "TIMEOUT_ATTEMPT_LIMIT"),
        "DeadlineExceeded": ("permanent", "maybe", "DEADLINE"),
        "UsageError": ("permanent", "no", ""),
        "RetriesExhausted": ("permanent", "maybe", "RETRIES_EXHAUSTED"),
        "Error": _classify_own_error,
        "TransientError": ("transient", "maybe", "TransientError"),
        "PermanentError": ("permanent", "maybe", "PermanentError"),
        "NeedsReview": _classify_needs_review,
        "PolicyViolation": _classify_violation,
    },
}
