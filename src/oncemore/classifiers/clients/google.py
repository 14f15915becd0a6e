"""Rules for google-api-core and google-auth.

The answer inside an error shows whether the call used HTTP or gRPC; each has its own codes. Without an
answer, the classes that exist only for gRPC (`Aborted`, `ResourceExhausted`…) are classified by their
gRPC status and the rest by their HTTP status. The rule for `RetryError` is in `wrappers`.

google-auth raises its errors while fetching a token and marks transient ones with `retryable`.
"""

from __future__ import annotations

from oncemore.classifiers.clients.grpc import classify_grpc_status
from oncemore.classifiers.http_status import classify_failed_status
from oncemore.classifiers.retry_after import delay_from_details
from oncemore.classifiers.rules import make_wrapper_rule
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table


def _classify_response(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    response = getattr(error, "response", None)
    # Over gRPC, the "response" is the gRPC call, which is itself an exception.
    if isinstance(response, BaseException):
        return classification.classify_if_known(response)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        return _classify_http_status(status, response, error, classification)
    name = getattr(getattr(error, "grpc_status_code", None), "name", None)
    # Classes that exist only for gRPC inherit their HTTP code; the others define it themselves.
    if name is not None and "code" not in vars(type(error)):
        return classify_grpc_status(name, None, rule)
    code = getattr(error, "code", None)
    return _classify_http_status(code, None, error, classification) if isinstance(code, int) else None


def _classify_http_status(
    status: int, response: object, error: BaseException, classification: Classification
) -> Failure:
    failure = classify_failed_status(int(status), getattr(response, "headers", None), classification.now)
    if failure.may_pass and failure.retry_after is None:
        wait = delay_from_details(getattr(error, "details", None))
        return failure if wait is None else failure._replace(kind="throttled", retry_after=wait)
    return failure


def _classify_stalled_transfer(error: BaseException, classification: Classification, rule: str) -> Failure:
    return _classify_response(error, classification, rule) or Failure(
        "transient", "maybe", None, "TIMEOUT_WRITE", rule
    )


def _classify_resumable_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    failure = _classify_response(error, classification, rule)
    return failure or Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)


def _classify_auth_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    inner = classification.classify_wrapped(error)
    if inner is not None and inner.may_pass:
        return inner
    # "no": the request itself is only sent after the token was fetched.
    if getattr(error, "retryable", False) is True:
        return Failure("transient", "no", None, f"EXC_{type(error).__name__[:80]}", rule)
    return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


TABLES: Final[dict[str, Table]] = {
    "google": {
        "GoogleAPICallError": _classify_response,
        "TransferStalledError": _classify_stalled_transfer,
        "ResumableTransferError": _classify_resumable_error,
        "GoogleAPIError": ("permanent", "maybe", ""),
        "DuplicateCredentialArgs": ("permanent", "no", ""),
        "AsyncRestUnsupportedParameterError": ("permanent", "no", ""),
        "TransportError": make_wrapper_rule("transient", "maybe", "CONNECTION_ERROR"),
        "TimeoutError": ("transient", "maybe", "TIMEOUT"),
        "GoogleAuthError": _classify_auth_error,
    }
}
