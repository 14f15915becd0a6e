"""What the errors of aiohttp mean.

Its TLS errors are also connector errors and come first by being the more special classes. Its total
timeout is the builtin `TimeoutError`, of which nobody knows the phase. An answer that is not HTTP is
a `ClientResponseError` that claims status 400, told from a real 400 by the parser's error beneath it.
"""

from __future__ import annotations

from oncemore.classifiers.clients.python import by_errno
from oncemore.classifiers.http_status import failed_status
from oncemore.classifiers.rules import connecting, talking
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table

_talking = talking("CONNECTION_ERROR")
_cut = talking("BODY_CUT")


def _status(error: BaseException, look: Look, rule: str) -> Failure:
    if type(error.__cause__).__module__ == "aiohttp.http_exceptions":
        return Failure("transient", "maybe", None, "PROTOCOL", rule)
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return failed_status(status, getattr(error, "headers", None), look.now)
    return Failure("permanent", "maybe", None, "HTTP", rule)


def _broken(error: BaseException, look: Look, rule: str) -> Failure | None:
    """Read a broken socket by its own number: the error is an OSError itself."""
    found = by_errno(error, look, rule)
    if found is not None and found.passing:
        return found._replace(sent="maybe")
    return _talking(error, look, rule)


def _body(error: BaseException, look: Look, rule: str) -> Failure | None:
    if type(error.__cause__).__name__ == "ContentEncodingError":
        return Failure("permanent", "maybe", None, "DECODE", rule)
    return _cut(error, look, rule)


TABLES: Final[dict[str, Table]] = {
    "aiohttp": {
        "ClientResponseError": _status,
        "ContentTypeError": ("permanent", "maybe", "DECODE"),
        "TooManyRedirects": ("permanent", "maybe", "REDIRECTS"),
        "ClientConnectorError": connecting,
        "ClientConnectorDNSError": ("transient", "no", "DNS"),
        "ClientConnectorCertificateError": ("permanent", "no", "TLS"),
        "ClientSSLError": connecting,
        "ServerFingerprintMismatch": ("permanent", "no", "TLS"),
        "ConnectionTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "SocketTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "ServerTimeoutError": ("transient", "maybe", "TIMEOUT"),
        "ClientConnectionResetError": ("transient", "maybe", "CONNECTION_RESET"),
        "ClientOSError": _broken,
        "ServerDisconnectedError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "ClientConnectionError": _talking,
        "ClientPayloadError": _body,
        "UploadAbortedError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "WebSocketError": ("transient", "maybe", "PROTOCOL"),
        "WSMessageTypeError": ("permanent", "maybe", ""),
        "InvalidURL": ("permanent", "no", "INVALID_URL"),
        "NonHttpUrlClientError": ("permanent", "no", "INVALID_URL"),
        "RedirectClientError": ("permanent", "maybe", "REDIRECTS"),
        "ClientError": ("permanent", "maybe", ""),
    }
}
