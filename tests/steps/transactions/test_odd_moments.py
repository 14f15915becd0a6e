"""What a transaction can meet at odd moments: a fence that has moved on, a cut after the commit."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.lowlevel

import oncemore
from oncemore._driver import run_script
from oncemore.steps import transactions
from oncemore.testing import FakeClock
from tests.steps.transactions.databases import Database
from tests.steps.transactions.test_own_database import ordering

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("engine")


@pytest.mark.parametrize("database", ["sqlite3"], indirect=True)
def test_an_attempt_that_finds_a_later_fence_does_not_begin(database: Database) -> None:
    order = ordering(database)
    with closing(sqlite3.connect(database.file)) as connection, connection:
        connection.execute(transactions.CREATE)
        connection.execute("INSERT INTO oncemore_applied VALUES ('order', ?, 99, 0, NULL)", (order.key(1),))
    with FakeClock(), pytest.raises(oncemore.Error) as caught:
        order(1)
    assert "a later attempt (fence 99) has the database" in repr(caught.value.__cause__)
    assert database.orders() == []


@pytest.mark.parametrize("database", ["sqlite3"], indirect=True)
def test_a_table_that_cannot_be_made_is_told_by_who_misses_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "CREATE", "CREATE TABLE oncemore_applied(")
    with FakeClock(), pytest.raises(oncemore.Error, match="no such table: oncemore_applied"):
        ordering(database)(1)
    assert database.orders() == []


def test_what_is_committed_is_not_undone(tmp_path: Path) -> None:
    mark = transactions.AppliedMark(
        SimpleNamespace(awaits=False, dialect="sqlite"), None, SimpleNamespace(step="s", key="k", fence=1), ""
    )  # type: ignore[arg-type]
    mark.finished = True
    assert transactions.roll_back(mark) is None
    assert run_script(mark.commit_applied("{}"), transactions.DATABASE_OPERATIONS) is None


def test_a_cut_after_the_commit_is_kept_until_the_run_is_in_order() -> None:
    job: Any = SimpleNamespace(interrupt=None)
    cut = KeyboardInterrupt()
    assert transactions._transaction_outcome(job, SimpleNamespace(finished=True), cut).error is None  # type: ignore[arg-type]
    assert job.interrupt is cut
    assert transactions._transaction_outcome(job, SimpleNamespace(finished=False), cut).error is cut  # type: ignore[arg-type]


def test_a_second_cut_is_as_good_as_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice:
        twice = True

        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(transactions, "InterruptShield", Twice)
    with pytest.raises(KeyboardInterrupt):
        transactions.commit_transaction(SimpleNamespace(interrupt=None), SimpleNamespace())  # type: ignore[arg-type]


async def _passed() -> None:
    await trio.lowlevel.checkpoint()


class Undone:
    """A mark whose rollback has to be awaited."""

    is_async = True

    def __init__(self) -> None:
        self.count = 0

    def roll_back(self) -> Any:
        yield transactions.DatabaseReply(_passed())
        self.count += 1


def test_a_cancelled_task_of_trio_still_rolls_back() -> None:
    mark = Undone()

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await transactions.roll_back_async(mark, trio.Cancelled)  # type: ignore[arg-type]

    trio.run(main)
    assert mark.count == 1


def test_a_coroutine_that_is_closed_rolls_nothing_back() -> None:
    mark = Undone()
    asyncio.run(transactions.roll_back_async(mark, GeneratorExit()))  # type: ignore[arg-type]
    assert mark.count == 0


def test_a_commit_that_fails_in_a_task_is_a_failed_attempt(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, finish, fails = (
        Database("psycopg-async", tmp_path, server),
        transactions.AppliedMark.commit_applied,
        [True],
    )

    def once(self: Any, kept: str) -> Any:
        if fails:
            fails.clear()
            yield from self.roll_back()
            raise oncemore.TransientError("the network went away")
        yield from finish(self, kept)

    monkeypatch.setattr(transactions.AppliedMark, "commit_applied", once)

    @oncemore.step(effect="transactional", name="order")
    async def order(n: int) -> int:
        connection = await database.connect()
        opened.append(connection)
        await oncemore.current().transaction(connection)
        await database.write(connection, n, oncemore.current().number)
        return n

    opened: list[Any] = []

    async def main() -> int:
        try:
            return await order(1)
        finally:
            for connection in opened:
                await connection.close()

    with FakeClock():
        assert asyncio.run(main()) == 1
    assert database.orders() == [(1, 2)]


def test_what_an_async_step_cannot_write_beside_the_log_is_its_failure() -> None:
    def no(tx: Any) -> None:
        raise ValueError("no")

    @oncemore.step(effect="transactional", name="order")
    async def order() -> None:
        oncemore.current().on_commit(no)

    with pytest.raises(oncemore.PermanentFailure, match="ValueError: no"):
        asyncio.run(_awaited(order()))


async def _awaited(call: Any) -> Any:
    return await call
