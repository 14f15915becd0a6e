"""What the errors of openai and anthropic mean; the two are made by one generator.

The server's own word wins: the field `x-should-retry`, then its error code, then the status. Both
clients know more statuses that pass than HTTP at large: 409 is a lock that was not got in time, and
every status from 500 up passes, except 501 and 505. A spent quota is a 429 too, and will not pass
by waiting: it has a code of its own, so that no policy that retries HTTP_429 burns attempts on it.

An error inside a stream comes after a status of 200: it is read by its type, as the status that the
same fault has without a stream, and may have taken effect, since the answer had begun.

Connection errors and timeouts hold httpx's error, which says when it happened.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import failed_status, field
from oncemore.classifiers.retry_after import milliseconds
from oncemore.classifiers.rules import wrapping
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table

QUOTA: Final = "QUOTA_EXHAUSTED"
_SPENT: Final = ("insufficient_quota", "billing_hard_limit_reached", "enforced_spend_limit_reached")

#: What the same fault has as a status when it is not inside a stream.
_TYPES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "requests": 429,
    "tokens": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def _status(error: BaseException, look: Look, rule: str) -> Failure | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if _quota(error):
        return Failure("permanent", "no", None, QUOTA, rule)
    if not isinstance(status, int) or status < 400:
        return _in_stream(error, look, rule)
    headers = getattr(response, "headers", None)
    found = failed_status(status, headers, look.now)
    if found.kind == "conflict" and status == 409:
        found = found._replace(kind="transient")
    if found.kind == "permanent" and status > 505:
        found = Failure("transient", "maybe", None, found.code, found.rule)
    said = field(headers, "x-should-retry")
    if said == "false":
        return Failure("permanent", found.sent, None, found.code, f"{rule}:x-should-retry")
    if said == "true" and not found.passing:
        found = Failure("transient", found.sent, None, found.code, f"{rule}:x-should-retry")
    wait = milliseconds(headers, "retry-after-ms") if found.passing else None
    return found if wait is None else found._replace(retry_after=wait)


def _in_stream(error: BaseException, look: Look, rule: str) -> Failure | None:
    if _quota(error):
        return Failure("permanent", "maybe", None, QUOTA, rule)
    status = next((_TYPES[word] for word in _said(error) if word in _TYPES), None)
    return None if status is None else failed_status(status, None, look.now)._replace(sent="maybe")


def _token(error: BaseException, look: Look, rule: str) -> Failure:
    """Read why no token was to be had; the request itself was not sent."""
    found = _status(error, look, rule) or look.beneath(error)
    return (
        Failure("permanent", "no", None, "EXC_SubjectTokenProviderError", rule)
        if found is None
        else found._replace(sent="no")
    )


def _quota(error: BaseException) -> bool:
    return any(word in _SPENT for word in _said(error))


def _said(error: BaseException) -> list[str]:
    """Return the server's own codes: as attributes of the error, else in the body of the answer."""
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    places = [part for part in (body, inner) if isinstance(part, dict)]
    found = [getattr(error, name, None) for name in ("error_code", "code", "type")]
    found += [part.get(name) for part in places for name in ("code", "type")]
    return [word for word in found if isinstance(word, str)]


_SHARED: Final[Table] = {
    "APIStatusError": _status,
    "APIConnectionError": wrapping("transient", "maybe", "CONNECTION_ERROR"),
    "APITimeoutError": wrapping("transient", "maybe", "TIMEOUT_READ"),
    "APIResponseValidationError": ("permanent", "maybe", "DECODE"),
    "APIError": _in_stream,
}

TABLES: Final[dict[str, Table]] = {
    "openai": {
        **_SHARED,
        "LengthFinishReasonError": ("permanent", "maybe", ""),
        "ContentFilterFinishReasonError": ("permanent", "maybe", ""),
        "SubjectTokenProviderError": _token,
        "WebSocketConnectionClosedError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "WebSocketQueueFullError": ("throttled", "no", "QUEUE_FULL"),
        "OpenAIError": ("permanent", "maybe", ""),
    },
    "anthropic": {
        **_SHARED,
        "APIWebhookValidationError": ("permanent", "no", ""),
        "RetryableError": ("transient", "maybe", ""),
        "CredentialsError": ("permanent", "no", ""),
        "AnthropicError": ("permanent", "maybe", ""),
    },
}
