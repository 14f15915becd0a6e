"""What the errors of requests and urllib3 mean.

`requests.ConnectionError` alone says nothing: refused and lost in the middle of an answer are both
one. It holds urllib3's error, which draws the line: `NewConnectionError` and `ConnectTimeoutError`
came before anything was sent, `ProtocolError` and `ReadTimeoutError` after. `MaxRetryError` and
`RetryError` mean that urllib3 tried several times itself; what counts is why the last try failed.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import by_response, failed_status
from oncemore.classifiers.rules import connecting, message, talking, wrapping
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table


def _retried(error: BaseException, look: Look, rule: str) -> Failure | None:
    inner = look.known(getattr(error, "reason", None)) or look.beneath(error)
    return inner or Failure("transient", "maybe", None, "CONNECTION_ERROR", rule)


def _too_many_answers(error: BaseException, look: Look, rule: str) -> Failure:
    """Read "too many 503 error responses", the only place where urllib3 leaves the status."""
    status = next((word for word in message(error).split() if word.isdigit() and len(word) == 3), None)
    if status is not None:
        return failed_status(int(status), None, look.now)._replace(rule=rule)
    return Failure("permanent", "maybe", None, "HTTP", rule)


_TLS = wrapping("permanent", "maybe", "TLS")

TABLES: Final[dict[str, Table]] = {
    "requests": {
        "HTTPError": by_response,
        "ConnectionError": wrapping("transient", "maybe", "CONNECTION_ERROR"),
        "ConnectTimeout": ("transient", "no", "TIMEOUT_CONNECT"),
        "ReadTimeout": ("transient", "maybe", "TIMEOUT_READ"),
        "Timeout": ("transient", "maybe", "TIMEOUT"),
        "ProxyError": connecting,
        "SSLError": _TLS,
        "RetryError": wrapping("transient", "maybe", "CONNECTION_ERROR"),
        "ChunkedEncodingError": talking("BODY_CUT"),
        "ContentDecodingError": ("permanent", "maybe", "DECODE"),
        "InvalidJSONError": ("permanent", "maybe", "DECODE"),
        "TooManyRedirects": ("permanent", "maybe", "REDIRECTS"),
        **dict.fromkeys(
            ("InvalidURL", "InvalidSchema", "MissingSchema", "URLRequired"),
            ("permanent", "no", "INVALID_URL"),
        ),
        "InvalidHeader": ("permanent", "no", ""),
        "StreamConsumedError": ("permanent", "maybe", ""),
        "UnrewindableBodyError": ("permanent", "maybe", ""),
        "RequestException": ("permanent", "maybe", ""),
    },
    "urllib3": {
        "NewConnectionError": connecting,
        "NameResolutionError": ("transient", "no", "DNS"),
        "ConnectTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "ReadTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "TimeoutError": ("transient", "maybe", "TIMEOUT"),
        "TimeoutStateError": ("permanent", "no", ""),
        "ProtocolError": talking("PROTOCOL"),
        "IncompleteRead": ("transient", "maybe", "BODY_CUT"),
        "InvalidChunkLength": ("transient", "maybe", "BODY_CUT"),
        "ResponseNotChunked": ("permanent", "maybe", "PROTOCOL"),
        "BodyNotHttplibCompatible": ("permanent", "maybe", ""),
        "HeaderParsingError": ("permanent", "maybe", "PROTOCOL"),
        "SSLError": _TLS,
        "ProxyError": connecting,
        "EmptyPoolError": ("transient", "no", "TIMEOUT_POOL"),
        "FullPoolError": ("transient", "no", "TIMEOUT_POOL"),
        "ClosedPoolError": ("permanent", "no", "POOL_CLOSED"),
        "MaxRetryError": _retried,
        "ResponseError": _too_many_answers,
        "DecodeError": ("permanent", "maybe", "DECODE"),
        "HostChangedError": ("permanent", "no", "INVALID_URL"),
        "LocationValueError": ("permanent", "no", "INVALID_URL"),
        "ProxySchemeUnsupported": ("permanent", "no", "INVALID_URL"),
        "InvalidHeader": ("permanent", "no", ""),
        "UnrewindableBodyError": ("permanent", "maybe", ""),
        "HTTPError": ("permanent", "maybe", ""),
    },
}
