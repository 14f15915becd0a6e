"""A decorator for the Lambda function of a task.

    @task(files.policy("nova-cat/acquisition"))
    def handler(event, context):
        return fetch(event["locator"])

Lambda reports an error by the name of its class, so a definition would have to list the exceptions of every
library. The decorator classifies the exception by the policy and raises one of three errors instead.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.classifiers.classify import classify
from oncemore.errors import NeedsReview, PermanentError, TransientError
from oncemore.policy.verdict import decide_verdict
from oncemore.stepfunctions.export import QUARANTINE_ERROR, RETRYABLE_ERROR, TERMINAL_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.model import Verdict
    from oncemore.policy.policy import Policy


class _CodedError(Exception):
    """An error with the code of the classified failure."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code

    # The default would pass the message to __init__ as the code.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class RetryableError(_CodedError, TransientError):
    """A transient failure; the retrier of the definition tries again."""


class TerminalError(_CodedError, PermanentError):
    """A permanent failure."""


class QuarantineError(NeedsReview):
    """A failure that needs review by a person."""


#: An unknown outcome needs review too: a task with the effect "once" must not be repeated.
ERRORS_BY_VERDICT: dict[Verdict, type[RetryableError | TerminalError | QuarantineError]] = {
    "RETRYABLE": RetryableError,
    "TERMINAL": TerminalError,
    "QUARANTINE": QuarantineError,
    "UNKNOWN": QuarantineError,
}
_TASK_ERRORS = (RetryableError, TerminalError, QuarantineError)
_ERROR_NAMES = (RETRYABLE_ERROR, TERMINAL_ERROR, QUARANTINE_ERROR)


def task(policy: Policy, effect: Any = "idempotent") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that replaces an exception by the error of its class.

    effect  the effect of the function; with "once", a failure that may have taken effect needs review
    """

    def decorate(work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def handler(*args: Any, **kwargs: Any) -> Any:
            try:
                return work(*args, **kwargs)
            except Exception as error:
                # The function has classified its failure itself.
                if type(error).__name__ in _ERROR_NAMES:
                    raise
                # A subclass has another name, which the definition does not know.
                for error_class in _TASK_ERRORS:
                    if isinstance(error, error_class):
                        raise error_class(error.code, str(error)) from error
                failure = classify(error, clocks.current.wall())
                error_class = ERRORS_BY_VERDICT[decide_verdict(failure, policy, effect)]
                # The message has no text of the original error: it may hold secrets, and AWS stores it.
                raise error_class(
                    _normalize_code(failure.code), f"{failure.code}: {type(error).__name__}"
                ) from error

        return handler

    return decorate


def _normalize_code(code: str) -> str:
    """Return a code of letters, digits and underscores, which metrics can be grouped by."""
    return "".join(letter if letter.isalnum() else "_" for letter in code[:100])
