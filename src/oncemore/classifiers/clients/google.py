"""What the errors of google-api-core and google-auth mean.

An error knows whether it came over HTTP or over gRPC by the answer it carries; each has the codes of
its own way. Made without an answer, the classes that only gRPC has (`Aborted`, `ResourceExhausted`…)
count as such and the others by their HTTP status. Its `RetryError` is with the other wrappers, in
`retried`.

What google-auth raises happened while fetching a token; it says itself whether it may pass
(`retryable`).
"""

from __future__ import annotations

from oncemore.classifiers.clients.grpc import by_status
from oncemore.classifiers.http_status import failed_status
from oncemore.classifiers.retry_after import in_details
from oncemore.classifiers.rules import wrapping
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table


def _answer(error: BaseException, look: Look, rule: str) -> Failure | None:
    response = getattr(error, "response", None)
    if isinstance(response, BaseException):  # the gRPC call itself
        return look.known(response)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        return _by_http(status, response, error, look)
    name = getattr(getattr(error, "grpc_status_code", None), "name", None)
    if name is not None and "code" not in vars(type(error)):
        return by_status(name, None, rule)
    code = getattr(error, "code", None)
    return _by_http(code, None, error, look) if isinstance(code, int) else None


def _by_http(status: int, response: object, error: BaseException, look: Look) -> Failure:
    found = failed_status(int(status), getattr(response, "headers", None), look.now)
    if found.passing and found.retry_after is None:
        wait = in_details(getattr(error, "details", None))
        return found if wait is None else found._replace(kind="throttled", retry_after=wait)
    return found


def _stalled(error: BaseException, look: Look, rule: str) -> Failure:
    return _answer(error, look, rule) or Failure("transient", "maybe", None, "TIMEOUT_WRITE", rule)


def _gave_up(error: BaseException, look: Look, rule: str) -> Failure:
    found = _answer(error, look, rule)
    return found or Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)


def _token(error: BaseException, look: Look, rule: str) -> Failure:
    inner = look.beneath(error)
    if inner is not None and inner.passing:
        return inner
    if getattr(error, "retryable", False) is True:
        return Failure("transient", "no", None, f"EXC_{type(error).__name__[:80]}", rule)
    return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


TABLES: Final[dict[str, Table]] = {
    "google": {
        "GoogleAPICallError": _answer,
        "TransferStalledError": _stalled,
        "ResumableTransferError": _gave_up,
        "GoogleAPIError": ("permanent", "maybe", ""),
        "DuplicateCredentialArgs": ("permanent", "no", ""),
        "AsyncRestUnsupportedParameterError": ("permanent", "no", ""),
        "TransportError": wrapping("transient", "maybe", "CONNECTION_ERROR"),
        "TimeoutError": ("transient", "maybe", "TIMEOUT"),
        "GoogleAuthError": _token,
    }
}
