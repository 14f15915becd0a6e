"""current().on_commit(write): tables beside the log are written in the very transaction of COMMIT."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

import oncemore
from oncemore.log import store
from oncemore.testing import FakeClock
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CREATE = "CREATE TABLE IF NOT EXISTS orders(n INTEGER PRIMARY KEY, attempt INTEGER)"


class Beside:
    """An engine, and what stands in the tables beside its log."""

    def __init__(self, engine: oncemore.Engine, rows: Callable[[str], list[Any]], hole: str) -> None:
        self.engine, self.rows, self.hole = engine, rows, hole

    def orders(self) -> list[Any]:
        return [tuple(row) for row in self.rows("SELECT n, attempt FROM orders ORDER BY n")]

    def writing(self, n: int, then: Callable[[Any], object] = lambda tx: None) -> Callable[[Any], None]:
        attempt = oncemore.current().number
        insert = f"INSERT INTO orders VALUES ({self.hole}, {self.hole})"  # noqa: S608

        def write(tx: Any) -> None:
            if tx.dialect != "mysql":  # where a new table would end the transaction
                tx.execute(CREATE)
            tx.execute(insert, (n, attempt))
            then(tx)

        return write

    def step(self, then: Callable[[Any], object] = lambda tx: None, **told: Any) -> Any:
        @oncemore.step(effect="transactional", name="order", **told)
        def order(n: int) -> int:
            oncemore.current().on_commit(self.writing(n, then))
            return n

        return order.bind(self.engine)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def beside(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Beside]:
    if request.param == "sqlite":
        with oncemore.open(tmp_path / "log.db") as engine:
            read: Any = engine.store.query_rows  # type: ignore[attr-defined]
            yield Beside(engine, read, "?")
        return
    if request.param == "mysql":
        address = f"{request.getfixturevalue('mysql_database')}_{time.monotonic_ns()}"
        mariadb.create_database(*address.rsplit("/", 1))

        def ask(sql: str) -> list[Any]:
            with mariadb.connect(address) as reader, reader.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())

        ask(CREATE)
        with oncemore.open(address) as engine:
            yield Beside(engine, ask, "%s")
        return
    server = request.getfixturevalue("server")
    name = f"beside_{time.monotonic_ns()}"
    with psycopg.connect(server, autocommit=True) as boss:
        boss.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    where = psycopg.conninfo.conninfo_to_dict(server)
    host, port = str(where["host"]), where.get("port")
    url = f"postgresql://{where.get('user', '')}@/{name}?host={host}" + (f"&port={port}" if port else "")

    def rows(sql: str) -> list[Any]:
        with psycopg.connect(server, dbname=name, autocommit=True) as reader:
            return reader.execute(sql).fetchall()  # type: ignore[arg-type]

    with oncemore.open(url) as engine:
        yield Beside(engine, rows, "%s")


def test_rows_and_record_are_there_once(beside: Beside) -> None:
    order = beside.step()
    assert [order(1), order(1), order(2)] == [1, 1, 2]
    assert beside.orders() == [(1, 1), (2, 1)]


def test_an_async_step_writes_there_too(beside: Beside) -> None:
    @oncemore.step(effect="transactional", name="order")
    async def order(n: int) -> int:
        oncemore.current().on_commit(beside.writing(n))
        return n

    async def many() -> list[int]:
        return list(await asyncio.gather(*(order.bind(beside.engine)(n % 5) for n in range(20))))

    beside.step()(99)
    assert sorted(asyncio.run(many())) == sorted(n % 5 for n in range(20))
    assert [n for n, _ in beside.orders()] == [0, 1, 2, 3, 4, 99]


def test_many_at_once_share_commits_and_one_s_failure_is_its_own(beside: Beside) -> None:
    """What one of them cannot write takes nothing from the others in the same commit."""
    beside.step()(1000)
    order = beside.step()
    runs: dict[int, Any] = {}

    def call(n: int) -> None:
        runs[n] = order.run(n)

    def fails(tx: Any) -> None:
        raise ValueError("no")

    failing = oncemore.step(effect="transactional", name="failing")(
        lambda n: oncemore.current().on_commit(beside.writing(n, fails))
    ).bind(beside.engine)
    threads = [threading.Thread(target=call, args=(n,)) for n in range(16)]
    threads += [threading.Thread(target=failing.run, args=(n,)) for n in range(100, 108)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {run.status for run in runs.values()} == {"COMPLETE"}
    assert [n for n, _ in beside.orders()] == [*range(16), 1000]
    assert {failing.last_run(n).status for n in range(100, 108)} == {"HARD_FAIL"}


def test_a_write_that_fails_is_a_failed_attempt_and_leaves_nothing(beside: Beside) -> None:
    faults: list[Exception | None] = [oncemore.TransientError("not yet"), None]

    def then(tx: Any) -> None:
        if (fault := faults.pop(0)) is not None:
            raise fault

    with FakeClock():
        assert beside.step(then)(1) == 1
    assert beside.orders() == [(1, 2)]


def test_a_statement_that_is_refused_is_an_error_of_the_attempt(beside: Beside) -> None:
    beside.step()(1)
    other = oncemore.step(effect="transactional", name="again")(
        lambda n: oncemore.current().on_commit(beside.writing(n))
    ).bind(beside.engine)
    with pytest.raises(oncemore.PermanentFailure, match=r"(?i)unique|duplicate"):
        other(1)
    assert beside.orders() == [(1, 1)]


def test_a_former_attempt_writes_nothing(beside: Beside) -> None:
    """A zombie: its lease has passed and another has done the work while it was at it."""
    done: list[Any] = []
    with oncemore.open(beside.engine.url) as other, FakeClock() as clock:

        @oncemore.step(effect="transactional", name="order")
        def order(n: int) -> str:
            number = oncemore.current().number
            oncemore.current().on_commit(beside.writing(n))
            if number == 1:
                clock.advance(100)
                thread = threading.Thread(target=lambda: done.append(order.bind(other)(n)))
                thread.start()
                thread.join(60)
            return f"by {number}"

        assert order.bind(beside.engine)(1) == "by 2"
    assert done == ["by 2"]
    assert beside.orders() == [(1, 2)]


@pytest.mark.parametrize("beside", ["mysql"], indirect=True)
@pytest.mark.parametrize(
    "sql", ["CREATE TABLE more(n INTEGER)", "truncate orders", "LOCK TABLES orders WRITE", "CALL hides_it()"]
)
def test_in_mysql_no_statement_may_end_the_transaction(beside: Beside, sql: str) -> None:
    """Some statements commit there without saying so, also inside of a procedure."""
    beside.rows("CREATE PROCEDURE hides_it() CREATE OR REPLACE TABLE hidden(n INTEGER)")
    with pytest.raises(oncemore.PermanentFailure, match=r"UsageError.*transaction"):
        beside.step(lambda tx: tx.execute(sql))(1)
    assert beside.engine.store.load_head(f"run/{beside.step().key(1)}").by.state == "HARD_FAIL"  # type: ignore[union-attr]
    assert beside.step()(2) == 2
    assert beside.rows("SELECT n FROM orders WHERE n = 2") == [(2,)]


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT mine"])
def test_the_transaction_is_not_theirs(beside: Beside, sql: str) -> None:
    with pytest.raises(oncemore.PermanentFailure, match="UsageError"):
        beside.step(lambda tx: tx.execute(sql))(1)
    assert beside.step()(2) == 2
    assert beside.orders() == [(2, 1)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM log", "UPDATE head SET version = 9", "INSERT INTO meta VALUES ('x', 1)",
        "DROP TABLE log",
        "CREATE INDEX mine ON head(state)", "ALTER TABLE log ADD COLUMN mine", "PRAGMA synchronous = OFF",
        "ATTACH ':memory:' AS other", "CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM log; END",
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", ["sqlite"], indirect=True)
def test_our_tables_are_out_of_reach(beside: Beside, sql: str) -> None:
    with pytest.raises(oncemore.PermanentFailure, match="out of its reach"):
        beside.step(lambda tx: tx.execute(sql))(1)
    assert beside.step()(2) == 2
    assert beside.engine.store.load_head(f"run/{beside.step().key(2)}") is not None


@pytest.mark.parametrize("beside", ["sqlite"], indirect=True)
def test_our_tables_may_be_read(beside: Beside) -> None:
    seen: list[Any] = []
    beside.step(lambda tx: seen.extend(tx.execute("SELECT count(*) FROM head")))(1)
    assert seen[0][0] >= 1


FOREVER = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
    "mysql": "SELECT benchmark(1000000000, sha2('x', 512))",
}


@pytest.mark.parametrize("how", ["a statement", "python", "python, then a statement"])
def test_it_is_bounded_in_time(beside: Beside, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for it: what takes too long is undone, and is a failed attempt."""

    def set_limit(seconds: float) -> None:
        for module in ("sqlite.joined", "postgres.joined", "mysql.joined", "store"):
            monkeypatch.setattr(f"oncemore.log.{module}.JOINED_WRITE_LIMIT_S", seconds)

    def slow(tx: Any) -> None:
        if how == "a statement":
            tx.execute(FOREVER[tx.dialect])
        else:
            time.sleep(0.15)
        if how == "python, then a statement":
            tx.execute("SELECT 1")

    set_limit(0.1)
    began = time.monotonic()
    with FakeClock(), pytest.raises(oncemore.Error) as caught:
        beside.step(slow)(1)
    assert "took longer than 0.1 s" in str(caught.value)
    assert time.monotonic() - began < 20
    set_limit(60.0)  # on a busy machine a quick write can take a tenth of a second too
    assert beside.step()(2) == 2
    assert beside.orders() == [(2, 1)]


def test_it_is_over_when_it_is_over(beside: Beside) -> None:
    kept: list[Any] = []
    beside.step(kept.append)(1)
    with pytest.raises(oncemore.UsageError, match="is over"):
        kept[0].execute("SELECT 1")


@pytest.mark.parametrize("beside", ["postgres", "mysql"], indirect=True)
def test_going_on_after_a_failed_statement_is_an_error(beside: Beside) -> None:
    def swallows(tx: Any) -> None:
        with pytest.raises((psycopg.Error, pymysql.Error)):
            tx.execute("SELECT nothing FROM nowhere")

    with pytest.raises(oncemore.Error, match="continued after a failed statement"):
        beside.step(swallows)(1)
    assert beside.step()(2) == 2


@pytest.mark.parametrize("beside", ["postgres", "mysql"], indirect=True)
def test_a_connection_that_is_lost_in_between_is_made_anew(beside: Beside) -> None:
    """Nothing was stored, so the whole is sent again, and what is written besides with it."""
    lost = [True]

    def kill(tx: Any) -> None:
        if lost:
            lost.clear()
            is_mysql = tx.dialect == "mysql"
            (pid,) = tx.execute("SELECT connection_id()" if is_mysql else "SELECT pg_backend_pid()")[0]
            beside.rows(f"KILL {pid}" if is_mysql else f"SELECT pg_terminate_backend({pid})")
            time.sleep(0.2)
            tx.execute("SELECT 1")

    assert beside.step(kill)(1) == 1
    assert beside.orders() == [(1, 1)]


@pytest.mark.parametrize("beside", ["sqlite"], indirect=True)
def test_ctrl_c_inside_leaves_nothing_and_hurts_nobody_else(beside: Beside) -> None:
    def cut(tx: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        beside.step(cut)(1)
    with FakeClock():
        assert beside.step()(1) == 1
    assert [n for n, _ in beside.orders()] == [1]


def test_a_store_without_tables_refuses_it() -> None:
    @oncemore.step(effect="transactional", name="order")
    def order() -> None:
        oncemore.current().on_commit(lambda tx: None)

    with (
        oncemore.open("memory:") as engine,
        pytest.raises(oncemore.PermanentFailure, match="needs a store in SQLite, PostgreSQL or MySQL"),
    ):
        order.bind(engine)()
    with oncemore.open("memory:") as engine, pytest.raises(oncemore.UsageError, match="has no tables"):
        engine.store.append(store.Batch((), joined_write=lambda tx: None))
