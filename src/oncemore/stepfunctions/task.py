"""A task of a state machine: its errors get the names by which a definition tells them apart.

    @task(govern.policy("nova-cat/acquisition"))
    def handler(event, context):
        return fetch(event["locator"])

Lambda reports an error by the name of its class. So a function that raises what its libraries raise would
need every one of their names in the definition; here the classifiers read it, the policy judges it, and one
of three names is left.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.classifiers.classify import classify
from oncemore.classifiers.verdict import verdict
from oncemore.errors import NeedsReview, PermanentError, TransientError
from oncemore.stepfunctions.export import QUARANTINE_ERROR, RETRYABLE_ERROR, TERMINAL_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.model import Verdict
    from oncemore.policy.policy import Policy


class _Coded(Exception):
    """Has the code of the failure that it stands for."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class RetryableError(_Coded, TransientError):
    """It may pass: the definition's retrier tries it again."""


class TerminalError(_Coded, PermanentError):
    """It does not pass."""


class QuarantineError(NeedsReview):
    """A person has to look first."""


#: An outcome that is unknown is a person's: a task that may not be repeated must not be.
NAMED: dict[Verdict, type[RetryableError | TerminalError | QuarantineError]] = {
    "RETRYABLE": RetryableError,
    "TERMINAL": TerminalError,
    "QUARANTINE": QuarantineError,
    "UNKNOWN": QuarantineError,
}
_NAMES = (RETRYABLE_ERROR, TERMINAL_ERROR, QUARANTINE_ERROR)


def task(policy: Policy, effect: Any = "idempotent") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for the function of a task: what it raises gets the name of its class.

    effect  what the function does to the world; "once" sends what may have happened to a person
    """

    def decorate(work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def handler(*args: Any, **kwargs: Any) -> Any:
            try:
                return work(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ in _NAMES:
                    raise
                failure = classify(error, clocks.current.wall())
                named = NAMED[verdict(failure, policy, effect)]
                raise named(_plain(failure.code), f"{failure.code}: {type(error).__name__}") from error

        return handler

    return decorate


def _plain(code: str) -> str:
    """Return a code as people count by it: letters, digits and underscores."""
    return "".join(letter if letter.isalnum() else "_" for letter in code[:100])
