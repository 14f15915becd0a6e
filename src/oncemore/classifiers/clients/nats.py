"""What the errors of nats-py mean, of the core and of JetStream.

"No responders" is the server's word that nobody got the message: not sent. A timeout is the opposite:
a cluster without quorum says nothing else. A wrong last sequence comes in two shapes, a class of its
own from the key-value store and code 10071 from everywhere else; both are the conflict that
compare-and-set is made of. A JetStream answer with an error code is a refusal: nothing was stored.

nats-py does not keep why a connection could not be made, only that none could.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import failed_status
from oncemore.classifiers.rules import message
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

_CODES: Final[dict[int, tuple[Kind, Sent, str]]] = {
    10071: ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE"),
    10164: ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE"),  # the same, when the last one is not known
    10039: ("permanent", "no", "NATS_10039"),  # JetStream is not enabled for the account
    10076: ("permanent", "no", "NATS_10076"),  # JetStream is not enabled
}
_PASSING_STATUS: Final = ("Leadership Change", "Server Shutdown")

#: The server's own words, where nats-py has no class for them.
_WORDS: Final[dict[str, tuple[Kind, Sent, str]]] = {
    "empty response from server": ("transient", "no", "CONNECTION_CLOSED"),
    "authorization violation": ("permanent", "no", "NATS_AUTHORIZATION"),
    "authentication": ("permanent", "no", "NATS_AUTHORIZATION"),
    "permissions violation": ("permanent", "no", "NATS_PERMISSIONS"),
    "maximum connections exceeded": ("transient", "no", "NATS_TOO_MANY_CONNECTIONS"),
    "maximum account": ("transient", "no", "NATS_TOO_MANY_CONNECTIONS"),
}


def _api(error: BaseException, look: Look, rule: str) -> Failure | None:
    """Read JetStream's answer: its own code, then its status, which is HTTP's."""
    number, status = getattr(error, "err_code", None), getattr(error, "code", None)
    if isinstance(number, int) and number in _CODES:
        kind, sent, code = _CODES[number]
        return Failure(kind, sent, None, code, rule)
    if not isinstance(status, int):
        return _silent(type(error).__mro__, rule)
    code = f"NATS_{number if isinstance(number, int) else status}"
    if status == 409:  # of a pull: the consumer or the server went away
        passing = getattr(error, "description", None) in _PASSING_STATUS
        return Failure("transient" if passing else "permanent", "no", None, code, rule)
    found = failed_status(status, None, look.now)
    refused = found.sent == "no" or status == 503
    return Failure(found.kind, "no" if refused else "maybe", None, code, rule)


def _silent(bases: tuple[type, ...], rule: str) -> Failure:
    """Read an answer that came without any number, by what it is called."""
    names = [base.__name__ for base in bases]
    if "ServiceUnavailableError" in names:  # a bare 503 is "no responders"
        return Failure("transient", "no", None, "NATS_NO_RESPONDERS", rule)
    if "NotFoundError" in names:
        return Failure("permanent", "no", None, "NATS_404", rule)
    return Failure("permanent", "maybe", None, f"EXC_{names[0][:80]}", rule)


def _words(error: BaseException, _look: Look, rule: str) -> Failure:
    text = message(error).lower()
    found = next((fact for words, fact in _WORDS.items() if words in text), None)
    kind, sent, code = found or ("permanent", "maybe", f"EXC_{type(error).__name__[:80]}")
    return Failure(kind, sent, None, code, rule)


_OUR_MISTAKE: Final = (
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
        "APIError": _api,
        "KeyWrongLastSequenceError": ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE"),
        "ObjectAlreadyExists": ("conflict", "no", ""),
        "NoKeysError": ("permanent", "no", "NATS_404"),
        "AuthorizationError": ("permanent", "no", "NATS_AUTHORIZATION"),
        "SecureConnRequiredError": ("permanent", "no", "TLS"),
        "SecureConnWantedError": ("permanent", "no", "TLS"),
        "SecureConnFailedError": ("permanent", "no", "TLS"),
        "MaxPayloadError": ("permanent", "no", "NATS_MAX_PAYLOAD"),
        **dict.fromkeys(_OUR_MISTAKE.split(), ("permanent", "no", "")),
        "Error": _words,
    }
}
