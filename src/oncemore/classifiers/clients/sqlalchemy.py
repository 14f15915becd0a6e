"""What the errors of SQLAlchemy mean: mostly what the driver's error beneath means.

A database's error is in `.orig`, and under asyncpg once more in that one's `.orig`. Where SQLAlchemy
saw that the connection is gone (`connection_invalidated`) it is transient, whatever the driver called
it. A driver that has no table here but tells its SQLSTATE is understood by that.

A `StatementError` that is no `DBAPIError` was raised before the statement left: not sent. A pool that
had no connection in time sent nothing either. `PendingRollbackError` means that somebody forgot to
roll back; trying again does not make them. A row that changed under the ORM is a conflict.
"""

from __future__ import annotations

from oncemore.classifiers.clients.postgres import sqlstate
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table


def _driver(error: BaseException, look: Look, rule: str) -> Failure | None:
    orig = getattr(error, "orig", None)
    inner = look.known(orig) or _by_state(orig, rule)
    lost = getattr(error, "connection_invalidated", False) is True
    if lost and (inner is None or not inner.passing):
        return Failure("transient", "maybe", None, "CONNECTION_CLOSED", rule)
    return inner


def _by_state(orig: object, rule: str) -> Failure | None:
    for name in ("sqlstate", "pgcode"):
        state = getattr(orig, name, None)
        if isinstance(state, str) and len(state) == 5 and state.isascii() and state.isalnum():
            return sqlstate(state, rule)
    return None


def _refused(error: BaseException, look: Look, rule: str) -> Failure:
    """Read a class that is the statement's or the data's fault in whatever driver."""
    found = _driver(error, look, rule)
    return found or Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


def _unsent(error: BaseException, look: Look, rule: str) -> Failure:
    inner = look.known(getattr(error, "orig", None))
    if inner is None:
        return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)
    return inner._replace(sent="no")


TABLES: Final[dict[str, Table]] = {
    "sqlalchemy": {
        "DBAPIError": _driver,
        "EmulatedDBAPIException": _driver,
        **dict.fromkeys(("IntegrityError", "ProgrammingError", "DataError", "NotSupportedError"), _refused),
        "StatementError": _unsent,
        "TimeoutError": ("transient", "no", "TIMEOUT_POOL"),
        "DisconnectionError": ("transient", "no", "CONNECTION_CLOSED"),
        "StaleDataError": ("conflict", "no", "STALE_DATA"),
        "PendingRollbackError": ("permanent", "no", ""),
        "ArgumentError": ("permanent", "no", ""),
        "CompileError": ("permanent", "no", ""),
        "SQLAlchemyError": ("permanent", "maybe", ""),
    }
}
