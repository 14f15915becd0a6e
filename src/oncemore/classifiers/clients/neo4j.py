"""Rules for the neo4j driver.

The server's code is used without its "Neo.": `NEO4J:TransientError.Transaction.Outdated`, so that the
pattern `NEO4J:TransientError.*` matches. The driver's `is_retryable` decides about the kind, because it
corrects some codes: `ClientError.Cluster.NotALeader` is transient.

A failed statement may have taken effect: one with `CALL … IN TRANSACTIONS` commits in parts, and the
error does not show it. Only statements that the server refused to start were not sent.

The text of the driver's own errors shows whether there was a connection yet. `IncompleteCommit` is a
connection lost while waiting for the answer to a COMMIT: the outcome is unknown.
"""

from __future__ import annotations

from oncemore.classifiers.rules import classify_connect_error, error_message, make_connection_rule
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind

#: Prefixes of the codes of statements that the server did not start.
_NOT_STARTED_CODES: Final = (
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

#: How the text starts if the service could not be reached; a connection in use has other texts.
_CONNECT_MESSAGES: Final = (
    "Couldn't connect to",
    "Failed to establish connection",
    "Timed out trying to establish",
    "Failed to DNS resolve",
    "Unable to retrieve routing information",
)
_classify_lost_connection = make_connection_rule("CONNECTION_CLOSED")


def _classify_server_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    server_code = getattr(error, "code", None)
    code = _clean_code(server_code.removeprefix("Neo.")) if isinstance(server_code, str) else "DatabaseError"
    is_retryable = getattr(error, "is_retryable", None)
    kind: Kind = "transient" if callable(is_retryable) and is_retryable() is True else "permanent"
    return Failure(
        kind, "no" if code.startswith(_NOT_STARTED_CODES) else "maybe", None, f"NEO4J:{code}", rule
    )


def _clean_code(code: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in code[:100])


def _classify_unavailable(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    text = error_message(error)
    if text.startswith(_CONNECT_MESSAGES):
        failure = classify_connect_error(error, classification, rule)
        # The driver's own connect timeout has no cause, only its text.
        has_timed_out = failure.code == "CONNECTION_FAILED" and text.startswith("Timed out")
        return failure._replace(code="TIMEOUT_CONNECT") if has_timed_out else failure
    return _classify_lost_connection(error, classification, rule)


TABLES: Final[dict[str, Table]] = {
    "neo4j": {
        "Neo4jError": _classify_server_error,
        "ServiceUnavailable": _classify_unavailable,
        "RoutingServiceUnavailable": ("transient", "no", "CONNECTION_FAILED"),
        "WriteServiceUnavailable": ("transient", "no", "CONNECTION_FAILED"),
        "ReadServiceUnavailable": ("transient", "no", "CONNECTION_FAILED"),
        "IncompleteCommit": ("transient", "maybe", "NEO4J_INCOMPLETE_COMMIT"),
        "SessionExpired": _classify_lost_connection,
        "ConnectionAcquisitionTimeoutError": ("transient", "no", "TIMEOUT_POOL"),
        "ConnectionPoolError": ("permanent", "no", ""),
        "ConfigurationError": ("permanent", "no", ""),
        "BoltConnectionError": classify_connect_error,
        "BoltHandshakeError": ("permanent", "no", "PROTOCOL"),
        "BoltError": ("permanent", "maybe", "PROTOCOL"),
        "QueryApiHttpError": ("permanent", "maybe", "PROTOCOL"),
        "SocketDeadlineExceededError": ("transient", "maybe", "TIMEOUT_READ"),
        "DriverError": ("permanent", "maybe", ""),
        "GqlError": ("permanent", "maybe", ""),
    }
}
