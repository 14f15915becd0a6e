"""Rules for azure-core, and so for Azure's clients.

The status decides, with azure-core's own list of transient statuses: HTTP's, and all from 506 up. Its
classes for an existing or modified resource are conflicts under every status.

`ServiceRequestError` is documented as "nothing was sent". Through aiohttp it also covers a server that
closed the connection during the request, so the wrapped error (`inner_exception`) decides about `sent`.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import classify_failed_status
from oncemore.classifiers.retry_after import read_milliseconds
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind

#: Codes of a wrapped error that prove that a connection was established and used.
_IN_USE: Final = (
    "CONNECTION_CLOSED", "CONNECTION_RESET", "CONNECTION_ABORTED", "TIMEOUT_READ", "TIMEOUT_WRITE",
    "BODY_CUT", "PROTOCOL", "DECODE",
)  # fmt: skip
_CONNECT_CODES: Final = {"TIMEOUT": "TIMEOUT_CONNECT", "CONNECTION_ERROR": "CONNECTION_FAILED"}


def _classify_status(error: BaseException, classification: Classification, rule: str) -> Failure:
    status = getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    if not isinstance(status, int):
        return _classify_wrapped(error, classification) or Failure("permanent", "maybe", None, "HTTP", rule)
    headers = getattr(response, "headers", None)
    failure = classify_failed_status(int(status), headers, classification.now)
    # azure-core itself retries these; HTTP at large does not define them.
    if failure.kind == "permanent" and status >= 506:
        failure = Failure("transient", "maybe", None, failure.code, failure.rule)
    if not failure.may_pass or failure.retry_after is not None:
        return failure
    wait = read_milliseconds(headers, "retry-after-ms", "x-ms-retry-after-ms")
    return failure if wait is None else failure._replace(retry_after=wait)


def _make_fixed_rule(kind: Kind) -> Reading:
    """Return the rule for a class with a fixed kind; the status gives only the code."""

    def read(error: BaseException, classification: Classification, rule: str) -> Failure:
        failure = _classify_status(error, classification, rule)
        return Failure(kind, "no", None, failure.code, rule)

    return read


def _classify_request_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    inner = _classify_wrapped(error, classification)
    if inner is None:
        return Failure("transient", "no", None, "CONNECTION_FAILED", rule)
    # The class says "not sent", the wrapped error disproves it.
    if inner.code in _IN_USE:
        return inner._replace(sent="maybe")
    kind: Kind = "transient" if inner.may_pass else "permanent"
    return Failure(kind, "no", None, _CONNECT_CODES.get(inner.code, inner.code), rule)


def _classify_response_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    inner = _classify_wrapped(error, classification)
    if inner is None:
        return Failure("transient", "maybe", None, "CONNECTION_ERROR", rule)
    return Failure("transient" if inner.may_pass else "permanent", "maybe", None, inner.code, rule)


def _classify_wrapped(error: BaseException, classification: Classification) -> Failure | None:
    return classification.classify_if_known(
        getattr(error, "inner_exception", None)
    ) or classification.classify_wrapped(error)


TABLES: Final[dict[str, Table]] = {
    "azure": {
        "HttpResponseError": _classify_status,
        "ResourceExistsError": _make_fixed_rule("conflict"),
        "ResourceModifiedError": _make_fixed_rule("conflict"),
        "ResourceNotFoundError": _make_fixed_rule("permanent"),
        "ClientAuthenticationError": _make_fixed_rule("permanent"),
        "TooManyRedirectsError": ("permanent", "maybe", "REDIRECTS"),
        "DecodeError": ("permanent", "maybe", "DECODE"),
        "IncompleteReadError": ("transient", "maybe", "BODY_CUT"),
        "ServiceRequestError": _classify_request_error,
        "ServiceRequestTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "ServiceResponseError": _classify_response_error,
        "ServiceResponseTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "SerializationError": ("permanent", "no", ""),
        "DeserializationError": ("permanent", "maybe", "DECODE"),
        "AzureError": ("permanent", "maybe", ""),
    }
}
