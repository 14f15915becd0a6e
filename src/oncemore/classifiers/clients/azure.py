"""What the errors of azure-core, and so of Azure's clients, mean.

The status decides, with azure-core's own list of what passes: HTTP's, and everything from 506 up. Its
classes for a resource that exists or was modified are conflicts whatever their status.

`ServiceRequestError` is said to mean that nothing was sent. Through aiohttp it is also what becomes of
a server that hung up in the middle, so what is beneath (`inner_exception`) has the last word on that.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import failed_status
from oncemore.classifiers.retry_after import milliseconds
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind

#: What is beneath when a connection was made and used, whatever the class above it claims.
_IN_USE: Final = (
    "CONNECTION_CLOSED", "CONNECTION_RESET", "CONNECTION_ABORTED", "TIMEOUT_READ", "TIMEOUT_WRITE",
    "BODY_CUT", "PROTOCOL", "DECODE",
)  # fmt: skip
_CONNECTING: Final = {"TIMEOUT": "TIMEOUT_CONNECT", "CONNECTION_ERROR": "CONNECTION_FAILED"}


def _status(error: BaseException, look: Look, rule: str) -> Failure:
    status = getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    if not isinstance(status, int):
        return _beneath(error, look) or Failure("permanent", "maybe", None, "HTTP", rule)
    headers = getattr(response, "headers", None)
    found = failed_status(int(status), headers, look.now)
    if found.kind == "permanent" and status >= 506:
        found = Failure("transient", "maybe", None, found.code, found.rule)
    if not found.passing or found.retry_after is not None:
        return found
    wait = milliseconds(headers, "retry-after-ms", "x-ms-retry-after-ms")
    return found if wait is None else found._replace(retry_after=wait)


def _always(kind: Kind) -> Reading:
    """Make the rule for a class that is of one kind, whatever the status it came with."""

    def read(error: BaseException, look: Look, rule: str) -> Failure:
        found = _status(error, look, rule)
        return Failure(kind, "no", None, found.code, rule)

    return read


def _before(error: BaseException, look: Look, rule: str) -> Failure:
    inner = _beneath(error, look)
    if inner is None:
        return Failure("transient", "no", None, "CONNECTION_FAILED", rule)
    if inner.code in _IN_USE:
        return inner._replace(sent="maybe")
    kind: Kind = "transient" if inner.passing else "permanent"
    return Failure(kind, "no", None, _CONNECTING.get(inner.code, inner.code), rule)


def _after(error: BaseException, look: Look, rule: str) -> Failure:
    inner = _beneath(error, look)
    if inner is None:
        return Failure("transient", "maybe", None, "CONNECTION_ERROR", rule)
    return Failure("transient" if inner.passing else "permanent", "maybe", None, inner.code, rule)


def _beneath(error: BaseException, look: Look) -> Failure | None:
    return look.known(getattr(error, "inner_exception", None)) or look.beneath(error)


TABLES: Final[dict[str, Table]] = {
    "azure": {
        "HttpResponseError": _status,
        "ResourceExistsError": _always("conflict"),
        "ResourceModifiedError": _always("conflict"),
        "ResourceNotFoundError": _always("permanent"),
        "ClientAuthenticationError": _always("permanent"),
        "TooManyRedirectsError": ("permanent", "maybe", "REDIRECTS"),
        "DecodeError": ("permanent", "maybe", "DECODE"),
        "IncompleteReadError": ("transient", "maybe", "BODY_CUT"),
        "ServiceRequestError": _before,
        "ServiceRequestTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "ServiceResponseError": _after,
        "ServiceResponseTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "SerializationError": ("permanent", "no", ""),
        "DeserializationError": ("permanent", "maybe", "DECODE"),
        "AzureError": ("permanent", "maybe", ""),
    }
}
