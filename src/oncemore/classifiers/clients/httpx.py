"""What the errors of httpx, httpx2 and what they are built on (httpcore, h11) mean.

The two have the same names but not the same classes, and the same fault may be another name in each
(a reset is a `ReadError` or a `RemoteProtocolError`); so both share this table, and what happened is
read from beneath. A TLS refusal is hidden in `ConnectError`. `RemoteProtocolError` is all of: nothing
came, half of it came, nonsense came; its words tell them apart, for the code only.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import by_response
from oncemore.classifiers.rules import connecting, message, talking
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table

_WORDS: Final = {
    "without sending complete message body": "BODY_CUT",
    "incomplete": "BODY_CUT",
    "Server disconnected": "CONNECTION_CLOSED",
    "ConnectionTerminated": "CONNECTION_CLOSED",  # HTTP/2
    "ConnectionReset": "CONNECTION_RESET",
}


def _bad_answer(error: BaseException, _look: Look, rule: str) -> Failure:
    text = message(error)
    code = next((code for words, code in _WORDS.items() if words in text), "PROTOCOL")
    return Failure("transient", "maybe", None, code, rule)


_TABLE: Final[Table] = {
    "HTTPStatusError": by_response,
    "ConnectError": connecting,
    "ConnectTimeout": ("transient", "no", "TIMEOUT_CONNECT"),
    "PoolTimeout": ("transient", "no", "TIMEOUT_POOL"),
    "ReadTimeout": ("transient", "maybe", "TIMEOUT_READ"),
    "WriteTimeout": ("transient", "maybe", "TIMEOUT_WRITE"),
    "TimeoutException": ("transient", "maybe", "TIMEOUT"),
    "ConnectionNotAvailable": ("transient", "no", "CONNECTION_FAILED"),
    "ProxyError": ("transient", "no", "PROXY"),
    "ReadError": talking("CONNECTION_ERROR"),
    "WriteError": talking("CONNECTION_ERROR"),
    "CloseError": talking("CONNECTION_ERROR"),
    "NetworkError": talking("CONNECTION_ERROR"),
    "RemoteProtocolError": _bad_answer,
    "ProtocolError": _bad_answer,
    "TransportError": talking("CONNECTION_ERROR"),
    "SSEError": ("permanent", "maybe", "DECODE"),
    "LocalProtocolError": ("permanent", "maybe", "PROTOCOL"),  # found before sending, or in the middle
    "UnsupportedProtocol": ("permanent", "no", "INVALID_URL"),
    "InvalidURL": ("permanent", "no", "INVALID_URL"),
    "TooManyRedirects": ("permanent", "maybe", "REDIRECTS"),
    "DecodingError": ("permanent", "maybe", "DECODE"),
    "StreamError": ("permanent", "maybe", ""),
    "CookieConflict": ("permanent", "maybe", ""),
    "HTTPError": ("permanent", "maybe", ""),
}

TABLES: Final[dict[str, Table]] = dict.fromkeys(("httpx", "httpx2", "httpcore", "httpcore2", "h11"), _TABLE)
