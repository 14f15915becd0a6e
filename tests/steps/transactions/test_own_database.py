"""current().transaction(connection): the user's rows and the mark are one, whatever dies or comes late."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import sqlalchemy

import oncemore
from oncemore.log.store import HeadQuery
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps import transactions
from oncemore.testing import FakeClock
from tests.steps.transactions.databases import Database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLICY = Policy("test", max_attempts=3, schedule=Schedule("fixed", delays=(5.0, 7.0)), jitter=Jitter("none"))
pytestmark = pytest.mark.usefixtures("engine")


def ordering(database: Database, then: Callable[[int], Any] = lambda n: {"n": n}, **told: Any) -> Any:
    """Return a step that writes an order through a new connection, and then does something."""

    @oncemore.step(effect="transactional", name="order", policy=POLICY, **told)
    def order(n: int) -> Any:
        attempt = oncemore.current()
        connection = attempt.transaction(database.connect())
        database.write(connection, n, attempt.number)
        attempt.emit("ordered", {"n": n})
        return then(n)

    return order


def marked(database: Database) -> list[Any]:
    return database.rows("SELECT fence, applied FROM oncemore_applied")


def elsewhere(call: Callable[[], object]) -> None:
    """Make a call in a thread of its own, which knows nothing of the step around this line."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


class Killed(BaseException):
    """The process is as good as dead."""


def test_rows_and_record_are_there_once(database: Database, engine: oncemore.Engine) -> None:
    order = ordering(database)
    assert [order(1), order(1), order(2)] == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert database.orders() == [(1, 1), (2, 1)]
    assert marked(database) == [(1, 1), (1, 1)]
    assert len(list(engine.store.list_heads(HeadQuery("event")))) == 2


def test_nothing_is_left_of_an_attempt_that_failed(database: Database) -> None:
    fails = [oncemore.TransientError("not yet"), oncemore.TransientError("not yet"), None]

    def then(n: int) -> int:
        if (fault := fails.pop(0)) is not None:
            raise fault
        return n

    with FakeClock():
        assert ordering(database, then)(1) == 1
    assert database.orders() == [(1, 3)]
    assert marked(database) == [(3, 1)]


def test_what_was_applied_is_not_done_again_when_its_record_was_lost(
    database: Database, engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the user's commit and ours."""
    order = ordering(database)
    die_at(monkeypatch, engine, "COMMIT")
    with pytest.raises(Killed):
        order(1)
    assert database.orders() == [(1, 1)]
    assert order.last_run(1).status == "RUNNING"
    monkeypatch.undo()
    with oncemore.open(engine.url) as other, FakeClock():
        after = ordering(database, lambda n: pytest.fail("the function went on")).bind(other)
        assert after(1) == {"n": 1}
        assert database.orders() == [(1, 1)]
        run = after.last_run(1)
        assert (run.status, len(run.attempts)) == ("COMPLETE", 2)
        assert [head.by.step for head in other.store.list_heads(HeadQuery("event"))] == ["ordered"]


def test_what_was_not_committed_is_done_again(
    database: Database, engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after the function has returned, before the user's commit."""

    def die(mark: Any, kept: str) -> Any:
        engine.leases.retire_worker(next(iter(engine.leases.workers.values())), quietly=True)
        raise Killed
        yield

    connections = []
    connect = database.connect
    database.connect = lambda: connections.append(connect()) or connections[-1]  # type: ignore[method-assign]
    monkeypatch.setattr(transactions.AppliedMark, "commit_applied", die)
    monkeypatch.setattr(transactions.AppliedMark, "roll_back", lambda self: iter(()))
    order = ordering(database)
    with pytest.raises(Killed):
        order(1)
    monkeypatch.undo()
    with suppress(Exception):
        connections[0].close()  # which the end of a process does
    with oncemore.open(engine.url) as other, FakeClock():
        assert ordering(database).bind(other)(1) == {"n": 1}
    assert database.orders() == [(1, 2)]


def die_at(monkeypatch: pytest.MonkeyPatch, engine: oncemore.Engine, mark: str) -> None:
    """Have the store out of reach from the entry with that mark on, as if the process were gone."""
    append = engine.store.append
    name = f'"{mark}"'.encode()

    def dead(batch: Any) -> Any:
        if any(name in write.header for write in batch.writes):
            engine.leases.retire_worker(next(iter(engine.leases.workers.values())), quietly=True)
            raise Killed
        return append(batch)

    monkeypatch.setattr(engine.store, "append", dead)


def test_a_former_attempt_commits_nothing(database: Database, engine: oncemore.Engine) -> None:
    """A zombie: its lease has passed and another has taken over while it was in its transaction.

    A database with one writer keeps the other out for as long, and then nobody has written anything.
    """
    database.patience_s = 0.05
    others: list[Any] = []
    with oncemore.open(engine.url) as other, FakeClock() as clock:

        def takes_over(n: int) -> str:
            if not others:
                clock.advance(100)
                second = ordering(database, lambda n: "second").bind(other)
                elsewhere(lambda: others.append(second.run(n)))
            return "first"

        order = ordering(database, takes_over).bind(engine)
        if database.server:
            assert order(1) == others[0].value == "second"
            assert database.orders() == [(1, 2)]
        else:
            with pytest.raises(oncemore.RetriesExhausted):
                order(1)
            assert others[0].status == "HARD_FAIL"
            assert database.orders() == []
            assert order.rerun(1, reason="nobody holds it any more") == "first"
            assert database.orders() == [(1, 5)], "four attempts: the lost one counts apart"


def test_a_later_fence_in_the_database_is_enough(
    database: Database, engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where our own log has not heard of it, the row alone keeps a former attempt from committing."""
    finish = transactions.AppliedMark.commit_applied

    def raised(self: Any, kept: str) -> Any:
        yield from self._database.execute_sql("UPDATE oncemore_applied SET fence = 9")
        yield from finish(self, kept)

    monkeypatch.setattr(transactions.AppliedMark, "commit_applied", raised)
    with FakeClock(), pytest.raises(oncemore.Error) as caught:
        ordering(database)(1)
    assert "another attempt took over" in repr(caught.value.__cause__)
    assert database.orders() == []


def test_a_result_that_cannot_be_kept_is_done_all_the_same(database: Database) -> None:
    order = ordering(database, lambda n: object())
    for _ in range(2):
        with pytest.raises(oncemore.ResultUnavailable):
            order(1)
    assert database.orders() == [(1, 1)]


@pytest.mark.parametrize("database", ["sqlite3", "psycopg"], indirect=True)
def test_a_commit_that_fails_is_a_failed_attempt(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, fails = transactions.AppliedMark.commit_applied, [True]

    def once(self: Any, kept: str) -> Any:
        if fails:
            fails.clear()
            yield from self.roll_back()
            raise oncemore.TransientError("the network went away")
        yield from finish(self, kept)

    monkeypatch.setattr(transactions.AppliedMark, "commit_applied", once)
    with FakeClock():
        assert ordering(database)(1) == {"n": 1}
    assert database.orders() == [(1, 2)]


def test_a_connection_in_the_middle_of_something_is_refused(database: Database) -> None:
    @oncemore.step(effect="transactional", name="order")
    def order(n: int) -> None:
        connection = database.connect()
        if database.kind.startswith("pymysql"):
            connection.begin()
        elif database.kind == "apsw" or database.kind.endswith("autocommit"):
            connection.execute("BEGIN")
        elif database.kind == "django":
            from django.db import transaction

            transaction.atomic(using=connection.alias).__enter__()
        database.write(connection, n, 0)
        try:
            oncemore.current().transaction(connection)
        finally:
            connection.close()

    with pytest.raises(oncemore.Error, match="in the middle of a transaction"):
        order(1)
    assert database.orders() == []


@pytest.mark.parametrize("database", ["sqlite3", "apsw", "psycopg", "session"], indirect=True)
def test_who_commits_inside_is_told(database: Database) -> None:
    @oncemore.step(effect="transactional", name="order")
    def order(n: int) -> None:
        connection = oncemore.current().transaction(database.connect())
        database.write(connection, n, 1)
        connection.execute("COMMIT") if database.kind == "apsw" else connection.commit()

    with pytest.raises(oncemore.Error, match="ended inside the step"):
        order(1)


KEPT: list[Any] = []


def test_the_store_s_own_file_is_refused(engine: oncemore.Engine, tmp_path: Path) -> None:
    @oncemore.step(effect="transactional", name="order")
    def order(kind: str) -> None:
        if kind == "sqlite3":
            connection: Any = sqlite3.connect(tmp_path / "log.db")
        elif kind == "apsw":
            connection = apsw.Connection(str(tmp_path / "log.db"))
        else:
            connection = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'log.db'}").connect()
        KEPT.append(connection)  # closing it would drop the locks of this process
        oncemore.current().transaction(connection)

    for kind in ("sqlite3", "apsw", "alchemy"):
        with pytest.raises(oncemore.Error, match="store's own file"):
            order(kind)


@pytest.mark.parametrize("database", ["sqlite3"], indirect=True)
def test_misuse_is_refused_with_what_to_do(database: Database, engine: oncemore.Engine) -> None:
    tried: list[str] = []

    def told(effect: str, do: Callable[[Any], Any], match: str) -> None:
        tried.append(match)

        @oncemore.step(effect=effect, name=f"misuse {len(tried)}")
        def misuse() -> None:
            do(oncemore.current())

        with pytest.raises(oncemore.Error, match=match):
            misuse()

    def twice(attempt: Any) -> None:
        connection = attempt.transaction(database.connect())
        attempt.transaction(connection)

    def two(attempt: Any) -> None:
        attempt.transaction(database.connect())
        attempt.transaction(database.connect())

    def both(attempt: Any) -> None:
        attempt.on_commit(lambda tx: None)
        attempt.transaction(database.connect())

    def turned(attempt: Any) -> None:
        attempt.transaction(database.connect())
        attempt.on_commit(lambda tx: None)

    told("transactional", lambda attempt: None, "neither current")
    told("transactional", lambda attempt: attempt.transaction("mine.db"), "builtins.str is none of them")
    told("idempotent", lambda attempt: attempt.transaction(database.connect()), "is declared idempotent")
    told("idempotent", lambda attempt: attempt.on_commit(print), "is declared idempotent")
    told("transactional", twice, "called before")
    told("transactional", two, "one attempt, one database")
    told("transactional", both, r"has used current\(\).on_commit")
    told("transactional", turned, r"has used current\(\).transaction")
    told("transactional", lambda attempt: attempt.on_commit("text"), "takes a function")
    told("transactional", lambda attempt: [attempt.on_commit(print) for _ in range(2)], "called before")
    with pytest.raises(oncemore.UsageError, match="does not go with effect='transactional'"):
        oncemore.step(effect="transactional", isolate="process")(ordering)


@pytest.mark.parametrize("database", ["sqlite3"], indirect=True)
def test_a_limit_is_told_afterwards_and_nothing_is_left(database: Database) -> None:
    with FakeClock() as clock:
        order = ordering(database, lambda n: clock.advance(10), timeout=5)
        with pytest.raises(oncemore.RetriesExhausted):
            order(1)
        within = ordering(database, lambda n: clock.advance(1), timeout=5)
        within(2)
    assert database.orders() == [(2, 1)]


def test_the_mark_may_be_there_while_others_make_the_table(tmp_path: Path) -> None:
    database = Database("sqlite3", tmp_path, "")
    with sqlite3.connect(database.file) as connection:
        connection.execute(transactions.CREATE)
    connection.close()
    assert ordering(database)(1) == {"n": 1}
    database.close()


@pytest.mark.parametrize("database", ["alchemy", "session", "alchemy-pg"], indirect=True)
def test_autocommit_is_refused(database: Database) -> None:
    @oncemore.step(effect="transactional", name="order")
    def order(n: int) -> None:
        connection = database.connect()
        if database.kind == "session":
            connection.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            connection.commit()
            connection.bind.update_execution_options(isolation_level="AUTOCOMMIT")
        else:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        oncemore.current().transaction(connection)

    with pytest.raises(oncemore.Error, match="AUTOCOMMIT"):
        order(1)
