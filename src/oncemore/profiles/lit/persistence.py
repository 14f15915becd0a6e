"""Writes to SQLite beside other writers: a transaction that meets a lock is rolled back and tried again.

SQLite's own waiting (`busy_timeout`) is off during a write, so that the attempts and waits are those of the
policy; its value is restored afterwards. Only a `sqlite3.OperationalError` with "locked" in its text is tried
again: a missing table or a full disk does not pass within 20 ms.

While the work runs, an authorizer denies COMMIT and ROLLBACK, so that work that ends its own transaction is
refused before any of its rows is stored.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from oncemore._redact import mask_text
from oncemore.classifiers.classify import classify
from oncemore.errors import UsageError
from oncemore.profiles.lit import alert, policy
from oncemore.profiles.lit.http import current_ids
from oncemore.retries.driver import run_blocking
from oncemore.retries.loop import make_script
from oncemore.retries.plan import RetryPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from oncemore.policy.model import Failure
    from oncemore.profiles.lit.alert import ExhaustionAlert
    from oncemore.profiles.lit.http import RequestIds
    from oncemore.retries.report import RetryReport

    Begin = Literal["immediate", "deferred", "exclusive"]
    Authorizer = Callable[..., int]

P = ParamSpec("P")
R = TypeVar("R")

BEGIN_MODES = ("immediate", "deferred", "exclusive")


class Persistence:
    """Writes session, finding and learning rows, or any other rows, as whole transactions.

    connection      a `sqlite3.Connection`, or a function that returns one (for example one per thread)
    attempts        the most attempts (the profile's 3)
    base_backoff_s  the wait after attempt n is n times this (the profile's 0.02)
    begin           "immediate" takes the lock at once, so that contention shows before any work;
                    "deferred" takes it with the first write, "exclusive" keeps readers out too
    counter         counts exhausted operations; that of the process unless given
    authorizer      the connection's own authorizer, if it has one: SQLite has a single one, so it is
                    combined with that of the write and restored afterwards
    """

    def __init__(
        self,
        connection: sqlite3.Connection | Callable[[], sqlite3.Connection],
        *,
        attempts: int | None = None,
        base_backoff_s: float | None = None,
        begin: Begin = "immediate",
        counter: ExhaustionAlert | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        if begin not in BEGIN_MODES:
            raise UsageError(f"begin is {begin!r}; the choices are {', '.join(BEGIN_MODES)}")
        if not isinstance(connection, sqlite3.Connection) and not callable(connection):
            raise UsageError(
                f"connection is {connection!r:.80}; it takes a sqlite3.Connection, or a function that "
                "returns one"
            )
        self.policy = policy.persistence_policy(attempts, base_backoff_s)
        self.counter = alert.exhaustion if counter is None else counter
        self._connection = connection
        self._begin, self._authorizer = begin, authorizer
        self._busy_ms = round(policy.busy_timeout_s() * 1000)

    def write(
        self, work: Callable[Concatenate[sqlite3.Connection, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return the result of `work(connection, …)`, with all its writes committed or none of them.

        The work must only write, because it is called again after a lock. Work that commits or rolls back
        itself raises UsageError, and nothing of it is stored.
        """
        source = self._connection
        connection = source if isinstance(source, sqlite3.Connection) else source()
        _check_connection(connection)
        name = f"write {getattr(work, '__name__', 'rows')}"
        observer = _LockObserver(name, current_ids(), self.counter)
        plan = RetryPlan(name, self.policy, _is_locked, classify, witness=observer)

        def attempt() -> R:
            return self._write_once(connection, lambda: work(connection, *args, **kwargs))

        # Restored even if the work fails: the connection belongs to the caller.
        with _with_busy_timeout(connection, self._busy_ms):
            return run_blocking(plan, make_script(plan), attempt, (), {})  # type: ignore[no-any-return]

    def writes(self, work: Callable[Concatenate[sqlite3.Connection, P], R], /) -> Callable[P, R]:
        """Return `work(connection, …)` as a function without the connection, whose calls are whole writes."""

        @wraps(work)
        def write(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.write(work, *args, **kwargs)

        return write

    def _write_once(self, connection: sqlite3.Connection, work: Callable[[], R]) -> R:
        """Make one attempt: all writes or none."""
        connection.execute(f"BEGIN {self._begin.upper()}")
        try:
            value = self._run_in_savepoint(connection, work)
            connection.execute("COMMIT")
        finally:
            # A COMMIT that met a lock leaves the transaction open.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return value

    def _run_in_savepoint(self, connection: sqlite3.Connection, work: Callable[[], R]) -> R:
        """Do the work and check that its transaction is still open."""
        # A marker of this transaction: it is released below, which fails if the work has ended it.
        connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        denied: list[str] = []
        connection.set_authorizer(_deny_ends(connection, denied, self._authorizer))
        try:
            try:
                value = work()
            finally:
                connection.set_authorizer(self._authorizer)
        except sqlite3.Error as error:
            # A denied COMMIT surfaces as an ordinary SQLite error, which must not be retried as one.
            if denied or _is_locked(error):
                _check_transaction_open(connection, error, denied)
            raise
        _check_transaction_open(connection, None, denied)
        return value


def persist(
    connection: sqlite3.Connection,
    work: Callable[Concatenate[sqlite3.Connection, P], R],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Write with the profile's numbers: `persist(connection, save, row)` calls `save(connection, row)`."""
    return Persistence(connection).write(work, *args, **kwargs)


def _is_locked(error: Exception | None, _failure: Failure | None = None) -> bool:
    # The text, as the document says: "database is locked" and "database table is locked".
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


#: The savepoint disappears with its transaction, even if the work has begun another one since.
_SAVEPOINT = "oncemore_write"


def _deny_ends(connection: sqlite3.Connection, denied: list[str], outer: Authorizer | None) -> Authorizer:
    """Return an authorizer that denies the end of the transaction, and notes each denial in `denied`.

    ON CONFLICT ROLLBACK ends it without a statement of its own; every statement after that is denied.
    """

    def authorize(action: int, *names: str | None) -> int:
        ends = action == sqlite3.SQLITE_TRANSACTION and names[0] in ("COMMIT", "ROLLBACK")
        if ends or not connection.in_transaction:
            denied.append(str(names[0]))
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if outer is None else outer(action, *names)

    return authorize


def _check_transaction_open(
    connection: sqlite3.Connection, error: Exception | None, denied: list[str]
) -> None:
    """Refuse work that ended its transaction or tried to: a repeat could write its first half again."""
    try:
        connection.execute(f"RELEASE {_SAVEPOINT}")
    except sqlite3.Error:
        denied = denied or ["ROLLBACK"]
    if denied:
        raise UsageError(
            "the work ended its transaction itself (commit, rollback or executescript), so it can neither be "
            "written whole nor repeated; nothing of it was written. Remove that: Persistence commits"
        ) from error


def _check_connection(connection: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise UsageError(f"connection is {connection!r:.80}; it takes a sqlite3.Connection")
    # The attribute exists from Python 3.12 on.
    if getattr(connection, "autocommit", None) is False:
        raise UsageError(
            "the connection has autocommit=False, under which a transaction is always open; open it with "
            "autocommit=True, or without autocommit="
        )
    if connection.in_transaction:
        raise UsageError(
            "a transaction is open on the connection; commit it first: a write is a whole transaction"
        )


@contextmanager
def _with_busy_timeout(connection: sqlite3.Connection, busy_ms: int) -> Iterator[None]:
    """Set SQLite's busy timeout inside the block, and restore it afterwards."""
    previous_ms = _set_busy_timeout(connection)
    _set_busy_timeout(connection, busy_ms)
    try:
        yield
    finally:
        _set_busy_timeout(connection, previous_ms)


def _set_busy_timeout(connection: sqlite3.Connection, milliseconds: int | None = None) -> int:
    cursor = connection.cursor()
    cursor.row_factory = None  # the connection's own factory may not return a tuple
    assignment = "" if milliseconds is None else f" = {milliseconds:d}"
    return int(cursor.execute(f"PRAGMA busy_timeout{assignment}").fetchone()[0])


class _LockObserver:
    """Logs each attempt that met a lock, and counts the end of the operation."""

    def __init__(self, name: str, ids: RequestIds, counter: ExhaustionAlert) -> None:
        self._name, self._ids, self._counter = name, ids, counter

    def record_failure(self, report: RetryReport) -> None:
        """Log a lock and an exhaustion; count the end."""
        error, situation = report.error, report.decision.situation
        is_locked = _is_locked(error)
        fields: dict[str, Any] = {
            "oncemore_attempt": report.number,
            "oncemore_max_attempts": report.attempts,
            "oncemore_delay_s": report.decision.delay_s,
            "oncemore_error_class": situation.failure.code,
        }
        if is_locked:
            alert.log.warning(
                "%s met a lock; request=%s session=%s; %s",
                f"{self._name}: attempt {report.number} of {report.attempts}",
                self._ids.request_id,
                self._ids.session_id or "-",
                mask_text(str(error)),
                extra={**alert.id_fields(self._ids), **fields},
            )
        if report.decision.action != "retry":
            self._counter.count(exhausted=is_locked)
            if is_locked:
                reason = f"{type(error).__name__}: {mask_text(str(error))}"
                alert.log_exhausted(f"{self._name}: exhausted", report.number, self._ids, reason, fields)

    def record_end(self, _number: int, _now: float, error: BaseException | None) -> None:
        """Count a successful write; an interruption from outside is not counted."""
        if error is None:
            self._counter.count(exhausted=False)
