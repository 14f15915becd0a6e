"""What errors mean that come from a retry: other retry libraries' wrappers, and our own errors.

Another library's wrapper hides the last failure; that one counts. Our own errors are final wherever
they go, so that an outer retry does not multiply the attempts of an inner one: they keep the code of
what went wrong, and only `AttemptTimeout`, which ends one attempt and not the work, may pass.
`TransientError`, `PermanentError`, `NeedsReview` and `Violation` are the user's own word, and taken as such.
"""

from __future__ import annotations

from oncemore.errors import VIOLATIONS
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table


def _tenacity(error: BaseException, look: Look, rule: str) -> Failure:
    last = getattr(error, "last_attempt", None)
    # It was retried for its value when the last attempt did not fail; asking must not wait for one.
    inner = last.exception(timeout=0) if last is not None and last.done() else None
    return look.known(inner) or look.beneath(error) or _exhausted(rule)


def _google(error: BaseException, look: Look, rule: str) -> Failure:
    return look.known(getattr(error, "cause", None)) or look.beneath(error) or _exhausted(rule)


def _exhausted(rule: str) -> Failure:
    return Failure("permanent", "maybe", None, "RETRIES_EXHAUSTED", rule)


def _final(error: BaseException, look: Look, rule: str) -> Failure:
    inner = look.beneath(error)
    if inner is None:
        return Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)
    return Failure("permanent", inner.sent, None, inner.code, rule)


def _violation(error: BaseException, _look: Look, rule: str) -> Failure:
    code = getattr(error, "code", None)
    return Failure("permanent", "maybe", None, code if code in VIOLATIONS else "PermanentError", rule)


def _review(error: BaseException, _look: Look, rule: str) -> Failure:
    code = getattr(error, "code", None)
    return Failure("permanent", "maybe", None, code if isinstance(code, str) else "NeedsReview", rule)


TABLES: Final[dict[str, Table]] = {
    "tenacity": {"RetryError": _tenacity},
    "google": {"RetryError": _google},
    "oncemore": {
        "AttemptTimeout": ("transient", "maybe", "TIMEOUT_ATTEMPT_LIMIT"),
        "DeadlineExceeded": ("permanent", "maybe", "DEADLINE"),
        "UsageError": ("permanent", "no", ""),
        "RetriesExhausted": ("permanent", "maybe", "RETRIES_EXHAUSTED"),
        "Error": _final,
        "TransientError": ("transient", "maybe", "TransientError"),
        "PermanentError": ("permanent", "maybe", "PermanentError"),
        "NeedsReview": _review,
        "Violation": _violation,
    },
}
