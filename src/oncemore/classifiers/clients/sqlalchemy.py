"""Rules for SQLAlchemy: mostly those of the driver's error inside it.

The driver's error is in `.orig`, and with asyncpg once more in that error's `.orig`. If SQLAlchemy saw a
lost connection (`connection_invalidated`), the failure is transient under every driver. A driver
without a table here is classified by its SQLSTATE.

A `StatementError` that is not a `DBAPIError` was raised before the statement was sent; a pool without a
free connection sent nothing either. `PendingRollbackError` means that the program forgot to roll back,
and a retry does not help. A row that changed under the ORM is a conflict.
"""

from __future__ import annotations

from oncemore.classifiers.clients.postgres import classify_sqlstate
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table


def _classify_driver_error(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    orig = getattr(error, "orig", None)
    inner = classification.classify_if_known(orig) or _classify_by_sqlstate(orig, rule)
    is_lost = getattr(error, "connection_invalidated", False) is True
    # Some drivers report a lost connection as a permanent error.
    if is_lost and (inner is None or not inner.may_pass):
        return Failure("transient", "maybe", None, "CONNECTION_CLOSED", rule)
    return inner


def _classify_by_sqlstate(orig: object, rule: str) -> Failure | None:
    # psycopg and asyncpg use `sqlstate`, psycopg2 uses `pgcode`.
    for name in ("sqlstate", "pgcode"):
        state = getattr(orig, name, None)
        if isinstance(state, str) and len(state) == 5 and state.isascii() and state.isalnum():
            return classify_sqlstate(state, rule)
    return None


def _classify_data_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    """Classify errors in the statement or its data; permanent without a known driver error."""
    failure = _classify_driver_error(error, classification, rule)
    return failure or Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


def _classify_statement_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    inner = classification.classify_if_known(getattr(error, "orig", None))
    if inner is None:
        return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)
    return inner._replace(sent="no")


TABLES: Final[dict[str, Table]] = {
    "sqlalchemy": {
        "DBAPIError": _classify_driver_error,
        "EmulatedDBAPIException": _classify_driver_error,
        **dict.fromkeys(
            ("IntegrityError", "ProgrammingError", "DataError", "NotSupportedError"), _classify_data_error
        ),
        "StatementError": _classify_statement_error,
        "TimeoutError": ("transient", "no", "TIMEOUT_POOL"),
        "DisconnectionError": ("transient", "no", "CONNECTION_CLOSED"),
        "StaleDataError": ("conflict", "no", "STALE_DATA"),
        "PendingRollbackError": ("permanent", "no", ""),
        "ArgumentError": ("permanent", "no", ""),
        "CompileError": ("permanent", "no", ""),
        "SQLAlchemyError": ("permanent", "maybe", ""),
    }
}
