"""Rules for httpx, httpx2 and their foundations (httpcore, h11).

httpx and httpx2 have the same names but different classes, and the same fault can have another name in
each (a reset is a `ReadError` or a `RemoteProtocolError`). Both share this table, and the wrapped error
gives the code. `ConnectError` also covers TLS refusals. `RemoteProtocolError` covers a missing, a partial
and an invalid answer; its text distinguishes them, for the code only.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import classify_by_response
from oncemore.classifiers.rules import classify_connect_error, error_message, make_connection_rule
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table

#: Phrases in the text of a protocol error; the first match gives the code.
_MESSAGE_CODES: Final = {
    "without sending complete message body": "BODY_CUT",
    "incomplete": "BODY_CUT",
    "Server disconnected": "CONNECTION_CLOSED",
    "ConnectionTerminated": "CONNECTION_CLOSED",  # HTTP/2
    "ConnectionReset": "CONNECTION_RESET",
}


def _classify_protocol_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    text = error_message(error)
    code = next((code for phrase, code in _MESSAGE_CODES.items() if phrase in text), "PROTOCOL")
    return Failure("transient", "maybe", None, code, rule)


_TABLE: Final[Table] = {
    "HTTPStatusError": classify_by_response,
    "ConnectError": classify_connect_error,
    "ConnectTimeout": ("transient", "no", "TIMEOUT_CONNECT"),
    "PoolTimeout": ("transient", "no", "TIMEOUT_POOL"),
    "ReadTimeout": ("transient", "maybe", "TIMEOUT_READ"),
    "WriteTimeout": ("transient", "maybe", "TIMEOUT_WRITE"),
    "TimeoutException": ("transient", "maybe", "TIMEOUT"),
    "ConnectionNotAvailable": ("transient", "no", "CONNECTION_FAILED"),
    "ProxyError": ("transient", "no", "PROXY"),
    "ReadError": make_connection_rule("CONNECTION_ERROR"),
    "WriteError": make_connection_rule("CONNECTION_ERROR"),
    "CloseError": make_connection_rule("CONNECTION_ERROR"),
    "NetworkError": make_connection_rule("CONNECTION_ERROR"),
    "RemoteProtocolError": _classify_protocol_error,
    "ProtocolError": _classify_protocol_error,
    "TransportError": make_connection_rule("CONNECTION_ERROR"),
    "SSEError": ("permanent", "maybe", "DECODE"),
    "LocalProtocolError": ("permanent", "maybe", "PROTOCOL"),  # raised before or during sending
    "UnsupportedProtocol": ("permanent", "no", "INVALID_URL"),
    "InvalidURL": ("permanent", "no", "INVALID_URL"),
    "TooManyRedirects": ("permanent", "maybe", "REDIRECTS"),
    "DecodingError": ("permanent", "maybe", "DECODE"),
    "StreamError": ("permanent", "maybe", ""),
    "CookieConflict": ("permanent", "maybe", ""),
    "HTTPError": ("permanent", "maybe", ""),
}

# httpcore's errors reach the caller when it is used without httpx; they have the same names.
TABLES: Final[dict[str, Table]] = dict.fromkeys(("httpx", "httpx2", "httpcore", "httpcore2", "h11"), _TABLE)
