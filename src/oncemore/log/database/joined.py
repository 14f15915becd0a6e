"""The joined write of a batch in a database server.

The user's function writes its own tables in our transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from oncemore.errors import UsageError
from oncemore.log.store import JoinedWriteFailed, joined_write_timeout, transaction_over_error

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

C = TypeVar("C")


class DatabaseTransaction(Generic[C]):
    """The transaction, as the user's function may use it.

    control       the beginning of statements that begin or end a transaction. Only a guard against
                  mistakes: `is_aborted` finds the rest
    control_hint  the end of the error for such a statement
    """

    dialect: ClassVar[str]
    control: ClassVar[re.Pattern[str]]
    control_hint: ClassVar[str] = ""

    def __init__(self, connection: C, ends_at: float) -> None:
        self._connection: C | None = connection
        self.ends_at = ends_at

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        if self._connection is None:
            raise transaction_over_error()
        if self.control.match(sql):
            raise UsageError(
                "on_commit() writes in the store's transaction, and cannot begin or end a transaction"
                f"{self.control_hint}"
            )
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise joined_write_timeout()
        return self._run_statement(self._connection, left, sql, values)

    def _run_statement(self, connection: C, seconds: float, sql: str, values: Any) -> list[Any]:
        """Run a statement that the server ends after some seconds."""
        raise NotImplementedError

    def is_aborted(self) -> bool:
        """Whether a statement has failed, so that nothing of the transaction can be committed."""
        raise NotImplementedError

    def end_access(self) -> None:
        """Refuse further statements."""
        self._connection = None


def run_joined_write(
    transaction: DatabaseTransaction[Any],
    write: Callable[[Any], object],
    error_class: type[Exception],
    must_repeat: Callable[[Any], bool],
) -> None:
    """Call the user's function in the open transaction; raise `JoinedWriteFailed` if it fails.

    must_repeat  whether the writer repeats the whole transaction after an error of the driver
    """
    try:
        write(transaction)
        if time.monotonic() > transaction.ends_at:
            raise joined_write_timeout()
    except error_class as error:
        if must_repeat(error):
            raise
        raise JoinedWriteFailed(str(error)) from error
    except Exception as error:
        raise JoinedWriteFailed(str(error)) from error
    finally:
        transaction.end_access()
    # The function may have caught the error of a statement; the transaction is aborted all the same.
    if transaction.is_aborted():
        raise JoinedWriteFailed("the transaction is aborted") from UsageError(
            "on_commit() continued after a failed statement; let the error pass"
        )
