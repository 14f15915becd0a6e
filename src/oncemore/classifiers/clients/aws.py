"""Rules for botocore, and so for boto3.

A service's own error code decides first, then the HTTP status. If a 5xx status decides, it becomes the
code of the failure (HTTP_500), so that policies that list statuses cover AWS too. A failed condition
(`ConditionalCheckFailedException`) is a conflict. A cancelled DynamoDB transaction is classified by the
worst of its reasons. `LimitExceededException` means throttling in most services and a fixed quota in a
few; the error does not distinguish them, so it counts as throttled, bounded by the policy's attempts.

Transport errors are classified by class; the original error is in the keyword `error`, if anywhere.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import MAX_WAIT_S, classify_failed_status, get_header, parse_retry_after
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind, Sent

_THROTTLING_CODES: Final = (
    "BandwidthLimitExceeded EC2ThrottledException LimitExceededException PriorRequestNotComplete "
    "ProvisionedThroughputExceeded ProvisionedThroughputExceededException RequestLimitExceeded "
    "RequestThrottled RequestThrottledException SlowDown ThrottledException Throttling ThrottlingError "
    "ThrottlingException TooManyRequestsException"
)

_CODES: Final[dict[str, tuple[Kind, Sent]]] = {
    **dict.fromkeys(_THROTTLING_CODES.split(), ("throttled", "no")),
    "TransactionInProgressException": ("throttled", "maybe"),  # the first one is still running
    "RequestTimeout": ("transient", "maybe"),
    "RequestTimeoutException": ("transient", "maybe"),
    "TransactionConflict": ("transient", "no"),
    "TransactionConflictException": ("transient", "no"),
    "OperationAborted": ("transient", "no"),
    "ConditionalCheckFailed": ("conflict", "no"),
    "ConditionalCheckFailedException": ("conflict", "no"),
}
#: Rank of the kinds, for the reasons of a cancelled transaction.
_SEVERITY: Final = {"transient": 0, "throttled": 1, "conflict": 2, "permanent": 3}


def _classify_response(error: BaseException, classification: Classification, _rule: str) -> Failure | None:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    meta = _response_part(response, "ResponseMetadata")
    status, headers = meta.get("HTTPStatusCode"), meta.get("HTTPHeaders")
    by_status = (
        classify_failed_status(status, headers, classification.now)
        if isinstance(status, int) and status >= 300
        else None
    )
    code = _response_part(response, "Error").get("Code")
    # The answer to a HEAD request has no body; botocore then uses the status as the code.
    if not isinstance(code, str) or code.isdigit():
        return by_status
    meaning = _lookup_code(code, response)
    # An unknown code leaves the kind to the status.
    kind, sent = meaning or (by_status[:2] if by_status else ("permanent", "maybe"))
    wait = None if kind == "permanent" else _read_retry_after(headers, classification.now)
    if meaning is None and by_status is not None and isinstance(status, int) and status >= 500:
        return (
            by_status
            if wait is None or by_status.retry_after is not None
            else by_status._replace(retry_after=wait)
        )
    return Failure(kind, sent, wait, f"AWS_{_clean_code(code)}", "botocore:code")


def _lookup_code(code: str, response: dict[str, object]) -> tuple[Kind, Sent] | None:
    reasons = response.get("CancellationReasons")
    if code != "TransactionCanceledException" or not isinstance(reasons, list):
        return _CODES.get(code)
    # Items of the transaction that did not fail have the code "None".
    codes = [reason.get("Code") for reason in reasons if isinstance(reason, dict)]
    meanings = [_CODES.get(c, ("permanent", "no")) for c in codes if c not in (None, "None")]
    return max(meanings, key=lambda meaning: _SEVERITY[meaning[0]], default=None)


def _read_retry_after(headers: object, now: float) -> float | None:
    """Return the wait from `Retry-After`, else from AWS's own field in milliseconds."""
    wait = parse_retry_after(get_header(headers, "Retry-After"), now)
    milliseconds = get_header(headers, "x-amz-retry-after") or ""
    if wait is None and milliseconds.isascii() and milliseconds.isdigit():
        wait = min(float(milliseconds) / 1000, MAX_WAIT_S)
    return wait


def _response_part(response: dict[str, object], name: str) -> dict[str, object]:
    part = response.get(name)
    return part if isinstance(part, dict) else {}


def _clean_code(code: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in code[:80])


def _classify_wrapped(error: BaseException, classification: Classification) -> Failure | None:
    arguments = getattr(error, "kwargs", None)
    return classification.classify_if_known(arguments.get("error")) if isinstance(arguments, dict) else None


def _make_transport_rule(sent: Sent, default_code: str) -> Reading:
    """Return the rule for a transport error: `error=` gives the code, the class gives `sent`."""

    def read(error: BaseException, classification: Classification, rule: str) -> Failure:
        inner = _classify_wrapped(error, classification)
        code = default_code if inner is None else inner.code
        kind: Kind = "permanent" if code == "TLS" else "transient"
        return Failure(kind, sent, None, code, rule)

    return read


def _classify_tls_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    return _classify_wrapped(error, classification) or Failure("permanent", "maybe", None, "TLS", rule)


TABLES: Final[dict[str, Table]] = {
    "botocore": {
        "ClientError": _classify_response,
        "EndpointConnectionError": _make_transport_rule("no", "CONNECTION_FAILED"),
        "ConnectTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "ProxyConnectionError": ("transient", "no", "PROXY"),
        "SSLError": _classify_tls_error,
        "ReadTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "ConnectionClosedError": _make_transport_rule("maybe", "CONNECTION_CLOSED"),
        "ConnectionError": _make_transport_rule("maybe", "CONNECTION_ERROR"),
        "HTTPClientError": _make_transport_rule("maybe", "CONNECTION_ERROR"),
        "ResponseStreamingError": ("transient", "maybe", "BODY_CUT"),
        "IncompleteReadError": ("transient", "maybe", "BODY_CUT"),
        "CapacityNotAvailableError": ("throttled", "no", "AWS_CapacityNotAvailable"),
        "ChecksumError": ("permanent", "maybe", ""),
        "FlexibleChecksumError": ("permanent", "maybe", ""),
        "WaiterError": ("permanent", "maybe", ""),
        "BotoCoreError": (
            "permanent",
            "no",
            "",
        ),  # wrong parameters, credentials or regions: refused by the client
    }
}
