"""Rules for asyncpg: PostgreSQL's errors, with the same codes as through psycopg.

A lost connection is a `ConnectionDoesNotExistError`, raised from the server's last message if there was
one. A failure while connecting has the same class, and nothing was sent: the traceback distinguishes the
two. A connection that was lost earlier is "closed" at its next use, and nothing was sent.

All other errors while connecting, and all timeouts, are Python's own exceptions.
"""

from __future__ import annotations

from oncemore.classifiers.clients.postgres import classify_sqlstate
from oncemore.classifiers.rules import error_message, passed_through_module
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

_MESSAGE_FACTS: Final[dict[str, tuple[Kind, str]]] = {
    "connection is closed": ("transient", "CONNECTION_CLOSED"),
    "pool is clos": ("permanent", "POOL_CLOSED"),
}


def _classify_server_error(
    error: BaseException, _classification: Classification, _rule: str
) -> Failure | None:
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and len(state) == 5 and state.isalnum():
        return classify_sqlstate(state, "asyncpg:sqlstate")
    return None


def _classify_lost_connection(error: BaseException, classification: Classification, rule: str) -> Failure:
    # For example 57P01: an administrator ended the session.
    last_message = classification.classify_if_known(error.__cause__)
    if last_message is not None and last_message.code.startswith("SQLSTATE_"):
        return last_message
    # Frames of `connect_utils` show that the connection was still being established.
    sent: Sent = "no" if passed_through_module(error, "asyncpg.connect_utils") else "maybe"
    return Failure("transient", sent, None, "CONNECTION_CLOSED", rule)


def _classify_interface_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    text = error_message(error)
    unknown = ("permanent", f"EXC_{type(error).__name__[:80]}")
    kind, code = next((fact for words, fact in _MESSAGE_FACTS.items() if words in text), unknown)
    return Failure(kind, "no", None, code, rule)  # type: ignore[arg-type]


TABLES: Final[dict[str, Table]] = {
    "asyncpg": {
        "PostgresError": _classify_server_error,
        "ConnectionDoesNotExistError": _classify_lost_connection,
        "InterfaceError": _classify_interface_error,
        "TargetServerAttributeNotMatched": ("transient", "no", "CONNECTION_FAILED"),  # a fail-over
        "OutdatedSchemaCacheError": ("transient", "maybe", ""),  # raised while reading the result
        "ProtocolError": ("permanent", "maybe", "PROTOCOL"),
        "InternalClientError": ("permanent", "maybe", ""),
    }
}
