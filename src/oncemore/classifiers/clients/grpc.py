"""Rules for grpc and grpc.aio: the status decides.

* UNAVAILABLE may have taken effect, even with the text "failed to connect": a service that forwards the
  failure of another service uses the same text.
* ABORTED means not applied: repeat the whole read-modify-write, which a new attempt does.
* RESOURCE_EXHAUSTED asks us to slow down, except for a message above the size limit, which is
  permanent.
* CANCELLED means that the other side cancelled the call: permanent. A call that we cancelled
  ourselves is an ordinary cancellation.

A status with a `RetryInfo`, or the field `grpc-retry-pushback-ms`, gives a wait time; an UNAVAILABLE
with a wait time is throttled, like a 503 with a `Retry-After`. A pushback that is not a number means "do
not retry" (gRPC proposal A6), and we obey it.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import MAX_WAIT_S
from oncemore.classifiers.retry_after import delay_from_status
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

#: Kind and `sent` by the name of the status.
_STATUSES: Final[dict[str, tuple[Kind, Sent]]] = {
    "CANCELLED": ("permanent", "maybe"),
    "UNKNOWN": ("transient", "maybe"),
    "INVALID_ARGUMENT": ("permanent", "no"),
    "DEADLINE_EXCEEDED": ("transient", "maybe"),
    "NOT_FOUND": ("permanent", "no"),
    "ALREADY_EXISTS": ("conflict", "no"),
    "PERMISSION_DENIED": ("permanent", "no"),
    "RESOURCE_EXHAUSTED": ("throttled", "no"),
    "FAILED_PRECONDITION": ("permanent", "no"),
    "ABORTED": ("transient", "no"),
    "OUT_OF_RANGE": ("permanent", "no"),
    "UNIMPLEMENTED": ("permanent", "no"),
    "INTERNAL": ("transient", "maybe"),
    "UNAVAILABLE": ("transient", "maybe"),
    "DATA_LOSS": ("permanent", "maybe"),
    "UNAUTHENTICATED": ("permanent", "no"),
}
_MAX_METADATA: Final = 100


def classify_grpc_status(name: object, call: object, rule: str) -> Failure | None:
    """Return the failure for a status name; `call` holds its text and metadata, or is None."""
    if not isinstance(name, str) or name not in _STATUSES:
        return None
    kind, sent = _STATUSES[name]
    if name == "RESOURCE_EXHAUSTED" and "larger than max" in _call_details(call):
        kind, sent = "permanent", "maybe"
    if kind not in ("transient", "throttled"):
        return Failure(kind, sent, None, f"GRPC_{name}", rule)
    # Only transient and throttled statuses are worth reading the metadata for.
    wait = _read_retry_delay(call)
    # The server forbids a retry.
    if wait is not None and wait < 0:
        return Failure("permanent", sent, None, f"GRPC_{name}", rule)
    if wait is not None and name == "UNAVAILABLE":
        kind = "throttled"
    return Failure(kind, sent, wait, f"GRPC_{name}", rule)


def _classify_call(error: BaseException, _classification: Classification, _rule: str) -> Failure | None:
    code = getattr(error, "code", None)
    status = code() if callable(code) else None
    return classify_grpc_status(getattr(status, "name", None), error, "grpc:status")


def _call_details(call: object) -> str:
    details = getattr(call, "details", None)
    text = details() if callable(details) else None
    return text[:1000] if isinstance(text, str) else ""


def _read_retry_delay(call: object) -> float | None:
    """Return the seconds from a call's trailing metadata; negative: do not retry."""
    trailing = getattr(call, "trailing_metadata", None)
    metadata = trailing() if callable(trailing) else None
    for position, pair in enumerate(metadata or ()):
        if position >= _MAX_METADATA or not isinstance(pair, tuple) or len(pair) != 2:
            return None
        name, value = pair
        if name == "grpc-status-details-bin" and (wait := delay_from_status(value)) is not None:
            return wait
        if name == "grpc-retry-pushback-ms" and isinstance(value, str):
            is_number = value.isascii() and value.isdigit() and len(value) < 20
            return min(float(value) / 1000, MAX_WAIT_S) if is_number else -1.0
    return None


TABLES: Final[dict[str, Table]] = {
    "grpc": {
        "RpcError": _classify_call,
        "FutureTimeoutError": ("transient", "maybe", "TIMEOUT"),
        "FutureCancelledError": ("permanent", "maybe", "CANCELLED"),
        "UsageError": ("permanent", "no", ""),
        "AbortError": ("permanent", "maybe", ""),
        "InternalError": ("permanent", "maybe", ""),
        "BaseError": ("permanent", "maybe", ""),
    }
}
