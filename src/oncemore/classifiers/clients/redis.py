"""Rules for redis-py, blocking and asynchronous.

The first word of the server's answer is the code: REDIS_READONLY, REDIS_LOADING. A refused command had
no effect. Redis does not roll back, so in a pipeline or a script the other commands may have worked:
"maybe".

redis-py keeps no cause; its text shows whether a connection was being made, with the number of the
operating system's error. Its authentication errors are connection errors too, but permanent.
"""

from __future__ import annotations

from oncemore.classifiers.clients.python import FACTS_BY_ERRNO
from oncemore.classifiers.rules import error_message
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind

#: Kind by the first word of the answer; every other word is permanent.
_KIND_BY_REPLY: Final[dict[str, Kind]] = {
    "LOADING": "transient",
    "READONLY": "transient",  # the primary has moved
    "TRYAGAIN": "transient",
    "CLUSTERDOWN": "transient",
    "MASTERDOWN": "transient",
    "NOREPLICAS": "transient",
    "MISCONF": "transient",  # the server cannot write its disk and refuses writes
    "BUSY": "transient",  # a script runs for too long
    "OOM": "transient",
    "EXECABORT": "conflict",
    "UNBLOCKED": "transient",
}
_PIPELINE: Final = " of pipeline caused error: "

#: Phrases of redis-py in errors without a number.
_MESSAGE_CODES: Final = {
    "Timeout connecting": "TIMEOUT_CONNECT",
    "No connection available": "TIMEOUT_POOL",
    "max number of clients reached": "REDIS_TOO_MANY_CLIENTS",
    "Timeout reading": "TIMEOUT_READ",
    "Timeout writing": "TIMEOUT_WRITE",
    "Connection closed by server": "CONNECTION_CLOSED",
}
#: Codes that prove that nothing was sent.
_UNSENT_CODES: Final = ("TIMEOUT_CONNECT", "TIMEOUT_POOL", "REDIS_TOO_MANY_CLIENTS")


def _classify_reply(error: BaseException, _classification: Classification, rule: str) -> Failure:
    text = error_message(error)
    in_pipeline = _PIPELINE in text
    word = getattr(error, "status_code", None) or text.rpartition(_PIPELINE)[2].partition(" ")[0]
    if not (isinstance(word, str) and word.isascii() and word.isalpha() and word.isupper()):
        word = "ERR"
    kind = _KIND_BY_REPLY.get(word[:20], "permanent")
    # "@user_script" and "@user_function" are the server's names for the script it ran.
    may_have_worked = in_pipeline or "@user_" in text or word == "UNBLOCKED"
    return Failure(kind, "maybe" if may_have_worked else "no", None, f"REDIS_{word[:20]}", rule)


def _make_reply_rule(word: str) -> Reading:
    """Return the rule for a class that stands for one answer, even if its text has lost the word."""

    def read(error: BaseException, classification: Classification, rule: str) -> Failure:
        failure = _classify_reply(error, classification, rule)
        return failure._replace(kind=_KIND_BY_REPLY.get(word, "permanent"), code=f"REDIS_{word}")

    return read


def _make_connection_rule(default_code: str) -> Reading:
    """Return the rule for a connection that failed or was lost, classified by its text."""

    def read(error: BaseException, _classification: Classification, rule: str) -> Failure:
        text = error_message(error)
        code = next((code for phrase, code in _MESSAGE_CODES.items() if phrase in text), "")
        if code:
            return Failure("transient", "no" if code in _UNSENT_CODES else "maybe", None, code, rule)
        kind, code = _classify_error_number(text)
        is_unsent = " connecting to " in text
        return Failure(kind, "no" if is_unsent else "maybe", None, code or default_code, rule)

    return read


def _classify_error_number(text: str) -> tuple[Kind, str]:
    """Classify "Error 111 connecting to …": an errno, or a negative number from the resolver."""
    first, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    if "[SSL" in text:
        return "permanent", "TLS"
    if first != "Error" or not number.removeprefix("-").isdigit() or len(number) > 6:
        return "transient", ""
    if number.startswith("-"):
        return "transient", "DNS"
    code = FACTS_BY_ERRNO.get(int(number), ("", "", ""))[2]
    # A missing Unix socket means that no server listens there.
    return "transient", "CONNECTION_REFUSED" if code == "ERRNO_ENOENT" else code


def _classify_lock_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    if error_message(error).startswith("Unable to acquire lock"):
        return Failure("transient", "no", None, "REDIS_LOCK_HELD", rule)
    return Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)


def _classify_cluster_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    if "cannot be connected" in error_message(error):
        return classification.classify_wrapped(error) or Failure(
            "transient", "no", None, "CONNECTION_FAILED", rule
        )
    return Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)


def _classify_unhealthy(error: BaseException, classification: Classification, rule: str) -> Failure:
    inner = classification.classify_if_known(getattr(error, "original_exception", None))
    return inner or Failure("transient", "no", None, "CONNECTION_FAILED", rule)


TABLES: Final[dict[str, Table]] = {
    "redis": {
        "ResponseError": _classify_reply,
        "BusyLoadingError": _make_reply_rule("LOADING"),
        "ReadOnlyError": _make_reply_rule("READONLY"),
        "TryAgainError": _make_reply_rule("TRYAGAIN"),
        "ClusterDownError": _make_reply_rule("CLUSTERDOWN"),
        "MasterDownError": _make_reply_rule("MASTERDOWN"),
        "OutOfMemoryError": _make_reply_rule("OOM"),
        "ExecAbortError": _make_reply_rule("EXECABORT"),
        "NoPermissionError": _make_reply_rule("NOPERM"),
        "NoScriptError": _make_reply_rule("NOSCRIPT"),
        "ClusterCrossSlotError": _make_reply_rule("CROSSSLOT"),
        "AskError": _make_reply_rule("ASK"),
        "MovedError": _make_reply_rule("MOVED"),  # permanent for a client without cluster support
        "AuthenticationError": ("permanent", "no", "REDIS_AUTHENTICATION"),
        "AuthorizationError": ("permanent", "no", "REDIS_AUTHENTICATION"),
        "ExternalAuthProviderError": ("permanent", "no", "REDIS_AUTHENTICATION"),
        "ConnectionError": _make_connection_rule("CONNECTION_ERROR"),
        "TimeoutError": _make_connection_rule("TIMEOUT"),
        "MaxConnectionsError": ("transient", "no", "POOL_FULL"),
        "MasterNotFoundError": ("transient", "no", "CONNECTION_FAILED"),
        "SlaveNotFoundError": ("transient", "no", "CONNECTION_FAILED"),
        "WatchError": ("conflict", "no", "REDIS_WATCH"),
        "InvalidResponse": ("transient", "maybe", "PROTOCOL"),
        "ClusterError": ("transient", "maybe", "REDIS_CLUSTER"),  # redirected between nodes too often
        "RedisClusterException": _classify_cluster_error,
        "SlotNotCoveredError": ("transient", "no", "REDIS_CLUSTERDOWN"),
        "CrossSlotTransactionError": ("permanent", "no", "REDIS_CROSSSLOT"),
        "LockError": _classify_lock_error,
        "LockNotOwnedError": ("conflict", "maybe", "REDIS_LOCK_LOST"),
        "DataError": ("permanent", "no", ""),
        "ChildDeadlockedError": ("permanent", "no", ""),
        "IncorrectPolicyType": ("permanent", "no", ""),
        "UnhealthyDatabaseException": _classify_unhealthy,
        "TemporaryUnavailableException": ("transient", "no", "CONNECTION_FAILED"),
        "NoValidDatabaseException": ("transient", "no", "CONNECTION_FAILED"),
        "InitialHealthCheckFailedError": ("transient", "no", "CONNECTION_FAILED"),
        "RedisError": ("permanent", "maybe", ""),
    }
}
