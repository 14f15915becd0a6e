"""What the errors of the neo4j driver mean.

The server's code is kept as it is, without its "Neo.": `NEO4J:TransientError.Transaction.Outdated`, so
that the pattern `NEO4J:TransientError.*` fits. Whether it passes is asked of the driver
(`is_retryable`), which corrects some codes: `ClientError.Cluster.NotALeader` passes.

A failed statement may have taken effect: one with `CALL … IN TRANSACTIONS` commits as it goes, and the
error does not tell; the driver says as much. Only what the server refuses to begin was not sent.

The driver's own errors tell by their words whether there was a connection yet. `IncompleteCommit` is a
connection lost while waiting for the answer to a COMMIT: nobody knows.
"""

from __future__ import annotations

from oncemore.classifiers.rules import connecting, message, talking
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind

#: How the codes begin of what the server did not even begin.
_NOT_BEGUN: Final = (
    "ClientError.Cluster.NotALeader",
    "ClientError.Database.",
    "ClientError.General.ForbiddenOnReadOnlyDatabase",
    "ClientError.Request.",
    "ClientError.Security.",
    "ClientError.Statement.SyntaxError",
    "TransientError.Database.",
    "TransientError.General.DatabaseUnavailable",
    "TransientError.Request.",
    "TransientError.Transaction.MaximumTransactionLimitReached",
)

#: How the words begin of a service that could not be reached; a connection in use has others.
_NO_CONNECTION: Final = (
    "Couldn't connect to",
    "Failed to establish connection",
    "Timed out trying to establish",
    "Failed to DNS resolve",
    "Unable to retrieve routing information",
)
_lost = talking("CONNECTION_CLOSED")


def _server(error: BaseException, _look: Look, rule: str) -> Failure:
    given = getattr(error, "code", None)
    code = _tidy(given.removeprefix("Neo.")) if isinstance(given, str) else "DatabaseError"
    asked = getattr(error, "is_retryable", None)
    kind: Kind = "transient" if callable(asked) and asked() is True else "permanent"
    return Failure(kind, "no" if code.startswith(_NOT_BEGUN) else "maybe", None, f"NEO4J:{code}", rule)


def _tidy(code: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in code[:100])


def _unavailable(error: BaseException, look: Look, rule: str) -> Failure | None:
    text = message(error)
    if text.startswith(_NO_CONNECTION):
        found = connecting(error, look, rule)
        timed_out = found.code == "CONNECTION_FAILED" and text.startswith("Timed out")
        return found._replace(code="TIMEOUT_CONNECT") if timed_out else found
    return _lost(error, look, rule)


TABLES: Final[dict[str, Table]] = {
    "neo4j": {
        "Neo4jError": _server,
        "ServiceUnavailable": _unavailable,
        "RoutingServiceUnavailable": ("transient", "no", "CONNECTION_FAILED"),
        "WriteServiceUnavailable": ("transient", "no", "CONNECTION_FAILED"),
        "ReadServiceUnavailable": ("transient", "no", "CONNECTION_FAILED"),
        "IncompleteCommit": ("transient", "maybe", "NEO4J_INCOMPLETE_COMMIT"),
        "SessionExpired": _lost,
        "ConnectionAcquisitionTimeoutError": ("transient", "no", "TIMEOUT_POOL"),
        "ConnectionPoolError": ("permanent", "no", ""),
        "ConfigurationError": ("permanent", "no", ""),
        "BoltConnectionError": connecting,
        "BoltHandshakeError": ("permanent", "no", "PROTOCOL"),
        "BoltError": ("permanent", "maybe", "PROTOCOL"),
        "QueryApiHttpError": ("permanent", "maybe", "PROTOCOL"),
        "SocketDeadlineExceededError": ("transient", "maybe", "TIMEOUT_READ"),
        "DriverError": ("permanent", "maybe", ""),
        "GqlError": ("permanent", "maybe", ""),
    }
}
