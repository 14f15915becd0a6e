"""What the errors of urllib and http.client mean.

urllib wraps whatever went wrong until the request was written in a `URLError` whose `reason` is the
original; what goes wrong later comes bare. `HTTPError` is a `URLError` too, and told apart first by
being the more special class.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import failed_status
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table


def _status(error: BaseException, look: Look, _rule: str) -> Failure | None:
    status = getattr(error, "code", None)
    return (
        failed_status(status, getattr(error, "headers", None), look.now) if isinstance(status, int) else None
    )


def _reason(error: BaseException, look: Look, rule: str) -> Failure | None:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return look.known(reason) or Failure("transient", "maybe", None, "CONNECTION_ERROR", rule)
    # A reason in words is about the address ("unknown url type"), unless it was raised from something.
    return look.beneath(error) or Failure("permanent", "no", None, "INVALID_URL", rule)


TABLES: Final[dict[str, Table]] = {
    "urllib": {
        "HTTPError": _status,
        "URLError": _reason,
        "ContentTooShortError": ("transient", "maybe", "BODY_CUT"),
    },
    "http": {
        "RemoteDisconnected": ("transient", "maybe", "CONNECTION_CLOSED"),
        "IncompleteRead": ("transient", "maybe", "BODY_CUT"),
        "BadStatusLine": ("transient", "maybe", "PROTOCOL"),
        "LineTooLong": ("transient", "maybe", "PROTOCOL"),
        "UnknownProtocol": ("permanent", "maybe", "PROTOCOL"),
        "UnknownTransferEncoding": ("permanent", "maybe", "PROTOCOL"),
        "InvalidURL": ("permanent", "no", "INVALID_URL"),
        "NotConnected": ("permanent", "no", ""),
        "ImproperConnectionState": ("permanent", "maybe", ""),  # requests sent out of turn: a bug
        "UnimplementedFileMode": ("permanent", "no", ""),
        "HTTPException": ("transient", "maybe", "PROTOCOL"),
    },
}
