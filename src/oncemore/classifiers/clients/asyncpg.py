"""What the errors of asyncpg mean: PostgreSQL's, with the codes they have through psycopg.

A connection that was lost is a `ConnectionDoesNotExistError`, raised from the server's farewell if
there was one. While connecting it is the same class, and nothing was sent: the functions it came
through tell. A connection that was lost before is "closed" at its next use, and nothing was sent.

Whatever else goes wrong while connecting, and every timeout, is one of Python's own exceptions.
"""

from __future__ import annotations

from oncemore.classifiers.clients.postgres import sqlstate
from oncemore.classifiers.rules import came_through, message
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

_WORDS: Final[dict[str, tuple[Kind, str]]] = {
    "connection is closed": ("transient", "CONNECTION_CLOSED"),
    "pool is clos": ("permanent", "POOL_CLOSED"),
}


def _state(error: BaseException, _look: Look, _rule: str) -> Failure | None:
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and len(state) == 5 and state.isalnum():
        return sqlstate(state, "asyncpg:sqlstate")
    return None


def _lost(error: BaseException, look: Look, rule: str) -> Failure:
    farewell = look.known(error.__cause__)
    if farewell is not None and farewell.code.startswith("SQLSTATE_"):
        return farewell
    sent: Sent = "no" if came_through(error, "asyncpg.connect_utils") else "maybe"
    return Failure("transient", sent, None, "CONNECTION_CLOSED", rule)


def _refused(error: BaseException, _look: Look, rule: str) -> Failure:
    text = message(error)
    own = ("permanent", f"EXC_{type(error).__name__[:80]}")
    kind, code = next((fact for words, fact in _WORDS.items() if words in text), own)
    return Failure(kind, "no", None, code, rule)  # type: ignore[arg-type]


TABLES: Final[dict[str, Table]] = {
    "asyncpg": {
        "PostgresError": _state,
        "ConnectionDoesNotExistError": _lost,
        "InterfaceError": _refused,
        "TargetServerAttributeNotMatched": ("transient", "no", "CONNECTION_FAILED"),  # a fail-over
        "OutdatedSchemaCacheError": ("transient", "maybe", ""),  # found while reading what came back
        "ProtocolError": ("permanent", "maybe", "PROTOCOL"),
        "InternalClientError": ("permanent", "maybe", ""),
    }
}
