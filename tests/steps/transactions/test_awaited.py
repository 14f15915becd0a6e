"""current().transaction(connection) where connections are awaited: the same promises in async steps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore._driver import run_script_async
from oncemore.steps import transactions
from oncemore.testing import FakeClock
from tests.steps.transactions.databases import AWAITED, Database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(params=AWAITED)
def awaited(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> Database:
    return Database(request.param, tmp_path, server)


async def connected(database: Database) -> Any:
    made = database.connect()
    return made if database.kind == "session-async" else await made


def ordering(database: Database, then: Callable[[int], Any], **told: Any) -> Any:
    @oncemore.step(effect="transactional", name="order", **told)
    async def order(n: int) -> Any:
        attempt = oncemore.current()
        async with opened(database) as connection:
            assert await attempt.transaction(connection) is connection
            await database.write(connection, n, attempt.number)
            answer = then(n)
            return await answer if hasattr(answer, "__await__") else answer

    return order


class opened:
    """A connection that the step's own end commits: it must outlive the function."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __aenter__(self) -> Any:
        self._connection = await connected(self._database)
        KEPT.append(self._connection)
        return self._connection

    async def __aexit__(self, *error: object) -> None:
        return None


KEPT: list[Any] = []


def ran(call: Any) -> Any:
    """Run a call on asyncio and close what it opened."""

    async def main() -> Any:
        try:
            return await call()
        finally:
            while KEPT:
                await KEPT.pop().close()

    return asyncio.run(main())


def test_rows_and_record_are_there_once(awaited: Database) -> None:
    order = ordering(awaited, lambda n: n)
    assert [ran(lambda: order(1)), ran(lambda: order(1))] == [1, 1]
    assert awaited.orders() == [(1, 1)]


def test_nothing_is_left_of_an_attempt_that_failed(awaited: Database) -> None:
    fails = [oncemore.TransientError("not yet"), None]

    def then(n: int) -> int:
        if (fault := fails.pop(0)) is not None:
            raise fault
        return n

    with FakeClock():
        assert ran(lambda: ordering(awaited, then)(1)) == 1
    assert awaited.orders() == [(1, 2)]


def test_what_was_applied_is_not_done_again(
    awaited: Database, engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = engine.store.append

    def dead(batch: Any) -> Any:
        if any(b'"COMMIT"' in write.header for write in batch.writes):
            engine.leases.retire_worker(next(iter(engine.leases.workers.values())), quietly=True)
            raise SystemExit
        return append(batch)

    monkeypatch.setattr(engine.store, "append", dead)
    with pytest.raises(SystemExit):
        ran(lambda: ordering(awaited, lambda n: "first")(1))
    monkeypatch.undo()
    with oncemore.open(engine.url) as other, FakeClock():
        assert ran(lambda: ordering(awaited, lambda n: "second").bind(other)(1)) == "first"
    assert awaited.orders() == [(1, 1)]


def test_a_cancelled_task_leaves_nothing(awaited: Database) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def stays(n: int) -> None:
            inside.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(ordering(awaited, lambda n: stays(n))(1))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The connection lives on: nothing of the transaction may be left in it.
        await KEPT[-1].commit()

    ran(main)
    assert awaited.orders() == []
    with FakeClock():
        assert ran(lambda: ordering(awaited, lambda n: n)(1)) == 1
    assert awaited.orders() == [(1, 2)]


def test_a_limit_cancels_it_and_leaves_nothing(awaited: Database) -> None:
    async def stays(n: int) -> None:
        await asyncio.sleep(60)

    order = ordering(awaited, stays, timeout=0.2)
    run = ran(lambda: order.run(1))
    assert run.status in ("SOFT_FAIL", "HARD_FAIL")
    assert awaited.orders() == []


def test_an_async_connection_needs_an_async_step(awaited: Database) -> None:
    @oncemore.step(effect="transactional", name="order")
    def order(connection: oncemore.Secret[Any], number: int = 0) -> None:
        oncemore.current().transaction(connection.reveal())

    async def main() -> None:
        connection = await connected(awaited)
        try:
            with pytest.raises(oncemore.Error, match="needs an async step"):
                order(oncemore.Secret(connection))
        finally:
            await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("database", ["sqlite3"], indirect=True)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_async_step_may_use_a_plain_connection(database: Database, loop: str) -> None:
    faults: list[BaseException | None] = [oncemore.TransientError("not yet"), None]

    @oncemore.step(effect="transactional", name="order")
    async def order(n: int) -> int:
        connection = await oncemore.current().transaction(database.connect())
        database.write(connection, n, oncemore.current().number)
        if (fault := faults.pop(0)) is not None:
            raise fault
        return n

    async def main() -> int:
        return await order(1)

    with FakeClock():
        assert (asyncio.run(main()) if loop == "asyncio" else trio.run(main)) == 1
    assert database.orders() == [(1, 2)]


def test_a_script_that_is_closed_in_the_middle_awaits_nothing_more() -> None:
    """A coroutine that is closed cannot await: the connection's own end undoes the rest."""
    undone: list[str] = []

    class Never:
        def __await__(self) -> Any:
            yield None

    class Line:
        awaits, dialect = True, "postgresql"

        def execute_sql(self, sql: str, values: Any = ()) -> Any:
            yield transactions.DatabaseReply(Never())
            return [], 1

        def in_transaction(self) -> bool:
            return True

        def rollback(self) -> Any:
            undone.append("rollback")
            yield transactions.DatabaseReply(Never())

        begin = commit = rollback

    attempt: Any = type("At", (), {"step": "s", "key": "k", "fence": 1})
    mark = transactions.AppliedMark(Line(), None, attempt, "")
    coroutine = run_script_async(mark.commit_applied("{}"), transactions.DATABASE_OPERATIONS)
    coroutine.send(None)
    coroutine.close()
    assert undone == []
    Line.begin = lambda self: iter(())  # type: ignore[method-assign, assignment]
    Line.in_transaction = lambda self: False  # type: ignore[method-assign]
    coroutine = run_script_async(mark.begin_attempt(), transactions.DATABASE_OPERATIONS)
    coroutine.send(None)
    coroutine.close()
    assert undone == []
