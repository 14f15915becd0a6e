"""Rules for aiohttp.

Its TLS errors are also connector errors and match first as the more special classes. Its total timeout
is the builtin `TimeoutError`, without a phase. An answer that is not HTTP is a `ClientResponseError`
with status 400; the parser's error as its cause distinguishes it from a real 400.
"""

from __future__ import annotations

from oncemore.classifiers.clients.python import classify_errno
from oncemore.classifiers.http_status import classify_failed_status
from oncemore.classifiers.rules import classify_connect_error, make_connection_rule
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table

_classify_connection_loss = make_connection_rule("CONNECTION_ERROR")
_classify_cut_body = make_connection_rule("BODY_CUT")


def _classify_response(error: BaseException, classification: Classification, rule: str) -> Failure:
    # The answer could not be parsed as HTTP; its status 400 was made up by aiohttp.
    if type(error.__cause__).__module__ == "aiohttp.http_exceptions":
        return Failure("transient", "maybe", None, "PROTOCOL", rule)
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return classify_failed_status(status, getattr(error, "headers", None), classification.now)
    return Failure("permanent", "maybe", None, "HTTP", rule)


def _classify_broken_socket(
    error: BaseException, classification: Classification, rule: str
) -> Failure | None:
    """Classify a broken socket by its error number: the error is itself an `OSError`."""
    failure = classify_errno(error, classification, rule)
    # The socket was in use, so the request may have been sent, even if the number alone means "no".
    if failure is not None and failure.may_pass:
        return failure._replace(sent="maybe")
    return _classify_connection_loss(error, classification, rule)


def _classify_payload_error(
    error: BaseException, classification: Classification, rule: str
) -> Failure | None:
    # The whole body arrived but cannot be decompressed; a new attempt gets the same bytes.
    if type(error.__cause__).__name__ == "ContentEncodingError":
        return Failure("permanent", "maybe", None, "DECODE", rule)
    return _classify_cut_body(error, classification, rule)


TABLES: Final[dict[str, Table]] = {
    "aiohttp": {
        "ClientResponseError": _classify_response,
        "ContentTypeError": ("permanent", "maybe", "DECODE"),
        "TooManyRedirects": ("permanent", "maybe", "REDIRECTS"),
        "ClientConnectorError": classify_connect_error,
        "ClientConnectorDNSError": ("transient", "no", "DNS"),
        "ClientConnectorCertificateError": ("permanent", "no", "TLS"),
        "ClientSSLError": classify_connect_error,
        "ServerFingerprintMismatch": ("permanent", "no", "TLS"),
        "ConnectionTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "SocketTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "ServerTimeoutError": ("transient", "maybe", "TIMEOUT"),
        "ClientConnectionResetError": ("transient", "maybe", "CONNECTION_RESET"),
        "ClientOSError": _classify_broken_socket,
        "ServerDisconnectedError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "ClientConnectionError": _classify_connection_loss,
        "ClientPayloadError": _classify_payload_error,
        "UploadAbortedError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "WebSocketError": ("transient", "maybe", "PROTOCOL"),
        "WSMessageTypeError": ("permanent", "maybe", ""),
        "InvalidURL": ("permanent", "no", "INVALID_URL"),
        "NonHttpUrlClientError": ("permanent", "no", "INVALID_URL"),
        "RedirectClientError": ("permanent", "maybe", "REDIRECTS"),
        "ClientError": ("permanent", "maybe", ""),
    }
}
