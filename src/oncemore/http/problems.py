"""The problem details (RFC 9457) of idempotent endpoints.

Each says what happened and whether to send the request again; if so, it has a `Retry-After`. They contain
nothing of another request: a client that guesses a key learns only that it is in use.
"""

from __future__ import annotations

from json import dumps
from math import ceil

from oncemore._values import Value
from oncemore.errors import (
    CallRefused,
    Deferred,
    InProgress,
    KeyConflict,
    KeyExpired,
    OutcomeUncertain,
    Quarantined,
    ResultUnavailable,
    StepFailed,
    StoreError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.errors import Error

MEDIA_TYPE: Final = b"application/problem+json"
#: The Retry-After of a request that was refused for the moment.
RETRY_AFTER_S: Final = 1.0
TYPE_PREFIX: Final = "urn:oncemore:idempotency:"


class ProblemType(Value):
    """A type of problem: status, title, and a detail for the client."""

    status: int
    slug: str
    title: str
    detail: str


MISSING: Final = ProblemType(
    400,
    "key-missing",
    "Idempotency-Key is missing",
    'This request needs a key of its own: Idempotency-Key: "…", for example a UUID; use the same key in '
    "every attempt of this request.",
)
MALFORMED: Final = ProblemType(400, "key-malformed", "Idempotency-Key is malformed", "")
TOO_LARGE: Final = ProblemType(
    413,
    "request-too-large",
    "The request is too large",
    "A request with an Idempotency-Key is read completely before it is processed; this one exceeds the "
    "limit.",
)
CUT_OFF: Final = ProblemType(
    400,
    "request-cut-off",
    "The request is incomplete",
    "The connection was closed before the end of the request.",
)
OTHER_PAYLOAD: Final = ProblemType(
    422,
    "key-reused",
    "Idempotency-Key belongs to another request",
    "This key was sent before with another method, address or body. A new request needs a new key.",
)
IN_PROGRESS: Final = ProblemType(
    409,
    "in-progress",
    "The first request is still being processed",
    "A request with this key is in progress. Send the same request again later to get its response.",
)
UNKNOWN: Final = ProblemType(
    409,
    "outcome-unknown",
    "The outcome is unknown",
    "A request with this key was begun and did not finish; it may have taken effect, and it is not processed "
    "a second time. An operator must decide: contact the operator of this service.",
)
HELD: Final = ProblemType(
    409,
    "held",
    "The request is held for an operator",
    "A request with this key could not be completed, and is not tried again until an operator has reviewed "
    "it: contact the operator of this service.",
)
GIVEN_UP: Final = ProblemType(
    409,
    "given-up",
    "The request is not tried again",
    "A request with this key has used all its attempts, and had no effect. A new request needs a new key.",
)
NO_ANSWER: Final = ProblemType(
    500,
    "no-answer",
    "The application sent no response",
    "It ended before its response was complete. The same request may be sent again, with the same key.",
)
NOT_KEPT: Final = ProblemType(
    409,
    "answer-not-kept",
    "The request was processed, and its response was not stored",
    "A request with this key was processed. Its response was too large to be stored, and the request is not "
    "processed a second time.",
)
EXPIRED: Final = ProblemType(
    410,
    "key-expired",
    "Idempotency-Key has expired",
    "A request with this key was processed, and its response is no longer stored. A new request needs a new "
    "key.",
)
NOT_YET: Final = ProblemType(
    503,
    "not-yet",
    "Not yet",
    "A request with this key was refused a moment ago. Send the same request again later.",
)
NO_RECORD: Final = ProblemType(
    503,
    "no-record",
    "The request cannot be recorded",
    "The service cannot use its store. The request may have been processed: send the same request again "
    "later, with the same key.",
)


def problem_response(
    problem: ProblemType, detail: str = "", retry_after_s: float | None = None, **members: str
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the response of a problem: status, header fields, body."""
    content = {
        "type": TYPE_PREFIX + problem.slug,
        "title": problem.title,
        "status": problem.status,
        "detail": detail or problem.detail,
        **members,
    }
    body = dumps(content).encode()
    fields = [(b"content-type", MEDIA_TYPE), (b"content-length", b"%d" % len(body))]
    if retry_after_s is not None:
        # Whole seconds, rounded up: an earlier retry would be refused again.
        fields.append((b"retry-after", b"%d" % max(1, ceil(retry_after_s))))
    return problem.status, fields, body


#: The problem of each error of a step, and the seconds of its Retry-After; the first matching class counts.
_PROBLEM_OF_ERROR: tuple[tuple[type[Error], ProblemType, float | None], ...] = (
    (KeyConflict, OTHER_PAYLOAD, None),
    (InProgress, IN_PROGRESS, RETRY_AFTER_S),
    (KeyExpired, EXPIRED, None),
    (Quarantined, HELD, None),
    (ResultUnavailable, NOT_KEPT, None),
    (OutcomeUncertain, UNKNOWN, None),
    (Deferred, NOT_YET, RETRY_AFTER_S),
    (StepFailed, GIVEN_UP, None),
    (StoreError, NO_RECORD, RETRY_AFTER_S),
    (CallRefused, NO_RECORD, RETRY_AFTER_S),
)


def error_response(error: Error) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the response for an error of a step; raise an error that has none, such as `UsageError`."""
    for error_class, problem, retry_after_s in _PROBLEM_OF_ERROR:
        if isinstance(error, error_class):
            run = getattr(error.run, "run_id", "")
            # A request with a reused key does not learn the run of the request that has the key.
            members = {"run": run} if run and problem.status != 422 else {}
            return problem_response(problem, retry_after_s=retry_after_s, **members)
    raise error
