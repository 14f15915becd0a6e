"""Writes to SQLite while others write: the whole transaction is rolled back and tried again.

SQLite's own waiting is switched off meanwhile (`busy_timeout`), so that the tries and waits of the policy
are the real ones; what it was is set again afterwards. Tried again is `sqlite3.OperationalError` whose text
holds "locked", and nothing else: a missing table or a full disk does not pass by waiting 20 ms.

While the work runs, an authorizer of SQLite denies COMMIT and ROLLBACK, so that work which ends its own
transaction is refused before any of its rows is there.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from oncemore._redact import masked
from oncemore.classifiers.classify import classify
from oncemore.errors import UsageError
from oncemore.profiles.lit import alert, policy
from oncemore.profiles.lit.request_context import ids
from oncemore.retries.driver import blocking
from oncemore.retries.loop import Plan, again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from oncemore.policy.model import Failure
    from oncemore.profiles.lit.alert import Exhaustion
    from oncemore.profiles.lit.request_context import Ids
    from oncemore.retries.loop import Report

    Begin = Literal["immediate", "deferred", "exclusive"]
    Authorizer = Callable[..., int]

P = ParamSpec("P")
R = TypeVar("R")

BEGINS = ("immediate", "deferred", "exclusive")


class Persistence:
    """Writes session, finding and learning rows, or any others, as whole transactions.

    connection      a `sqlite3.Connection`, or a function that returns the one to use (one for each thread)
    attempts        tries in all (the profile's 3)
    base_backoff_s  the wait after try n is n times this (the profile's 0.02)
    begin           "immediate" takes the lock at once, so that contention shows before any work;
                    "deferred" with the first write, "exclusive" keeps readers out too
    counter         counts exhausted operations; that of the process unless given
    authorizer      the connection's own authorizer, if it has one: SQLite has room for one only, so it is
                    asked together with that of the write, and set again afterwards
    """

    def __init__(
        self,
        connection: sqlite3.Connection | Callable[[], sqlite3.Connection],
        *,
        attempts: int | None = None,
        base_backoff_s: float | None = None,
        begin: Begin = "immediate",
        counter: Exhaustion | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        if begin not in BEGINS:
            raise UsageError(f"begin is {begin!r}; the choices are {', '.join(BEGINS)}")
        if not isinstance(connection, sqlite3.Connection) and not callable(connection):
            raise UsageError(
                f"connection is {connection!r:.80}; it takes a sqlite3.Connection, or what returns one"
            )
        self.policy = policy.persistence(attempts, base_backoff_s)
        self.counter = alert.exhaustion if counter is None else counter
        self._connection = connection
        self._begin, self._authorizer = begin, authorizer
        self._busy_ms = round(policy.busy_timeout_s() * 1000)

    def write(
        self, work: Callable[Concatenate[sqlite3.Connection, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return what `work(connection, …)` returns, with all its writes committed, or none of them.

        The work must do nothing but write, because it is called again after a lock. Work that commits or
        rolls back by itself raises UsageError, and nothing of it is written.
        """
        given = self._connection
        connection = given if isinstance(given, sqlite3.Connection) else given()
        _check(connection)
        name = f"write {getattr(work, '__name__', 'rows')}"
        watch = _Watch(name, ids(), self.counter)
        plan = Plan(name, self.policy, _locked, classify, witness=watch)

        def attempt() -> R:
            return self._once(connection, lambda: work(connection, *args, **kwargs))

        with _own_patience(connection, self._busy_ms):
            return blocking(plan, again(plan), attempt, (), {})  # type: ignore[no-any-return]

    def writes(self, work: Callable[Concatenate[sqlite3.Connection, P], R], /) -> Callable[P, R]:
        """Return `work(connection, …)` as a function that is called without its connection, written whole."""

        @wraps(work)
        def write(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.write(work, *args, **kwargs)

        return write

    def _once(self, connection: sqlite3.Connection, work: Callable[[], R]) -> R:
        """Make one try: everything or nothing."""
        connection.execute(f"BEGIN {self._begin.upper()}")
        try:
            value = self._marked(connection, work)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return value

    def _marked(self, connection: sqlite3.Connection, work: Callable[[], R]) -> R:
        """Do the work, and make sure that the transaction is still the one it began in."""
        connection.execute(f"SAVEPOINT {_MARK}")
        denied: list[str] = []
        connection.set_authorizer(_deny_ends(connection, denied, self._authorizer))
        try:
            try:
                value = work()
            finally:
                connection.set_authorizer(self._authorizer)
        except sqlite3.Error as error:
            if denied or _locked(error):
                _check_ours(connection, error, denied)
            raise
        _check_ours(connection, None, denied)
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


def _locked(error: Exception | None, _failure: Failure | None = None) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


#: A savepoint that is gone when the work has ended the transaction, whatever it began after that.
_MARK = "oncemore_write"


def _deny_ends(connection: sqlite3.Connection, denied: list[str], own: Authorizer | None) -> Authorizer:
    """Return an authorizer that denies to end the transaction, and notes in `denied` that the work tried to.

    ON CONFLICT ROLLBACK ends it without a statement of its own; every statement after that is denied.
    """

    def authorize(action: int, *names: str | None) -> int:
        ends = action == sqlite3.SQLITE_TRANSACTION and names[0] in ("COMMIT", "ROLLBACK")
        if ends or not connection.in_transaction:
            denied.append(str(names[0]))
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if own is None else own(action, *names)

    return authorize


def _check_ours(connection: sqlite3.Connection, error: Exception | None, denied: list[str]) -> None:
    """Refuse work that ended its transaction, or tried to: a repeat could write its first half again."""
    try:
        connection.execute(f"RELEASE {_MARK}")
    except sqlite3.Error:
        denied = denied or ["ROLLBACK"]
    if denied:
        raise UsageError(
            "the work ended its transaction by itself (commit, rollback or executescript), so that it can be "
            "neither written whole nor repeated; nothing of it was written: leave that to persistence"
        ) from error


def _check(connection: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise UsageError(f"connection is {connection!r:.80}; it takes a sqlite3.Connection")
    if getattr(connection, "autocommit", None) is False:  # from Python 3.12 on
        raise UsageError(
            "the connection has autocommit=False, under which a transaction is always open; open it with "
            "autocommit=True, or without autocommit="
        )
    if connection.in_transaction:
        raise UsageError("a transaction is open on the connection; commit it first: a write is wrapped whole")


@contextmanager
def _own_patience(connection: sqlite3.Connection, busy_ms: int) -> Iterator[None]:
    """Let SQLite wait so long for locks and no longer; afterwards as before."""
    before = _busy_timeout(connection)
    _busy_timeout(connection, busy_ms)
    try:
        yield
    finally:
        _busy_timeout(connection, before)


def _busy_timeout(connection: sqlite3.Connection, milliseconds: int | None = None) -> int:
    cursor = connection.cursor()
    cursor.row_factory = None  # whatever the connection makes of rows
    told = "" if milliseconds is None else f" = {milliseconds:d}"
    return int(cursor.execute(f"PRAGMA busy_timeout{told}").fetchone()[0])


class _Watch:
    """Hears of every try that met a lock, and of the end."""

    def __init__(self, name: str, whose: Ids, counter: Exhaustion) -> None:
        self._name, self._ids, self._counter = name, whose, counter

    def failed(self, report: Report) -> None:
        """Log a lock with the try, and exhaustion; count the end."""
        error, at = report.error, report.decision.situation
        locked = _locked(error)
        fields: dict[str, Any] = {
            "oncemore_attempt": report.number,
            "oncemore_max_attempts": report.attempts,
            "oncemore_delay_s": report.decision.delay_s,
            "oncemore_error_class": at.failure.code,
        }
        if locked:
            alert.log.warning(
                "%s: try %d of %d met a lock; request=%s session=%s; %s",
                self._name, report.number, report.attempts, self._ids.request_id, self._ids.session_id or "-",
                masked(str(error)), extra={**alert.told(self._ids), **fields},
            )  # fmt: skip
        if report.decision.action != "retry":
            self._counter.count(exhausted=locked)
            if locked:
                told = f"{type(error).__name__}: {masked(str(error))}"
                alert.given_up(f"{self._name}: exhausted", report.number, self._ids, told, fields)

    def ended(self, _number: int, _now: float, error: BaseException | None) -> None:
        """Count a write that came good; one that was cut off from outside is nobody's fault."""
        if error is None:
            self._counter.count(exhausted=False)
