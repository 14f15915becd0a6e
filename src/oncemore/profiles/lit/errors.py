"""What `CoreClient` raises, and what one attempt of it raises before that.

    CoreClientError             the call did not come good: no answer, or one that cannot be read
    ├── CoreClientHTTPError     Core answered, and the answer is a refusal or a fault
    └── ActionOutcomeUnknown    a session action may have been applied, and is not sent again

They are raised when all that may be tried has been tried, so that they are final for every retry around
them: attempts do not multiply. Inside an attempt two others travel, which say what was answered and are
classified like any error of urllib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.classifiers.classify import register
from oncemore.classifiers.http_status import failed_status
from oncemore.errors import Failed, OutcomeUnknown

if TYPE_CHECKING:
    from oncemore.classifiers.classify import Look
    from oncemore.policy.model import Failure


class CoreClientError(Failed):
    """A call of Core did not come good; the last failure is the cause."""


class CoreClientHTTPError(CoreClientError):
    """Core answered with a status that is no success; a 5xx only after all attempts.

    status_code  the number
    detail       what Core said about it
    retry_after  how many seconds Core wants to be left alone, counted from its answer; None if it did not say
    """

    def __init__(self, status_code: int, detail: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status_code}: {detail}")
        self.status_code = status_code
        self.detail = detail
        self.retry_after = retry_after

    def __repr__(self) -> str:
        return f"CoreClientHTTPError({self.status_code}, {self.detail!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.status_code, self.detail, self.retry_after)


class ActionOutcomeUnknown(CoreClientError, OutcomeUnknown):
    """A session action was sent and its answer was lost: it may have been applied.

    `lost` is what `Session.reconcile` and `Session.resolve` take.
    """

    def __init__(self, message: str, lost: Any = None) -> None:
        super().__init__(message)
        self.lost = lost

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.lost)


class CoreAnswer(Exception):
    """Inside an attempt: Core answered with a status that is no success."""

    def __init__(self, status: int, detail: str, retry_after: float | None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.retry_after = retry_after


class BadAnswer(Exception):
    """Inside an attempt: Core answered with success, and with something that cannot be read."""


def _answer(error: BaseException, look: Look, _rule: str) -> Failure:
    """Read an answer by its status; whatever 5xx asks for a rest is heard."""
    assert isinstance(error, CoreAnswer)
    failure = failed_status(error.status, None, look.now)
    if error.retry_after is None:
        return failure
    slow = error.status in (429, 503, 529)
    return failure._replace(retry_after=error.retry_after, kind="throttled" if slow else failure.kind)


register("oncemore", {"CoreAnswer": _answer, "BadAnswer": ("permanent", "maybe", "INVALID_JSON")})
