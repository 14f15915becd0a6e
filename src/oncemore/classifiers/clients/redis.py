"""What the errors of redis-py mean, blocking and awaiting.

The first word of the server's answer is the code: REDIS_READONLY, REDIS_LOADING. An answer that refuses
a command means that this command did nothing. But Redis rolls nothing back: in a pipeline or a script
the commands around it may have worked, so there "maybe".

redis-py keeps no cause; whether a connection was being made is in its words, with the number of the
operating system's error. Its authentication errors are connection errors too, and permanent.
"""

from __future__ import annotations

from oncemore.classifiers.clients.python import NUMBERS
from oncemore.classifiers.rules import message
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind

#: The server's first word; every other one is permanent.
_ANSWERS: Final[dict[str, Kind]] = {
    "LOADING": "transient",
    "READONLY": "transient",  # the primary has moved
    "TRYAGAIN": "transient",
    "CLUSTERDOWN": "transient",
    "MASTERDOWN": "transient",
    "NOREPLICAS": "transient",
    "MISCONF": "transient",  # it cannot write its own disk, and takes no writes meanwhile
    "BUSY": "transient",  # a script runs for too long
    "OOM": "transient",
    "EXECABORT": "conflict",
    "UNBLOCKED": "transient",
}
_PIPELINE: Final = " of pipeline caused error: "

#: redis-py's own words where no number tells: what happened, and whether anything can have been sent.
_WORDS: Final = {
    "Timeout connecting": "TIMEOUT_CONNECT",
    "No connection available": "TIMEOUT_POOL",
    "max number of clients reached": "REDIS_TOO_MANY_CLIENTS",
    "Timeout reading": "TIMEOUT_READ",
    "Timeout writing": "TIMEOUT_WRITE",
    "Connection closed by server": "CONNECTION_CLOSED",
}
_UNSENT: Final = ("TIMEOUT_CONNECT", "TIMEOUT_POOL", "REDIS_TOO_MANY_CLIENTS")


def _answer(error: BaseException, _look: Look, rule: str) -> Failure:
    text = message(error)
    inside = _PIPELINE in text
    word = getattr(error, "status_code", None) or text.rpartition(_PIPELINE)[2].partition(" ")[0]
    if not (isinstance(word, str) and word.isascii() and word.isalpha() and word.isupper()):
        word = "ERR"
    kind = _ANSWERS.get(word[:20], "permanent")
    # "@user_script" and "@user_function" are what the server calls the code it ran.
    maybe = inside or "@user_" in text or word == "UNBLOCKED"
    return Failure(kind, "maybe" if maybe else "no", None, f"REDIS_{word[:20]}", rule)


def _named(word: str) -> Reading:
    """Make the rule for a class that stands for one answer, whether or not it kept the word."""

    def read(error: BaseException, look: Look, rule: str) -> Failure:
        found = _answer(error, look, rule)
        return found._replace(kind=_ANSWERS.get(word, "permanent"), code=f"REDIS_{word}")

    return read


def _connection(otherwise: str) -> Reading:
    """Make the rule for a connection that could not be made or was lost, as its words tell."""

    def read(error: BaseException, _look: Look, rule: str) -> Failure:
        text = message(error)
        code = next((code for words, code in _WORDS.items() if words in text), "")
        if code:
            return Failure("transient", "no" if code in _UNSENT else "maybe", None, code, rule)
        kind, code = _by_number(text)
        unsent = " connecting to " in text
        return Failure(kind, "no" if unsent else "maybe", None, code or otherwise, rule)

    return read


def _by_number(text: str) -> tuple[Kind, str]:
    """Read "Error 111 connecting to …": the number is the system's, or a resolver's and then negative."""
    first, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    if "[SSL" in text:
        return "permanent", "TLS"
    if first != "Error" or not number.removeprefix("-").isdigit() or len(number) > 6:
        return "transient", ""
    if number.startswith("-"):
        return "transient", "DNS"
    code = NUMBERS.get(int(number), ("", "", ""))[2]
    return "transient", "CONNECTION_REFUSED" if code == "ERRNO_ENOENT" else code  # no Unix socket there


def _lock(error: BaseException, _look: Look, rule: str) -> Failure:
    if message(error).startswith("Unable to acquire lock"):
        return Failure("transient", "no", None, "REDIS_LOCK_HELD", rule)
    return Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)


def _cluster(error: BaseException, look: Look, rule: str) -> Failure:
    if "cannot be connected" in message(error):
        return look.beneath(error) or Failure("transient", "no", None, "CONNECTION_FAILED", rule)
    return Failure("permanent", "maybe", None, f"EXC_{type(error).__name__[:80]}", rule)


def _unhealthy(error: BaseException, look: Look, rule: str) -> Failure:
    inner = look.known(getattr(error, "original_exception", None))
    return inner or Failure("transient", "no", None, "CONNECTION_FAILED", rule)


TABLES: Final[dict[str, Table]] = {
    "redis": {
        "ResponseError": _answer,
        "BusyLoadingError": _named("LOADING"),
        "ReadOnlyError": _named("READONLY"),
        "TryAgainError": _named("TRYAGAIN"),
        "ClusterDownError": _named("CLUSTERDOWN"),
        "MasterDownError": _named("MASTERDOWN"),
        "OutOfMemoryError": _named("OOM"),
        "ExecAbortError": _named("EXECABORT"),
        "NoPermissionError": _named("NOPERM"),
        "NoScriptError": _named("NOSCRIPT"),
        "ClusterCrossSlotError": _named("CROSSSLOT"),
        "AskError": _named("ASK"),
        "MovedError": _named("MOVED"),  # to a client that knows no clusters, for good
        "AuthenticationError": ("permanent", "no", "REDIS_AUTHENTICATION"),
        "AuthorizationError": ("permanent", "no", "REDIS_AUTHENTICATION"),
        "ExternalAuthProviderError": ("permanent", "no", "REDIS_AUTHENTICATION"),
        "ConnectionError": _connection("CONNECTION_ERROR"),
        "TimeoutError": _connection("TIMEOUT"),
        "MaxConnectionsError": ("transient", "no", "POOL_FULL"),
        "MasterNotFoundError": ("transient", "no", "CONNECTION_FAILED"),
        "SlaveNotFoundError": ("transient", "no", "CONNECTION_FAILED"),
        "WatchError": ("conflict", "no", "REDIS_WATCH"),
        "InvalidResponse": ("transient", "maybe", "PROTOCOL"),
        "ClusterError": ("transient", "maybe", "REDIS_CLUSTER"),  # sent on from node to node too often
        "RedisClusterException": _cluster,
        "SlotNotCoveredError": ("transient", "no", "REDIS_CLUSTERDOWN"),
        "CrossSlotTransactionError": ("permanent", "no", "REDIS_CROSSSLOT"),
        "LockError": _lock,
        "LockNotOwnedError": ("conflict", "maybe", "REDIS_LOCK_LOST"),
        "DataError": ("permanent", "no", ""),
        "ChildDeadlockedError": ("permanent", "no", ""),
        "IncorrectPolicyType": ("permanent", "no", ""),
        "UnhealthyDatabaseException": _unhealthy,
        "TemporaryUnavailableException": ("transient", "no", "CONNECTION_FAILED"),
        "NoValidDatabaseException": ("transient", "no", "CONNECTION_FAILED"),
        "InitialHealthCheckFailedError": ("transient", "no", "CONNECTION_FAILED"),
        "RedisError": ("permanent", "maybe", ""),
    }
}
