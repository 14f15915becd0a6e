"""Rules for nats-py, core and JetStream.

"No responders" is the server's confirmation that no subscriber received the message: not sent. A timeout
proves nothing: it is also the only sign of a cluster without quorum. A wrong last sequence is a class of
its own from the key-value store and code 10071 elsewhere; both are the conflict of a compare-and-set. A
JetStream answer with an error code is a refusal: nothing was stored.

nats-py does not record why a connection could not be made.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import classify_failed_status
from oncemore.classifiers.rules import error_message
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

_CODES: Final[dict[int, tuple[Kind, Sent, str]]] = {
    10071: ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE"),
    10164: ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE"),  # the same, if the last sequence is not known
    10039: ("permanent", "no", "NATS_10039"),  # JetStream is not enabled for the account
    10076: ("permanent", "no", "NATS_10076"),  # JetStream is not enabled
}
_PASSING_STATUS: Final = ("Leadership Change", "Server Shutdown")

#: Texts of the server for which nats-py has no class.
_MESSAGE_FACTS: Final[dict[str, tuple[Kind, Sent, str]]] = {
    "empty response from server": ("transient", "no", "CONNECTION_CLOSED"),
    "authorization violation": ("permanent", "no", "NATS_AUTHORIZATION"),
    "authentication": ("permanent", "no", "NATS_AUTHORIZATION"),
    "permissions violation": ("permanent", "no", "NATS_PERMISSIONS"),
    "maximum connections exceeded": ("transient", "no", "NATS_TOO_MANY_CONNECTIONS"),
    "maximum account": ("transient", "no", "NATS_TOO_MANY_CONNECTIONS"),
}


def _classify_api_error(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    """Classify a JetStream answer: by its own code, then by its status, which is HTTP's."""
    number, status = getattr(error, "err_code", None), getattr(error, "code", None)
    if isinstance(number, int) and number in _CODES:
        kind, sent, code = _CODES[number]
        return Failure(kind, sent, None, code, rule)
    if not isinstance(status, int):
        return _classify_by_class(type(error).__mro__, rule)
    code = f"NATS_{number if isinstance(number, int) else status}"
    # A pull request ended because the consumer or the server stopped.
    if status == 409:
        is_passing = getattr(error, "description", None) in _PASSING_STATUS
        return Failure("transient" if is_passing else "permanent", "no", None, code, rule)
    by_status = classify_failed_status(status, None, classification.now)
    is_refused = by_status.sent == "no" or status == 503
    return Failure(by_status.kind, "no" if is_refused else "maybe", None, code, rule)


def _classify_by_class(bases: tuple[type, ...], rule: str) -> Failure:
    """Classify an answer without any number by the names of its classes."""
    names = [base.__name__ for base in bases]
    # A 503 without a code is "no responders".
    if "ServiceUnavailableError" in names:
        return Failure("transient", "no", None, "NATS_NO_RESPONDERS", rule)
    if "NotFoundError" in names:
        return Failure("permanent", "no", None, "NATS_404", rule)
    return Failure("permanent", "maybe", None, f"EXC_{names[0][:80]}", rule)


def _classify_by_message(error: BaseException, _classification: Classification, rule: str) -> Failure:
    text = error_message(error).lower()
    known = next((fact for phrase, fact in _MESSAGE_FACTS.items() if phrase in text), None)
    kind, sent, code = known or ("permanent", "maybe", f"EXC_{type(error).__name__[:80]}")
    return Failure(kind, sent, None, code, rule)


#: Errors that nats-py raises before it sends anything.
_USAGE_ERRORS: Final = (
    "BadBucketError BadHeaderError BadObjectMetaError BadSubjectError BadSubscriptionError BadTimeoutError "
    "InvalidBucketNameError InvalidCallbackTypeError InvalidKeyError InvalidObjectNameError "
    "InvalidUserCredentialsError KeyHistoryTooLargeError LinkIsABucketError MsgAlreadyAckdError "
    "NotJSMessageError"
)

TABLES: Final[dict[str, Table]] = {
    "nats": {
        "TimeoutError": ("transient", "maybe", "TIMEOUT_READ"),
        "FetchTimeoutError": ("transient", "no", "NATS_NO_MESSAGES"),
        "NoRespondersError": ("transient", "no", "NATS_NO_RESPONDERS"),
        "NoStreamResponseError": ("transient", "no", "NATS_NO_RESPONDERS"),
        "NoServersError": ("transient", "no", "CONNECTION_FAILED"),
        "ConnectionClosedError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "ConnectionDrainingError": ("transient", "no", "CONNECTION_CLOSED"),
        "ConnectionReconnectingError": ("transient", "maybe", "CONNECTION_FAILED"),
        "StaleConnectionError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "OutboundBufferLimitError": ("transient", "no", "NATS_BUFFER_FULL"),
        "SlowConsumerError": ("transient", "maybe", "NATS_SLOW_CONSUMER"),
        "TooManyStalledMsgsError": ("throttled", "no", "NATS_TOO_MANY_PENDING"),
        "ProtocolError": ("transient", "maybe", "PROTOCOL"),
        "APIError": _classify_api_error,
        "KeyWrongLastSequenceError": ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE"),
        "ObjectAlreadyExists": ("conflict", "no", ""),
        "NoKeysError": ("permanent", "no", "NATS_404"),
        "AuthorizationError": ("permanent", "no", "NATS_AUTHORIZATION"),
        "SecureConnRequiredError": ("permanent", "no", "TLS"),
        "SecureConnWantedError": ("permanent", "no", "TLS"),
        "SecureConnFailedError": ("permanent", "no", "TLS"),
        "MaxPayloadError": ("permanent", "no", "NATS_MAX_PAYLOAD"),
        **dict.fromkeys(_USAGE_ERRORS.split(), ("permanent", "no", "")),
        "Error": _classify_by_message,
    }
}
