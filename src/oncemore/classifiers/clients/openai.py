"""Rules for openai and anthropic, whose clients come from one generator.

The server's own statement wins: the header `x-should-retry`, then its error code, then the status. Both
clients know more transient statuses than HTTP: 409 is a lock timeout, and every status from 500 up is
transient, except 501 and 505. An exhausted quota is also a 429 but does not pass by waiting: it has a
code of its own, so that a policy for HTTP_429 spends no attempts on it.

An error inside a stream follows a status of 200. It is classified by its type, like the status of the
same fault outside a stream, and may have taken effect, because the answer had started.

Connection errors and timeouts wrap httpx's error, which shows when it happened.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import classify_failed_status, get_header
from oncemore.classifiers.retry_after import read_milliseconds
from oncemore.classifiers.rules import make_wrapper_rule
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table

QUOTA_CODE: Final = "QUOTA_EXHAUSTED"
#: Error codes that mean an exhausted quota.
_QUOTA_WORDS: Final = ("insufficient_quota", "billing_hard_limit_reached", "enforced_spend_limit_reached")

#: The status of the same fault outside a stream.
_STATUS_BY_TYPE: Final = {
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


def _classify_response(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    # Checked before the status: the 429 of an exhausted quota would count as throttled.
    if _is_quota_error(error):
        return Failure("permanent", "no", None, QUOTA_CODE, rule)
    if not isinstance(status, int) or status < 400:
        return _classify_stream_error(error, classification, rule)
    headers = getattr(response, "headers", None)
    failure = classify_failed_status(status, headers, classification.now)
    # The server could not get a lock in time; nothing conflicts with this request.
    if failure.kind == "conflict" and status == 409:
        failure = failure._replace(kind="transient")
    if failure.kind == "permanent" and status > 505:
        failure = Failure("transient", "maybe", None, failure.code, failure.rule)
    should_retry = get_header(headers, "x-should-retry")
    if should_retry == "false":
        return Failure("permanent", failure.sent, None, failure.code, f"{rule}:x-should-retry")
    if should_retry == "true" and not failure.may_pass:
        failure = Failure("transient", failure.sent, None, failure.code, f"{rule}:x-should-retry")
    wait = read_milliseconds(headers, "retry-after-ms") if failure.may_pass else None
    return failure if wait is None else failure._replace(retry_after=wait)


def _classify_stream_error(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    if _is_quota_error(error):
        return Failure("permanent", "maybe", None, QUOTA_CODE, rule)
    status = next((_STATUS_BY_TYPE[word] for word in _server_codes(error) if word in _STATUS_BY_TYPE), None)
    return (
        None
        if status is None
        else classify_failed_status(status, None, classification.now)._replace(sent="maybe")
    )


def _classify_token_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    """Classify a failure to fetch a token; the request itself was not sent."""
    failure = _classify_response(error, classification, rule) or classification.classify_wrapped(error)
    return (
        Failure("permanent", "no", None, "EXC_SubjectTokenProviderError", rule)
        if failure is None
        else failure._replace(sent="no")
    )


def _is_quota_error(error: BaseException) -> bool:
    return any(word in _QUOTA_WORDS for word in _server_codes(error))


def _server_codes(error: BaseException) -> list[str]:
    """Return the server's own codes: from attributes of the error and from the body of the answer."""
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    parts = [part for part in (body, inner) if isinstance(part, dict)]
    codes = [getattr(error, name, None) for name in ("error_code", "code", "type")]
    codes += [part.get(name) for part in parts for name in ("code", "type")]
    return [word for word in codes if isinstance(word, str)]


_SHARED: Final[Table] = {
    "APIStatusError": _classify_response,
    "APIConnectionError": make_wrapper_rule("transient", "maybe", "CONNECTION_ERROR"),
    "APITimeoutError": make_wrapper_rule("transient", "maybe", "TIMEOUT_READ"),
    "APIResponseValidationError": ("permanent", "maybe", "DECODE"),
    "APIError": _classify_stream_error,
}

TABLES: Final[dict[str, Table]] = {
    "openai": {
        **_SHARED,
        "LengthFinishReasonError": ("permanent", "maybe", ""),
        "ContentFilterFinishReasonError": ("permanent", "maybe", ""),
        "SubjectTokenProviderError": _classify_token_error,
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
