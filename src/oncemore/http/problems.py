"""What an idempotent endpoint answers instead of the application: problem details (RFC 9457), as a table.

Each says what happened, and whether the same request may come again: only where it may is there a
`Retry-After`. Nothing in them is from another request: whoever guesses a key learns that it is taken.
"""

from __future__ import annotations

from json import dumps

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MEDIA_TYPE: Final = b"application/problem+json"
TYPE: Final = "urn:oncemore:idempotency:"


class Problem(Value):
    """A kind of refusal: status, title, what it means for the client."""

    status: int
    slug: str
    title: str
    detail: str


MISSING: Final = Problem(
    400,
    "key-missing",
    "Idempotency-Key is missing",
    'This request needs a key of its own: Idempotency-Key: "…", a UUID for example; the same one each time '
    "that this request is sent.",
)
MALFORMED: Final = Problem(400, "key-malformed", "Idempotency-Key is malformed", "")
TOO_LARGE: Final = Problem(
    413,
    "request-too-large",
    "The request is too large",
    "A request with an Idempotency-Key is read whole before it is begun; this one is longer than may be.",
)
CUT_OFF: Final = Problem(
    400, "request-cut-off", "The request is not whole", "The connection ended before the request did."
)
OTHER_PAYLOAD: Final = Problem(
    422,
    "key-reused",
    "Idempotency-Key belongs to another request",
    "This key was sent before with another method, address or body. A new request needs a new key.",
)
IN_PROGRESS: Final = Problem(
    409,
    "in-progress",
    "The first request is still being worked on",
    "A request with this key is under way. Send the same again later; its answer will be the first one's.",
)
UNKNOWN: Final = Problem(
    409,
    "outcome-unknown",
    "Nobody knows whether it was done",
    "A request with this key was begun and did not come to its end; it may have taken effect, and it is not "
    "done a second time. A person has to look: ask whoever runs this service.",
)
HELD: Final = Problem(
    409,
    "held",
    "It waits for a person",
    "A request with this key could not be brought to its end, and is not tried again before somebody has "
    "looked at it: ask whoever runs this service.",
)
GIVEN_UP: Final = Problem(
    409,
    "given-up",
    "It is not tried again",
    "A request with this key was tried as often as it may be, and had no effect. A new one needs a new key.",
)
NO_ANSWER: Final = Problem(
    500,
    "no-answer",
    "The application gave no answer",
    "It ended before its answer was whole. The same request may be sent again, with the same key.",
)
NOT_KEPT: Final = Problem(
    409,
    "answer-not-kept",
    "It is done, and its answer was not kept",
    "A request with this key was carried out. Its answer was too large to be kept, and it is not done a "
    "second time.",
)
EXPIRED: Final = Problem(
    410,
    "key-expired",
    "Idempotency-Key has expired",
    "A request with this key was carried out, and its answer is no longer kept. A new one needs a new key.",
)
NOT_YET: Final = Problem(
    503,
    "not-yet",
    "Not yet",
    "A request with this key was turned away a moment ago. Send the same one again later.",
)
NO_RECORD: Final = Problem(
    503,
    "no-record",
    "What was done cannot be recorded",
    "The service cannot write down what it does, or read what it did. It may have been done: send the same "
    "request again later, with the same key.",
)


def answer_of(
    problem: Problem, detail: str = "", retry_after_s: float | None = None, **members: str
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the answer that tells a problem: status, header fields, body."""
    told = {
        "type": TYPE + problem.slug,
        "title": problem.title,
        "status": problem.status,
        "detail": detail or problem.detail,
        **members,
    }
    body = dumps(told).encode()
    fields = [(b"content-type", MEDIA_TYPE), (b"content-length", b"%d" % len(body))]
    if retry_after_s is not None:
        whole = int(retry_after_s) + (retry_after_s > int(retry_after_s))
        fields.append((b"retry-after", b"%d" % max(1, whole)))
    return problem.status, fields, body
