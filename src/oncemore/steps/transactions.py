"""Transactional effects: the user's rows and our marker in one transaction of the user's database.

A small table there says for each step and key which attempt may write, and whether one has:

    oncemore_applied(step, key, fence, applied, result)

    begin    our fence goes into the row and is committed at once; then the work's transaction begins. A row
             that is applied already ends the attempt there and then: what it keeps is the result.
    work     the user's statements, on the same connection, in that transaction
    finish   after the function has returned: `applied` is set where the fence is still ours, and committed
             together with the user's rows. If no row fits, another attempt took over: all is rolled back.

A crash anywhere leaves both or neither, and whoever comes next reads which. Our own log follows the mark,
never the other way round: so the mark also keeps what is to be written there, events and all.

Everything here is a script like a flow: it yields what a connection answers, and is sent it back, awaited
where that has to be.
"""

from __future__ import annotations

from os.path import realpath
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from oncemore.errors import LeaseLost, UsageError
from oncemore.log.record import ArtifactRecord, EventRecord

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from oncemore.steps.attempt import Attempt
    from oncemore.steps.ops import Given

    Asking = Generator[Any, Any, Any]

TABLE = "oncemore_applied"
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE}(step VARCHAR(200) NOT NULL, key VARCHAR(64) NOT NULL, "
    "fence BIGINT NOT NULL, applied INTEGER NOT NULL, result TEXT, PRIMARY KEY(step, key))"
)
RAISE = (
    f"INSERT INTO {TABLE}(step, key, fence, applied) VALUES (?, ?, ?, 0) ON CONFLICT(step, key) DO UPDATE "  # noqa: S608
    f"SET fence = excluded.fence WHERE {TABLE}.fence < excluded.fence AND {TABLE}.applied = 0"
)
LOOK = f"SELECT fence, applied, result FROM {TABLE} WHERE step = ? AND key = ?"  # noqa: S608
MARK = f"UPDATE {TABLE} SET applied = 1, result = ? WHERE step = ? AND key = ? AND fence = ? AND applied = 0"  # noqa: S608


class AlreadyApplied(BaseException):
    """The work is done already, by an attempt whose record was lost.

    It passes through the work's own `except Exception`, like every end that is not a failure.
    """


class DatabaseAdapter(Protocol):
    """A connection to the user's database, as far as a mark needs it (`steps.db_adapters`).

    awaits  whether its answers have to be awaited
    sqlite  whether it is a file of this machine
    """

    awaits: bool
    sqlite: bool

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Asking:
        """Run a statement, with `?` for values; the answer is its rows, and how many it changed."""

    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""

    def begin(self) -> Asking:
        """Begin a transaction, where the driver does not do so by itself."""

    def commit(self) -> Asking:
        """Commit it."""

    def rollback(self) -> Asking:
        """Undo it, if there is one."""


class AppliedMark:
    """The row of one attempt.

    applied   what an earlier attempt left to be written into the log, once it is known
    finished  whether the user's rows are committed
    """

    def __init__(self, line: DatabaseAdapter, connection: Any, attempt: Attempt, ours: str) -> None:
        self.connection = connection
        self.is_async = line.awaits
        self.applied: tuple[dict[str, Any], tuple[Given, ...]] | None = None
        self._line = line
        self._step, self._key, self._fence = attempt.step, attempt.key, attempt.fence
        self._ours = ours
        self.finished = False

    def begin_attempt(self) -> Asking:
        """Make this attempt the one that may write, and begin its transaction."""
        if self._line.in_transaction():
            raise UsageError(
                f"{self._step}: the connection given to current().transaction() is in the middle of a "
                "transaction; commit it or roll it back first: the step begins its own"
            )
        if self._ours and self._line.sqlite:
            yield from self._check_not_own_store()
        fence, applied, kept = yield from self._raise_fence()
        if applied:
            self.applied = decode_commit_record(kept)
            raise AlreadyApplied(f"{self._step}: it was applied by an earlier attempt")
        if fence != self._fence:
            raise LeaseLost(
                f"{self._step}: a later attempt (fence {fence}) has the database; this one has {self._fence}"
            )
        yield from self._line.begin()
        yield from self._line.execute_sql(
            LOOK, (self._step, self._key)
        )  # some drivers begin with a statement

    def _check_not_own_store(self) -> Asking:
        """Refuse the store's own file: when it is closed, the locks of everybody here who writes are gone."""
        rows, _ = yield from self._line.execute_sql("PRAGMA database_list")
        yield from self._line.rollback()
        if any(file and realpath(file) == self._ours for _, _, file in rows):
            raise UsageError(
                f"{self._step}: the connection given to current().transaction() is on the store's own file, "
                "which nobody else in this process may open; write there with current().on_commit(write)"
            )

    def _raise_fence(self) -> Asking:
        """Raise the fence and look; the table is made when it is missed."""
        try:
            return (yield from self._update_fence())
        except Exception as error:
            if TABLE not in str(error):
                raise
        yield from self._create_table()
        return (yield from self._update_fence())

    def _update_fence(self) -> Asking:
        line, which = self._line, (self._step, self._key)
        yield from line.begin()
        try:
            yield from line.execute_sql(RAISE, (*which, self._fence))
            ((row,), _) = yield from line.execute_sql(LOOK, which)
            yield from line.commit()
        except BaseException:
            yield from line.rollback()
            raise
        return row

    def _create_table(self) -> Asking:
        line = self._line
        yield from line.begin()
        try:
            yield from line.execute_sql(CREATE)
            yield from line.commit()
        except Exception:  # noqa: BLE001 - somebody else may be making it too; if not, the next one says so
            yield from line.rollback()

    def commit_applied(self, kept: str) -> Asking:
        """Commit the user's rows together with the mark, or nothing of both; once."""
        if self.finished:
            return
        line, step = self._line, self._step
        if not line.in_transaction():
            raise UsageError(
                f"{step}: the transaction was ended inside the step; leave COMMIT and ROLLBACK to it, or its "
                "rows and the mark are not one"
            )
        try:
            _, changed = yield from line.execute_sql(MARK, (kept, step, self._key, self._fence))
            if changed != 1:
                raise LeaseLost(f"{step}: another attempt took over; its rows count, ours were rolled back")
            yield from line.commit()
        except GeneratorExit:
            raise  # its coroutine was closed: nothing can be awaited any more
        except BaseException:
            yield from self.roll_back()
            raise
        self.finished = True

    def roll_back(self) -> Asking:
        """Leave nothing behind; a connection that is broken has nothing to undo."""
        if self.finished:
            return
        try:
            yield from self._line.rollback()
        except Exception:  # noqa: BLE001 - a server rolls back what nobody commits
            return


_KINDS: dict[str, type[EventRecord | ArtifactRecord]] = {"event": EventRecord, "artifact": ArtifactRecord}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_commit_record(body: dict[str, Any], given: tuple[Given, ...]) -> str:
    """Return as text what the log is to say of finished work: its body, and what is given away with it."""
    away = [(_NAMES[type(each)], tuple(each), payload) for each, payload in given]
    return msgspec.json.encode({"body": body, "given": away}).decode()


def decode_commit_record(kept: str) -> tuple[dict[str, Any], tuple[Given, ...]]:
    """Return the body and the events that a marker stores."""
    told = msgspec.json.decode(kept)
    given = tuple((_KINDS[name](*fields), payload) for name, fields, payload in told["given"])
    return told["body"], given


def run_mark_script(asking: Asking) -> Any:
    """Bring a script to its end in this thread."""
    try:
        answer = next(asking)
        while True:
            answer = asking.send(answer)
    except StopIteration as end:
        return end.value


async def run_mark_script_async(asking: Asking) -> Any:
    """Bring a script to its end in this task."""
    try:
        answer = next(asking)
        while True:
            try:
                known = await answer if hasattr(type(answer), "__await__") else answer
            except GeneratorExit:
                asking.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the script's own
                answer = asking.throw(error)
            else:
                answer = asking.send(known)
    except StopIteration as end:
        return end.value
