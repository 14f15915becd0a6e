"""What the errors of botocore (and so of boto3) mean.

A service's own error code decides first, then the HTTP status; where a 5xx status decides, the failure
has that status as its code (HTTP_500), so that a policy which lists statuses covers the service too.
A condition that did not hold
(`ConditionalCheckFailedException`) is a conflict: an answer, not a fault. A cancelled DynamoDB
transaction is as bad as the worst of its reasons. `LimitExceededException` asks to slow down in most
services and is a fixed quota in a few; nothing in it tells, so it counts as throttled and the policy's
number of attempts bounds it.

Transport errors are told by class; the original is in the keyword `error`, or nowhere.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import LONGEST, failed_status, field, parse_retry_after
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind, Sent

_SLOW_DOWN: Final = (
    "BandwidthLimitExceeded EC2ThrottledException LimitExceededException PriorRequestNotComplete "
    "ProvisionedThroughputExceeded ProvisionedThroughputExceededException RequestLimitExceeded "
    "RequestThrottled RequestThrottledException SlowDown ThrottledException Throttling ThrottlingError "
    "ThrottlingException TooManyRequestsException"
)

_CODES: Final[dict[str, tuple[Kind, Sent]]] = {
    **dict.fromkeys(_SLOW_DOWN.split(), ("throttled", "no")),
    "TransactionInProgressException": ("throttled", "maybe"),  # the first one is still at it
    "RequestTimeout": ("transient", "maybe"),
    "RequestTimeoutException": ("transient", "maybe"),
    "TransactionConflict": ("transient", "no"),
    "TransactionConflictException": ("transient", "no"),
    "OperationAborted": ("transient", "no"),
    "ConditionalCheckFailed": ("conflict", "no"),
    "ConditionalCheckFailedException": ("conflict", "no"),
}
_WORSE: Final = {"transient": 0, "throttled": 1, "conflict": 2, "permanent": 3}


def _answer(error: BaseException, look: Look, _rule: str) -> Failure | None:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    meta = _part(response, "ResponseMetadata")
    status, headers = meta.get("HTTPStatusCode"), meta.get("HTTPHeaders")
    found = failed_status(status, headers, look.now) if isinstance(status, int) and status >= 300 else None
    code = _part(response, "Error").get("Code")
    if not isinstance(code, str) or code.isdigit():  # a HEAD request has no body: its code is the status
        return found
    meaning = _meaning(code, response)
    kind, sent = meaning or (found[:2] if found else ("permanent", "maybe"))
    wait = None if kind == "permanent" else _wait(headers, look.now)
    if meaning is None and found is not None and isinstance(status, int) and status >= 500:
        return found if wait is None or found.retry_after is not None else found._replace(retry_after=wait)
    return Failure(kind, sent, wait, f"AWS_{_tidy(code)}", "botocore:code")


def _meaning(code: str, response: dict[str, object]) -> tuple[Kind, Sent] | None:
    reasons = response.get("CancellationReasons")
    if code != "TransactionCanceledException" or not isinstance(reasons, list):
        return _CODES.get(code)
    codes = [reason.get("Code") for reason in reasons if isinstance(reason, dict)]
    meanings = [_CODES.get(c, ("permanent", "no")) for c in codes if c not in (None, "None")]
    return max(meanings, key=lambda meaning: _WORSE[meaning[0]], default=None)


def _wait(headers: object, now: float) -> float | None:
    """Read how long to stay away: what HTTP says, else AWS's own field, in milliseconds."""
    wait = parse_retry_after(field(headers, "Retry-After"), now)
    own = field(headers, "x-amz-retry-after") or ""
    if wait is None and own.isascii() and own.isdigit():
        wait = min(float(own) / 1000, LONGEST)
    return wait


def _part(response: dict[str, object], name: str) -> dict[str, object]:
    part = response.get(name)
    return part if isinstance(part, dict) else {}


def _tidy(code: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in code[:80])


def _beneath(error: BaseException, look: Look) -> Failure | None:
    named = getattr(error, "kwargs", None)
    return look.known(named.get("error")) if isinstance(named, dict) else None


def _transport(sent: Sent, otherwise: str) -> Reading:
    """Make the rule for an error of the wire: what `error=` holds says what, the class says when."""

    def read(error: BaseException, look: Look, rule: str) -> Failure:
        inner = _beneath(error, look)
        code = otherwise if inner is None else inner.code
        kind: Kind = "permanent" if code == "TLS" else "transient"
        return Failure(kind, sent, None, code, rule)

    return read


def _tls(error: BaseException, look: Look, rule: str) -> Failure:
    return _beneath(error, look) or Failure("permanent", "maybe", None, "TLS", rule)


TABLES: Final[dict[str, Table]] = {
    "botocore": {
        "ClientError": _answer,
        "EndpointConnectionError": _transport("no", "CONNECTION_FAILED"),
        "ConnectTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "ProxyConnectionError": ("transient", "no", "PROXY"),
        "SSLError": _tls,
        "ReadTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "ConnectionClosedError": _transport("maybe", "CONNECTION_CLOSED"),
        "ConnectionError": _transport("maybe", "CONNECTION_ERROR"),
        "HTTPClientError": _transport("maybe", "CONNECTION_ERROR"),
        "ResponseStreamingError": ("transient", "maybe", "BODY_CUT"),
        "IncompleteReadError": ("transient", "maybe", "BODY_CUT"),
        "CapacityNotAvailableError": ("throttled", "no", "AWS_CapacityNotAvailable"),
        "ChecksumError": ("permanent", "maybe", ""),
        "FlexibleChecksumError": ("permanent", "maybe", ""),
        "WaiterError": ("permanent", "maybe", ""),
        "BotoCoreError": ("permanent", "no", ""),  # parameters, credentials, regions: refused by the client
    }
}
