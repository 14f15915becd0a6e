"""What the errors of grpc and grpc.aio mean: the status decides.

* UNAVAILABLE may have taken effect, also when its words are "failed to connect": a service that relays
  another's failure uses the same words, and nothing else in the error tells whose they are.
* ABORTED means not applied: begin the whole read-modify-write again, which is what a new attempt is.
* RESOURCE_EXHAUSTED asks us to slow down, except where a message is larger than it may be: that will
  not change.
* CANCELLED was cancelled by somebody: permanent. A call that we cancelled ourselves is a cancellation
  like any other.

A status that carries a `RetryInfo`, or the field `grpc-retry-pushback-ms`, says how long to stay away;
an UNAVAILABLE that does is throttled, as a 503 with a `Retry-After` is. A pushback that is
no number means "do not try again" (so says gRPC's proposal A6) and is obeyed.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import LONGEST
from oncemore.classifiers.retry_after import in_status
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

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
_MOST_METADATA: Final = 100


def by_status(name: object, call: object, rule: str) -> Failure | None:
    """Say what a status means; `call` is where its words and metadata are, if anywhere."""
    if not isinstance(name, str) or name not in _STATUSES:
        return None
    kind, sent = _STATUSES[name]
    if name == "RESOURCE_EXHAUSTED" and "larger than max" in _words(call):
        kind, sent = "permanent", "maybe"
    if kind not in ("transient", "throttled"):
        return Failure(kind, sent, None, f"GRPC_{name}", rule)
    wait = _wait(call)
    if wait is not None and wait < 0:
        return Failure("permanent", sent, None, f"GRPC_{name}", rule)
    if wait is not None and name == "UNAVAILABLE":
        kind = "throttled"
    return Failure(kind, sent, wait, f"GRPC_{name}", rule)


def _call(error: BaseException, _look: Look, _rule: str) -> Failure | None:
    code = getattr(error, "code", None)
    status = code() if callable(code) else None
    return by_status(getattr(status, "name", None), error, "grpc:status")


def _words(call: object) -> str:
    details = getattr(call, "details", None)
    words = details() if callable(details) else None
    return words[:1000] if isinstance(words, str) else ""


def _wait(call: object) -> float | None:
    """Return the seconds that the metadata at the end of a call ask for; negative: do not try again."""
    trailing = getattr(call, "trailing_metadata", None)
    found = trailing() if callable(trailing) else None
    for place, pair in enumerate(found or ()):
        if place >= _MOST_METADATA or not isinstance(pair, tuple) or len(pair) != 2:
            return None
        name, value = pair
        if name == "grpc-status-details-bin" and (wait := in_status(value)) is not None:
            return wait
        if name == "grpc-retry-pushback-ms" and isinstance(value, str):
            usable = value.isascii() and value.isdigit() and len(value) < 20
            return min(float(value) / 1000, LONGEST) if usable else -1.0
    return None


TABLES: Final[dict[str, Table]] = {
    "grpc": {
        "RpcError": _call,
        "FutureTimeoutError": ("transient", "maybe", "TIMEOUT"),
        "FutureCancelledError": ("permanent", "maybe", "CANCELLED"),
        "UsageError": ("permanent", "no", ""),
        "AbortError": ("permanent", "maybe", ""),
        "InternalError": ("permanent", "maybe", ""),
        "BaseError": ("permanent", "maybe", ""),
    }
}
