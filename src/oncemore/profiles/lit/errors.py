"""The errors of `CoreClient`, and the internal ones of a single attempt.

    CoreClientError             a call failed: no response, or one that cannot be read
    ├── CoreClientHTTPError     Core responded with a status that is not a success
    └── ActionOutcomeUnknown    a session action may have been applied, and is not sent again

A caller gets them after the last permitted attempt, so every retry around them treats them as final: attempts
do not multiply. `CoreAnswer` and `UnreadableCoreAnswer` exist within an attempt only; they carry the response
and are classified like the errors of urllib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.classifiers.classify import register_table
from oncemore.classifiers.http_status import classify_failed_status
from oncemore.errors import OutcomeUnknown, StepFailed

if TYPE_CHECKING:
    from oncemore.classifiers.classify import Classification
    from oncemore.policy.model import Failure


class CoreClientError(StepFailed):
    """A call of Core failed; the last failure is the cause."""


class CoreClientHTTPError(CoreClientError):
    """Core responded with a status that is not a success; a 5xx only after all attempts.

    status_code  the status
    detail       Core's explanation
    retry_after  the seconds, from the response on, in which Core wants no request; None if it named none
    """

    def __init__(self, status_code: int, detail: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status_code}: {detail}")
        self.status_code = status_code
        self.detail = detail
        self.retry_after = retry_after

    def __repr__(self) -> str:
        return f"CoreClientHTTPError({self.status_code}, {self.detail!r})"

    # The default would pickle the message alone, and lose status and detail.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.status_code, self.detail, self.retry_after)


class ActionOutcomeUnknown(CoreClientError, OutcomeUnknown):
    """A session action was sent and its response was lost: the action may have been applied.

    `lost` is the argument for `CoreSession.reconcile` and `CoreSession.resolve`.
    """

    def __init__(self, message: str, lost: Any = None) -> None:
        super().__init__(message)
        self.lost = lost

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.lost)


class CoreAnswer(Exception):
    """Within an attempt: Core responded with a status that is not a success."""

    def __init__(self, status: int, detail: str, retry_after: float | None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.retry_after = retry_after


class UnreadableCoreAnswer(Exception):
    """Within an attempt: Core responded with a success that cannot be read."""


def _classify_answer(error: BaseException, classification: Classification, _rule: str) -> Failure:
    """Classify a response by its status; `Retry-After` is obeyed on every 5xx."""
    assert isinstance(error, CoreAnswer)
    failure = classify_failed_status(error.status, None, classification.now)
    if error.retry_after is None:
        return failure
    # Only these statuses mean overload; a Retry-After on another 5xx sets the delay, not the kind.
    is_throttled = error.status in (429, 503, 529)
    return failure._replace(retry_after=error.retry_after, kind="throttled" if is_throttled else failure.kind)


register_table(
    "oncemore",
    {"CoreAnswer": _classify_answer, "UnreadableCoreAnswer": ("permanent", "maybe", "INVALID_JSON")},
)
