"""Rules for requests, urllib3 and pystac-client.

`requests.ConnectionError` alone does not tell whether the request was sent: a refused connection and a
connection lost during the answer have the same class. The urllib3 error inside it does:
`NewConnectionError` and `ConnectTimeoutError` come before sending, `ProtocolError` and
`ReadTimeoutError` after it. `MaxRetryError` and `RetryError` mean that urllib3 retried by itself; the
reason of its last attempt counts.

An `APIError` of pystac-client has the status and the text of the answer but not its headers, so there is
no wait time. A provider that answers `SlowDown` throttles us.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import classify_by_response, classify_failed_status
from oncemore.classifiers.rules import (
    classify_connect_error,
    error_message,
    make_connection_rule,
    make_wrapper_rule,
)
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table

SLOWDOWN: Final = "STAC_SLOWDOWN"
#: Only the beginning of a provider's answer is searched for the word.
_MAX_TEXT: Final = 4000


def _classify_max_retries(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    inner = classification.classify_if_known(
        getattr(error, "reason", None)
    ) or classification.classify_wrapped(error)
    return inner or Failure("transient", "maybe", None, "CONNECTION_ERROR", rule)


def _classify_response_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    """Classify "too many 503 error responses", the only place where urllib3 leaves the status."""
    status = next((word for word in error_message(error).split() if word.isdigit() and len(word) == 3), None)
    if status is not None:
        return classify_failed_status(int(status), None, classification.now)._replace(rule=rule)
    return Failure("permanent", "maybe", None, "HTTP", rule)


def _classify_api_error(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    text = error.args[0] if error.args and isinstance(error.args[0], str) else ""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        # A 429 says the same already, under its own code.
        if status != 429 and "SlowDown" in text[:_MAX_TEXT]:
            return Failure("throttled", "no", None, SLOWDOWN, rule)
        return classify_failed_status(status, None, classification.now)
    # Without a status, pystac-client has run `raise APIError(str(err))` while handling `err`. This is the
    # only use of `__context__`; the equal texts prove that it is the error that was converted.
    original = error.__context__
    if original is not None and text == str(original):
        return classification.classify_if_known(original)
    return None


_TLS_RULE = make_wrapper_rule("permanent", "maybe", "TLS")

TABLES: Final[dict[str, Table]] = {
    "requests": {
        "HTTPError": classify_by_response,
        "ConnectionError": make_wrapper_rule("transient", "maybe", "CONNECTION_ERROR"),
        "ConnectTimeout": ("transient", "no", "TIMEOUT_CONNECT"),
        "ReadTimeout": ("transient", "maybe", "TIMEOUT_READ"),
        "Timeout": ("transient", "maybe", "TIMEOUT"),
        "ProxyError": classify_connect_error,
        "SSLError": _TLS_RULE,
        "RetryError": make_wrapper_rule("transient", "maybe", "CONNECTION_ERROR"),
        "ChunkedEncodingError": make_connection_rule("BODY_CUT"),
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
        "NewConnectionError": classify_connect_error,
        "NameResolutionError": ("transient", "no", "DNS"),
        "ConnectTimeoutError": ("transient", "no", "TIMEOUT_CONNECT"),
        "ReadTimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "TimeoutError": ("transient", "maybe", "TIMEOUT"),
        "TimeoutStateError": ("permanent", "no", ""),
        "ProtocolError": make_connection_rule("PROTOCOL"),
        "IncompleteRead": ("transient", "maybe", "BODY_CUT"),
        "InvalidChunkLength": ("transient", "maybe", "BODY_CUT"),
        "ResponseNotChunked": ("permanent", "maybe", "PROTOCOL"),
        "BodyNotHttplibCompatible": ("permanent", "maybe", ""),
        "HeaderParsingError": ("permanent", "maybe", "PROTOCOL"),
        "SSLError": _TLS_RULE,
        "ProxyError": classify_connect_error,
        "EmptyPoolError": ("transient", "no", "TIMEOUT_POOL"),
        "FullPoolError": ("transient", "no", "TIMEOUT_POOL"),
        "ClosedPoolError": ("permanent", "no", "POOL_CLOSED"),
        "MaxRetryError": _classify_max_retries,
        "ResponseError": _classify_response_error,
        "DecodeError": ("permanent", "maybe", "DECODE"),
        "HostChangedError": ("permanent", "no", "INVALID_URL"),
        "LocationValueError": ("permanent", "no", "INVALID_URL"),
        "ProxySchemeUnsupported": ("permanent", "no", "INVALID_URL"),
        "InvalidHeader": ("permanent", "no", ""),
        "UnrewindableBodyError": ("permanent", "maybe", ""),
        "HTTPError": ("permanent", "maybe", ""),
    },
    "pystac_client": {
        "APIError": _classify_api_error,
        "ParametersError": ("permanent", "no", ""),
    },
}
