"""Writes to a real SQLite file that a second connection has locked."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import sys
import threading
import time
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.profiles.lit import ExhaustionAlert, Persistence, context, exhaustion, persist
from tests.timing import measure_shortest_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.testing import FakeClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "lit.db")) as made:
        made.executescript(
            "CREATE TABLE finding (id TEXT PRIMARY KEY, text TEXT); CREATE TABLE learning (id TEXT);"
        )
    return tmp_path / "lit.db"


@pytest.fixture
def mine(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file)) as connection:
        yield connection


@pytest.fixture
def theirs(file: Path) -> Iterator[sqlite3.Connection]:
    """Another connection; `BEGIN IMMEDIATE` on it locks the database."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


class After(logging.Handler):
    """Counts attempts that met a lock, and calls a function after the last of them."""

    def __init__(self, tries: int, then: Callable[[], object]) -> None:
        super().__init__()
        self.tries, self.then = tries, then
        self.lines: list[logging.LogRecord] = []
        self.at: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)
        self.at.append(time.monotonic())
        if len(self.lines) == self.tries:
            self.then()


@pytest.fixture
def after(theirs: sqlite3.Connection) -> Iterator[Callable[[int], After]]:
    """Lock the database, and release it after a number of attempts."""
    log, added = logging.getLogger("oncemore.lit"), []

    def lock(tries: int) -> After:
        theirs.execute("BEGIN IMMEDIATE")
        heard = After(tries, lambda: theirs.execute("ROLLBACK"))
        log.addHandler(heard)
        added.append(heard)
        return heard

    yield lock
    for one in added:
        log.removeHandler(one)


def save(connection: sqlite3.Connection, name: str, text: str = "x") -> str:
    connection.execute("INSERT INTO finding VALUES (?, ?)", (name, text))
    connection.execute("INSERT INTO learning VALUES (?)", (name,))
    return name


def rows(file: Path) -> tuple[list[Any], list[Any]]:
    with closing(sqlite3.connect(file)) as look:
        return (
            look.execute("SELECT id FROM finding ORDER BY id").fetchall(),
            look.execute("SELECT id FROM learning ORDER BY id").fetchall(),
        )


@pytest.mark.req("SQL-1")
def test_a_write_succeeds_at_attempt_3_after_20_and_40_ms(
    mine: sqlite3.Connection, file: Path, after: Callable[[int], After]
) -> None:
    lock, counter = after(2), ExhaustionAlert()
    assert Persistence(mine, counter=counter).write(save, "f-12") == "f-12"
    lock.at.append(time.monotonic())
    first, second = (later - earlier for earlier, later in pairwise(lock.at))
    assert (first >= 0.02, second >= 0.04) == (True, True)  # a busy machine may add to both
    assert rows(file) == ([("f-12",)], [("f-12",)])
    assert (counter.operations, counter.exhausted) == (1, 0)


@pytest.mark.req("SQL-1")
def test_the_waits_are_those_of_the_profile(
    mine: sqlite3.Connection, after: Callable[[int], After], clock: FakeClock
) -> None:
    lock = after(2)
    Persistence(mine, counter=ExhaustionAlert()).write(save, "f-12")
    assert clock.delays == [0.02, 0.04]
    assert len(lock.lines) == 2


@pytest.mark.req("SQL-3", "SQL-6")
def test_a_lasting_lock_raises_the_original_error_after_three_attempts_within_150_ms(
    mine: sqlite3.Connection, file: Path, after: Callable[[int], After]
) -> None:
    lock, counter, caught = after(99), ExhaustionAlert(), []

    def write() -> None:
        with pytest.raises(sqlite3.OperationalError, match=r"^database is locked\n") as error:
            Persistence(mine, counter=counter).write(save, "f-12")
        caught.append(error.value)

    assert 0.06 <= measure_shortest_call(write, 0.15) < 0.15
    assert {type(error) for error in caught} == {sqlite3.OperationalError}
    tries = [line.__dict__["oncemore_attempt"] for line in lock.lines if line.levelname == "WARNING"]
    assert tries == [1, 2, 3] * len(caught)
    assert "given up: all 3 attempts are used" in caught[0].__notes__[0]
    assert counter.exhausted == counter.operations == len(caught)
    lock.then()
    assert rows(file) == ([], [])


@pytest.mark.req("SQL-2")
def test_a_locked_table_is_tried_again(clock: FakeClock) -> None:
    with (
        closing(sqlite3.connect("file:lit?mode=memory&cache=shared", uri=True)) as mine,
        closing(
            sqlite3.connect("file:lit?mode=memory&cache=shared", uri=True, isolation_level=None)
        ) as other,
    ):
        mine.execute("CREATE TABLE finding (id TEXT)")
        other.execute("BEGIN")
        other.execute("INSERT INTO finding VALUES ('theirs')")
        tries: list[int] = []

        def write(connection: sqlite3.Connection) -> None:
            tries.append(1)
            if len(tries) == 3:
                other.execute("COMMIT")
            connection.execute("INSERT INTO finding VALUES ('mine')")

        Persistence(mine, begin="deferred", counter=ExhaustionAlert()).write(write)
        assert len(tries) == 3
        assert mine.execute("SELECT count(*) FROM finding").fetchone() == (2,)
    assert clock.delays == [0.02, 0.04]


@pytest.mark.req("SQL-2")
@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (sqlite3.OperationalError("database is locked"), 3),
        (sqlite3.OperationalError("database table is locked: finding"), 3),
        (sqlite3.OperationalError("no such table: finding"), 1),
        (sqlite3.OperationalError("disk I/O error"), 1),
        (sqlite3.IntegrityError("UNIQUE constraint failed: locked.id"), 1),
        (sqlite3.DatabaseError("database is locked"), 1),
        (ValueError("locked"), 1),
    ],
)
def test_only_locks_are_tried_again(
    mine: sqlite3.Connection, error: Exception, calls: int, clock: FakeClock
) -> None:
    made: list[int] = []

    def write(connection: sqlite3.Connection) -> None:
        made.append(1)
        raise error

    counter = ExhaustionAlert()
    with pytest.raises(type(error)) as caught:
        Persistence(mine, counter=counter).write(write)
    assert caught.value is error
    assert len(made) == calls
    assert counter.exhausted == (calls == 3)
    assert not mine.in_transaction


@pytest.mark.req("SQL-2")
def test_permanent_sqlite_errors_fail_at_once(mine: sqlite3.Connection, file: Path, clock: FakeClock) -> None:
    store = Persistence(mine, counter=ExhaustionAlert())
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        store.write(lambda connection: connection.execute("INSERT INTO gone VALUES (1)"))
    store.write(save, "f-1")
    with pytest.raises(sqlite3.IntegrityError):
        store.write(save, "f-1")
    assert clock.delays == []
    assert rows(file) == ([("f-1",)], [("f-1",)])


@pytest.mark.req("SQL-4")
def test_a_lock_at_the_second_statement_leaves_no_partial_write(
    tmp_path: Path, file: Path, mine: sqlite3.Connection, clock: FakeClock
) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other, isolation_level=None)) as holder:
        holder.execute("CREATE TABLE learning (id TEXT)")
        holder.execute("BEGIN IMMEDIATE")
        mine.execute("ATTACH ? AS other", (str(other),))
        seen: list[int] = []

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO main.finding VALUES ('f-12', 'x')")
            seen.append(connection.execute("SELECT count(*) FROM main.finding").fetchone()[0])
            connection.execute("INSERT INTO other.learning VALUES ('f-12')")

        store = Persistence(mine, begin="deferred", counter=ExhaustionAlert())
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            store.write(write)
        assert rows(file)[0] == []
        holder.execute("ROLLBACK")
        store.write(write)
        assert rows(file)[0] == [("f-12",)]
        assert holder.execute("SELECT id FROM learning").fetchall() == [("f-12",)]
    assert seen == [1, 1, 1, 1]  # each try began with nothing of the one before


@pytest.mark.req("SQL-4")
def test_a_lock_at_the_commit_itself_is_rolled_back_and_tried_again(
    mine: sqlite3.Connection, theirs: sqlite3.Connection, file: Path, clock: FakeClock
) -> None:
    theirs.execute("BEGIN")
    theirs.execute("SELECT * FROM finding").fetchall()  # a reader, which a commit has to wait for
    calls: list[int] = []

    def write(connection: sqlite3.Connection) -> None:
        calls.append(1)
        save(connection, "f-12")
        if len(calls) == 2:
            theirs.execute("COMMIT")

    Persistence(mine, counter=ExhaustionAlert()).write(write)
    assert len(calls) == 2
    assert rows(file) == ([("f-12",)], [("f-12",)])


def end_by_block(connection: sqlite3.Connection) -> None:
    with connection:
        save(connection, "f-2")


def end_in_silence(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.commit()


ENDS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "commit": lambda connection: connection.commit(),
    "statement": lambda connection: connection.execute("COMMIT"),
    "end": lambda connection: connection.execute("END TRANSACTION"),
    "rollback": lambda connection: connection.rollback(),
    "script": lambda connection: connection.executescript("SELECT 1"),
    "block": end_by_block,
    "silence": end_in_silence,
    "conflict": lambda connection: connection.execute("INSERT OR ROLLBACK INTO finding VALUES ('f-1', 'x')"),
}


@pytest.mark.req("SQL-4")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("level", ["", None])
def test_work_that_ends_its_transaction_is_refused_before_its_rows_are_stored(
    mine: sqlite3.Connection, file: Path, end: str, level: Any, clock: FakeClock
) -> None:
    mine.isolation_level = level
    calls: list[int] = []

    def write(connection: sqlite3.Connection) -> None:
        calls.append(1)
        save(connection, "f-1")
        with contextlib.suppress(sqlite3.IntegrityError):
            ENDS[end](connection)
        connection.execute("INSERT INTO learning VALUES ('later')")

    store = Persistence(mine, counter=ExhaustionAlert())
    with pytest.raises(oncemore.UsageError, match="ended its transaction itself"):
        store.write(write)
    assert rows(file) == ([], [])

    def meet_lock(connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.DatabaseError):
            write(connection)
        raise sqlite3.OperationalError("database is locked")

    calls.clear()
    with pytest.raises(oncemore.UsageError, match="ended its transaction") as caught:
        store.write(meet_lock)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert len(calls) == 1, "it is not repeated"
    assert rows(file) == ([], [])
    assert not mine.in_transaction
    store.write(save, "f-3")
    assert rows(file)[0] == [("f-3",)]
    mine.execute("INSERT INTO learning VALUES ('own')")
    mine.commit()  # which is allowed again


def test_savepoints_of_the_work_and_an_authorizer_of_the_connection_keep_working(
    mine: sqlite3.Connection, file: Path
) -> None:
    def authorize(action: int, first: str | None, *others: str | None) -> int:
        is_secret = action == sqlite3.SQLITE_READ and first == "learning"
        return sqlite3.SQLITE_DENY if is_secret else sqlite3.SQLITE_OK

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT inner")
        save(connection, "f-1")
        connection.execute("ROLLBACK TO inner")
        connection.execute("RELEASE inner")
        connection.execute("INSERT INTO finding VALUES ('f-2', 'x')")
        with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
            connection.execute("SELECT * FROM learning")

    mine.set_authorizer(authorize)
    Persistence(mine, authorizer=authorize).write(write)
    with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
        mine.execute("SELECT * FROM learning")
    assert rows(file) == ([("f-2",)], [])


@pytest.mark.req("SQL-5")
def test_every_lock_is_logged_with_both_ids_and_the_attempt(
    mine: sqlite3.Connection, after: Callable[[int], After], clock: FakeClock
) -> None:
    lock = after(99)
    with context(request_id="r-17", session_id="s-4"), pytest.raises(sqlite3.OperationalError):
        Persistence(mine, counter=ExhaustionAlert()).write(save, "f-12")
    told = [
        tuple(line.__dict__[f"oncemore_{name}"] for name in ("request_id", "session_id", "attempt"))
        for line in lock.lines
    ]
    assert told == [("r-17", "s-4", 1), ("r-17", "s-4", 2), ("r-17", "s-4", 3), ("r-17", "s-4", 3)]
    texts = [line.getMessage() for line in lock.lines]
    assert texts[1] == "write save: attempt 2 of 3 met a lock; request=r-17 session=s-4; database is locked"
    assert texts[3] == (
        "write save: exhausted after 3 attempts; request=r-17 session=s-4; "
        "OperationalError: database is locked"
    )


@pytest.mark.req("SQL-6")
@pytest.mark.parametrize(
    "row_factory", [None, sqlite3.Row, lambda cursor, row: {"odd": row}], ids=["none", "row", "dict"]
)
def test_the_busy_timeout_is_off_during_the_write_and_restored_afterwards(
    file: Path, row_factory: Any
) -> None:
    with closing(sqlite3.connect(file, timeout=3.5)) as mine:
        mine.row_factory = row_factory

        def seen(connection: sqlite3.Connection) -> int:
            cursor = connection.cursor()
            cursor.row_factory = None
            return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])

        assert persist(mine, seen) == 0
        assert seen(mine) == 3500
        with pytest.raises(ZeroDivisionError):
            persist(mine, lambda connection: 1 / 0)
        assert seen(mine) == 3500


def test_an_interrupt_rolls_back_and_is_not_counted(mine: sqlite3.Connection, file: Path) -> None:
    def write(connection: sqlite3.Connection) -> None:
        save(connection, "f-1")
        raise KeyboardInterrupt

    counter = ExhaustionAlert()
    with pytest.raises(KeyboardInterrupt):
        Persistence(mine, counter=counter).write(write)
    assert rows(file) == ([], [])
    assert not mine.in_transaction
    assert counter.operations == 0


def test_writes_is_a_decorator(mine: sqlite3.Connection, file: Path) -> None:
    store = Persistence(mine, counter=ExhaustionAlert())

    @store.writes
    def save_finding(connection: sqlite3.Connection, name: str, *, text: str) -> str:
        """Save a finding."""
        return save(connection, name, text)

    assert save_finding("f-1", text="clear") == "f-1"
    assert (save_finding.__name__, save_finding.__doc__) == ("save_finding", "Save a finding.")
    before = exhaustion.total
    assert persist(mine, save, "f-2", text="y") == "f-2"
    assert exhaustion.total == before + 1
    assert rows(file)[0] == [("f-1",), ("f-2",)]


def test_every_thread_can_have_its_own_connection(file: Path) -> None:
    own, faults = threading.local(), []

    def connect() -> sqlite3.Connection:
        if not hasattr(own, "connection"):
            own.connection = sqlite3.connect(file)
        return own.connection

    store = Persistence(connect, attempts=50, base_backoff_s=0.001, counter=ExhaustionAlert())

    def write_some(of: int) -> None:
        try:
            for number in range(5):
                store.write(save, f"f-{of}-{number}")
        except Exception as error:
            faults.append(error)
        finally:
            own.connection.close()

    threads = [threading.Thread(target=write_some, args=(of,)) for of in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert faults == []
    assert len(rows(file)[0]) == len(rows(file)[1]) == 20


def test_an_unsuitable_connection_is_refused(mine: sqlite3.Connection, file: Path) -> None:
    mine.execute("INSERT INTO learning VALUES ('open')")
    with pytest.raises(oncemore.UsageError, match="a transaction is open on the connection; commit it first"):
        persist(mine, save, "f-1")
    mine.rollback()
    with pytest.raises(oncemore.UsageError, match="begin is 'later'; the choices are immediate, deferred"):
        Persistence(mine, begin="later")  # type: ignore[arg-type]
    with pytest.raises(oncemore.UsageError, match=r"connection is 'lit.db'; it takes a sqlite3.Connection"):
        Persistence("lit.db")  # type: ignore[arg-type]
    with pytest.raises(oncemore.UsageError, match="connection is None"):
        Persistence(lambda: None).write(save, "f-1")  # type: ignore[arg-type,return-value]
    if sys.version_info >= (3, 12):
        with (
            closing(sqlite3.connect(file, autocommit=False)) as always,
            pytest.raises(oncemore.UsageError, match="autocommit=False"),
        ):
            persist(always, save, "f-1")
        with closing(sqlite3.connect(file, autocommit=True)) as plain:
            assert persist(plain, save, "f-9") == "f-9"


def test_numbers_can_be_changed_and_are_checked(mine: sqlite3.Connection) -> None:
    policy = Persistence(mine, attempts=5, base_backoff_s=0.1).policy
    assert (policy.max_attempts, policy.schedule.base, policy.timeout_s) == (5, 0.1, None)
    assert policy.name == "lit/persistence (changed)"
    with pytest.warns(oncemore.PolicyWarning, match="attempts is 0; raised to its minimum, 1"):
        assert Persistence(mine, attempts=0).policy.max_attempts == 1
    with pytest.raises(oncemore.UsageError, match="attempts is '3'"):
        Persistence(mine, attempts="3")  # type: ignore[arg-type]
