"""Transactional effects: the user's rows and our marker in one transaction of the user's database.

A small table there has one row per step and key: the fence of the attempt that may write, and whether an
attempt has committed:

    oncemore_applied(step, key, fence, applied, result)

    begin    the fence of the attempt is stored in the row and committed at once; then the transaction of the
             work begins. If the row is applied already, the attempt ends here with the stored result.
    work     the user's statements, on the same connection, in that transaction
    commit   after the function has returned: `applied` is set where the fence is still the attempt's, and
             committed with the user's rows. If no row matches, another attempt took over: roll back.

A crash at any point leaves both the rows and the marker, or neither; the next attempt reads the marker. The
log is written after the marker, so the marker also holds the body and the events of the log's COMMIT.

These are scripts (`oncemore._driver`): each operation is a reply of the user's connection; the reply of an
async connection is an awaitable.
"""

from __future__ import annotations

from os.path import realpath
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from oncemore import clock as clocks
from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore._values import Value
from oncemore.errors import LeaseLost, UsageError
from oncemore.log.entry_codec import load_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import ArtifactRecord, EventRecord
from oncemore.steps.ops import TransactionOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore._driver import Script
    from oncemore.steps.attempt import Attempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import CommitTransaction, Output

TABLE = "oncemore_applied"
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE}(step VARCHAR(200) NOT NULL, key VARCHAR(64) NOT NULL, "
    "fence BIGINT NOT NULL, applied INTEGER NOT NULL, result TEXT, PRIMARY KEY(step, key))"
)
# Only a higher fence replaces the stored one: a late, earlier attempt cannot take the row back.
RAISE = (
    f"INSERT INTO {TABLE}(step, key, fence, applied) VALUES (?, ?, ?, 0) ON CONFLICT(step, key) DO UPDATE "  # noqa: S608
    f"SET fence = excluded.fence WHERE {TABLE}.fence < excluded.fence AND {TABLE}.applied = 0"
)
LOOK = f"SELECT fence, applied, result FROM {TABLE} WHERE step = ? AND key = ?"  # noqa: S608
MARK = f"UPDATE {TABLE} SET applied = 1, result = ? WHERE step = ? AND key = ? AND fence = ? AND applied = 0"  # noqa: S608

#: The same for MySQL, where `key` is a reserved word, TEXT ends at 64 KB, comparisons of text ignore case,
#: and another engine than InnoDB would have no transactions.
MYSQL_STATEMENTS = {
    CREATE: (
        f"CREATE TABLE IF NOT EXISTS {TABLE}(step VARBINARY(800) NOT NULL, `key` VARBINARY(64) NOT NULL, "
        "fence BIGINT NOT NULL, applied INTEGER NOT NULL, result LONGTEXT CHARACTER SET utf8mb4, "
        "PRIMARY KEY(step, `key`)) ENGINE = InnoDB"
    ),
    RAISE: (
        f"INSERT INTO {TABLE}(step, `key`, fence, applied) VALUES (?, ?, ?, 0) ON DUPLICATE KEY UPDATE "  # noqa: S608
        "fence = IF(applied = 0 AND fence < VALUES(fence), VALUES(fence), fence)"
    ),
    LOOK: LOOK.replace("key", "`key`"),
    MARK: MARK.replace("key", "`key`"),
}


class DatabaseReply(Value):
    """The reply of a connection: a value, or an awaitable from an async connection."""

    reply: Any


async def _await_reply(context: object, op: DatabaseReply) -> Any:
    return await op.reply if hasattr(type(op.reply), "__await__") else op.reply


DATABASE_OPERATIONS = OperationTable({DatabaseReply: lambda _, op: op.reply}, {DatabaseReply: _await_reply})


class AlreadyApplied(BaseException):
    """An earlier attempt committed the work, and its record in the log was lost.

    Not an `Exception`, so that an `except Exception` in the work does not catch it.
    """


class DatabaseAdapter(Protocol):
    """A connection to the user's database (`steps.db_adapters`).

    awaits   whether its replies have to be awaited
    dialect  "sqlite", "postgresql" or "mysql"
    """

    awaits: bool
    dialect: str

    def execute_sql(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run a statement, with `?` for values; return its rows and the number of changed rows."""

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""

    def begin(self) -> Script[Any]:
        """Begin a transaction, if the driver does not do so by itself."""

    def commit(self) -> Script[Any]:
        """Commit the transaction."""

    def rollback(self) -> Script[Any]:
        """Roll the transaction back, if there is one."""


class AppliedMark:
    """The row of one attempt in the table `oncemore_applied`.

    applied     body and events of the COMMIT of an earlier attempt, if that one was applied
    finished    whether the user's rows are committed
    store_path  the file of the store itself; empty for a store that is not a file
    """

    def __init__(self, database: DatabaseAdapter, connection: Any, attempt: Attempt, store_path: str) -> None:
        self.connection = connection
        self.is_async = database.awaits
        self.applied: tuple[dict[str, Any], tuple[Output, ...]] | None = None
        self._database = database
        self._statements = MYSQL_STATEMENTS if database.dialect == "mysql" else {}
        self._step, self._key, self._fence = attempt.step, attempt.key, attempt.fence
        self._store_path = store_path
        self.finished = False

    def begin_attempt(self) -> Script[Any]:
        """Store the fence of this attempt, so that no earlier one can commit, and begin its transaction."""
        if self._database.in_transaction():
            raise UsageError(
                f"{self._step}: the connection given to current().transaction() is in the middle of a "
                "transaction; commit it or roll it back first: the step begins its own"
            )
        if self._store_path and self._database.dialect == "sqlite":
            yield from self._check_not_own_store()
        # Committed before the work begins: from here on no earlier attempt can commit its rows.
        fence, applied, commit_record = yield from self._raise_fence()
        if applied:
            self.applied = decode_commit_record(commit_record)
            raise AlreadyApplied(f"{self._step}: it was applied by an earlier attempt")
        if fence != self._fence:
            raise LeaseLost(
                f"{self._step}: a later attempt (fence {fence}) has the database; this one has {self._fence}"
            )
        yield from self._database.begin()
        # Some drivers begin the transaction with its first statement.
        yield from self._execute(LOOK, (self._step, self._key))

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> Script[Any]:
        """Run one of the statements above, in the dialect of the database."""
        return self._database.execute_sql(self._statements.get(sql, sql), values)

    def _check_not_own_store(self) -> Script[Any]:
        """Refuse the store's own file: closing it would release the file locks of this process."""
        rows, _ = yield from self._database.execute_sql("PRAGMA database_list")
        yield from self._database.rollback()
        if any(file and realpath(file) == self._store_path for _, _, file in rows):
            raise UsageError(
                f"{self._step}: the connection given to current().transaction() is on the store's own file, "
                "which a process may open only once; write there with current().on_commit(write)"
            )

    def _raise_fence(self) -> Script[Any]:
        """Store the fence and return the row; create the table if it is missing."""
        try:
            return (yield from self._update_fence())
        except Exception as error:
            # Every driver has its own class for a missing table; their messages all name the table.
            if TABLE not in str(error):
                raise
        yield from self._create_table()
        return (yield from self._update_fence())

    def _update_fence(self) -> Script[Any]:
        database, row_key = self._database, (self._step, self._key)
        yield from database.begin()
        try:
            yield from self._execute(RAISE, (*row_key, self._fence))
            ((row,), _) = yield from self._execute(LOOK, row_key)
            yield from database.commit()
        except GeneratorExit:
            raise  # the coroutine was closed: nothing can be awaited any more
        except BaseException:
            yield from database.rollback()
            raise
        return row

    def _create_table(self) -> Script[Any]:
        database = self._database
        yield from database.begin()
        try:
            yield from self._execute(CREATE)
            yield from database.commit()
        except Exception:  # noqa: BLE001 - another process may create it too; if not, the next statement fails
            yield from database.rollback()

    def commit_applied(self, commit_record: str) -> Script[Any]:
        """Commit the user's rows together with the marker, or roll both back.

        commit_record  body and events of the COMMIT in the log (`encode_commit_record`)
        """
        # The outcome may be recorded again after a conflict in the log; the rows are committed by then.
        if self.finished:
            return
        database, step = self._database, self._step
        # A COMMIT inside the function would have stored the user's rows without the marker.
        if not database.in_transaction():
            raise UsageError(
                f"{step}: the transaction was ended inside the step; leave COMMIT and ROLLBACK to the "
                "step, which commits its rows together with the record that they are written"
            )
        try:
            values = (commit_record, step, self._key, self._fence)
            _, changed = yield from self._execute(MARK, values)
            if changed != 1:
                raise LeaseLost(f"{step}: another attempt took over; its rows count, ours were rolled back")
            yield from database.commit()
        except GeneratorExit:
            raise  # the coroutine was closed: nothing can be awaited any more
        except BaseException:
            yield from self.roll_back()
            raise
        self.finished = True

    def roll_back(self) -> Script[Any]:
        """Roll the transaction back, unless it is committed; a broken connection has nothing to roll back."""
        if self.finished:
            return
        try:
            yield from self._database.rollback()
        except Exception:  # noqa: BLE001 - the server rolls back a transaction whose connection is gone
            return


_KINDS: dict[str, type[EventRecord | ArtifactRecord]] = {"event": EventRecord, "artifact": ArtifactRecord}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_commit_record(body: dict[str, Any], outputs: tuple[Output, ...]) -> str:
    """Return the body and the outputs of a COMMIT as text, for the marker."""
    rows = [(_NAMES[type(record)], tuple(record), payload) for record, payload in outputs]
    # "given" is stored in users' databases: the name stays, so that older markers can be read.
    return msgspec.json.encode({"body": body, "given": rows}).decode()


def decode_commit_record(text: str) -> tuple[dict[str, Any], tuple[Output, ...]]:
    """Return the body and the outputs that a marker stores."""
    fields_by_name = msgspec.json.decode(text)
    rows = fields_by_name["given"]
    outputs = tuple((_KINDS[name](*fields), payload) for name, fields, payload in rows)
    return fields_by_name["body"], outputs


# The operations of a call ---------------------------------------------------------------------------


def commit_transaction(call: PreparedCall, op: CommitTransaction) -> TransactionOutcome:
    """Commit the user's transaction together with our marker, if the attempt still holds its run."""
    shield = InterruptShield()
    shield.was_interrupted = call.interrupt is not None
    try:
        with shield:
            run_script(_commit_script(call, op), DATABASE_OPERATIONS)
    except BaseException as error:
        # A second Ctrl-C ends the process at once; the next attempt reads the marker.
        if shield.twice:
            raise
        return _transaction_outcome(call, op.mark, error)
    return TransactionOutcome(None)


async def commit_transaction_async(call: PreparedCall, op: CommitTransaction) -> TransactionOutcome:
    """Commit the user's transaction; await an async connection."""
    if not op.mark.is_async:
        return commit_transaction(call, op)
    try:
        await run_script_async(_commit_script(call, op), DATABASE_OPERATIONS)
    except BaseException as error:  # noqa: BLE001 - as for the function itself
        outcome = _transaction_outcome(call, op.mark, error)
        call.keep_if_closed(error, outcome)
        return outcome
    return TransactionOutcome(None)


def _commit_script(call: PreparedCall, op: CommitTransaction) -> Script[None]:
    """Commit the transaction of an attempt, unless another worker took the attempt over.

    The marker refuses a former attempt as well; but in a database with one writer the next attempt could not
    store its fence while this transaction is open, and would fail for that.
    """
    run = load_head(call.store, op.head.entity, call.engine.cipher).record
    if run.state != "RUNNING" or run.fence != op.head.record.fence:
        yield from op.mark.roll_back()
        raise LeaseLost(f"{run.step}: attempt {op.head.record.attempt} was taken over; nothing is committed")
    yield from op.mark.commit_applied(encode_commit_record(op.body, op.events))


def _transaction_outcome(call: PreparedCall, mark: AppliedMark, error: BaseException) -> TransactionOutcome:
    """Return the outcome of a transaction that raised; an interruption after its commit is raised later."""
    # Not committed, or not known to be: the failure is recorded, and a retry reads the marker first.
    if not mark.finished:
        return TransactionOutcome(error)
    call.interrupt = error
    return TransactionOutcome(None)


def roll_back(mark: AppliedMark) -> None:
    """Roll the transaction of a failed attempt back."""
    run_script(mark.roll_back(), DATABASE_OPERATIONS)


async def roll_back_async(mark: AppliedMark, error: BaseException) -> None:
    """Roll the transaction of a failed or cancelled task back; a closed coroutine cannot await it."""
    if not mark.is_async:
        roll_back(mark)
    elif not isinstance(error, GeneratorExit):
        trio = clocks.find_trio()
        if trio is None:
            await run_script_async(mark.roll_back(), DATABASE_OPERATIONS)
        else:
            # On trio a cancelled task could not await anything without a shield.
            with trio.CancelScope(shield=True):
                await run_script_async(mark.roll_back(), DATABASE_OPERATIONS)
