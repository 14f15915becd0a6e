"""Errors of a locked, full, broken or read-only SQLite database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import pytest

from oncemore.classifiers.classify import classify
from oncemore.classifiers.clients.sqlite import _code_name
from tests.classifiers.clients import caught

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    Opener = Callable[..., AbstractContextManager[Any]]


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


def with_stdlib(path: object, flags: str = "rwc") -> AbstractContextManager[Any]:
    conn = sqlite3.connect(f"file:{path}?mode={flags}", uri=True, timeout=0, isolation_level=None)
    return closing(conn)


def with_apsw(path: object, flags: str = "rwc") -> AbstractContextManager[Any]:
    modes = {"ro": apsw.SQLITE_OPEN_READONLY, "rw": apsw.SQLITE_OPEN_READWRITE}
    make = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    return closing(apsw.Connection(str(path), flags=modes.get(flags, make)))


@pytest.fixture(params=[with_stdlib, with_apsw], ids=["sqlite3", "apsw"])
def connect(request: pytest.FixtureRequest) -> Opener:
    opener: Opener = request.param
    return opener


@pytest.fixture
def path(connect: Opener, tmp_path: Path) -> Path:
    with connect(tmp_path / "a.db") as conn:
        conn.execute("pragma journal_mode=wal")
        conn.execute("create table t(a integer primary key, b text not null check(b != 'no'))")
        conn.execute("insert into t values (1, 'one')")
    return tmp_path / "a.db"


def test_a_locked_database_is_transient_and_nothing_happened(connect: Opener, path: Path) -> None:
    with connect(path) as one, connect(path) as two:
        one.execute("begin immediate")
        assert facts(caught(two.execute, "begin immediate")) == ("transient", "no", "SQLITE_BUSY")
        assert facts(caught(two.execute, "insert into t values (2, 'x')")) == (
            "transient",
            "no",
            "SQLITE_BUSY",
        )


def test_a_stale_snapshot_has_another_code_than_a_lock(connect: Opener, path: Path) -> None:
    with connect(path) as one, connect(path) as two:
        one.execute("begin")
        one.execute("select * from t").fetchall()
        two.execute("insert into t values (2, 'two')")
        error = caught(one.execute, "insert into t values (3, 'three')")
    assert facts(error) == ("transient", "no", "SQLITE_BUSY_SNAPSHOT")


def test_a_table_locked_by_the_same_connection(connect: Opener, path: Path) -> None:
    with connect(path) as conn:
        rows = conn.execute("select 1 from t union all select 2")
        next(rows)
        error = caught(conn.execute, "drop table t")
        rows.close()
    assert facts(error) == ("transient", "no", "SQLITE_LOCKED")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("insert into t values (1, 'again')", "SQLITE_CONSTRAINT_PRIMARYKEY"),
        ("insert into t values (2, null)", "SQLITE_CONSTRAINT_NOTNULL"),
        ("insert into t values (2, 'no')", "SQLITE_CONSTRAINT_CHECK"),
        ("insert into t values ('x', 'x')", "SQLITE_MISMATCH"),
        ("selec 1", "SQLITE_ERROR"),
        ("select * from nowhere", "SQLITE_ERROR"),
    ],
)
def test_wrong_statements_and_wrong_rows_are_permanent(
    connect: Opener, path: Path, statement: str, code: str
) -> None:
    with connect(path) as conn:
        assert facts(caught(conn.execute, statement)) == ("permanent", "no", code)


def test_a_full_database_is_transient(connect: Opener, path: Path) -> None:
    with connect(path) as conn:
        conn.execute("pragma max_page_count=3")
        error = caught(conn.execute, "insert into t values (9, ?)", ("x" * 100_000,))
        assert facts(error) == ("transient", "no", "SQLITE_FULL")
        assert conn.execute("select count(*) from t").fetchone() == (1,), "and nothing was written"


def test_a_read_only_database_is_permanent(connect: Opener, path: Path) -> None:
    with connect(path, "ro") as conn:
        error = caught(conn.execute, "insert into t values (2, 'two')")
    assert facts(error) == ("permanent", "no", "SQLITE_READONLY")


def test_a_file_that_cannot_be_opened_is_transient(connect: Opener, tmp_path: Path) -> None:
    def open_and_read() -> None:
        with connect(tmp_path / "missing.db", "rw") as conn:
            conn.execute("select 1 from t")

    assert facts(caught(open_and_read)) == ("transient", "no", "SQLITE_CANTOPEN")


def test_a_file_that_is_not_a_database_is_permanent(connect: Opener, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("a letter, not a database" * 100)

    def open_and_read() -> None:
        with connect(tmp_path / "text.db") as conn:
            conn.execute("select 1 from t")

    assert facts(caught(open_and_read)) == ("permanent", "no", "SQLITE_NOTADB")


def test_an_interrupted_statement_is_permanent(connect: Opener, path: Path) -> None:
    with connect(path) as conn:
        conn.set_progress_handler(lambda: True, 1)
        error = caught(conn.execute, "select * from t")
    assert facts(error) == ("permanent", "no", "SQLITE_INTERRUPT")


def test_a_usage_error_has_no_sqlite_code_and_is_permanent(path: Path) -> None:
    with with_stdlib(path) as conn:
        assert facts(caught(conn.execute, "select ?")) == ("permanent", "no", "EXC_ProgrammingError")
    assert facts(caught(conn.execute, "select 1")) == ("permanent", "no", "EXC_ProgrammingError")
    with with_apsw(path) as other:
        assert facts(caught(other.execute, "select ?")) == ("permanent", "no", "EXC_BindingsError")
    assert facts(caught(other.execute, "select 1")) == ("permanent", "no", "EXC_ConnectionClosedError")


class Torn(apsw.VFS):
    """A file system whose writes fail on request."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error = error
        super().__init__("torn", base="")

    def xOpen(self, name: Any, flags: Any) -> Any:
        return TornFile(self.error, name, flags)


class TornFile(apsw.VFSFile):
    def __init__(self, error: Callable[[], Exception], name: Any, flags: Any) -> None:
        self.error = error
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        raise self.error()


def io_error(number: int | None) -> Callable[[], Exception]:
    def make() -> Exception:
        error = apsw.IOError("torn")
        if number is not None:
            error.result, error.extendedresult = number & 255, number
        return error

    return make


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("number", "code"),
    [(apsw.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"), (None, "SQLITE_IOERR")],
    ids=["with its number", "without"],
)
def test_an_io_error_while_committing_may_have_taken_effect(
    tmp_path: Path, number: int | None, code: str
) -> None:
    vfs = Torn(io_error(number))
    with closing(apsw.Connection(str(tmp_path / "b.db"), vfs="torn")) as conn:
        error = caught(conn.execute, "create table t(a)")
    vfs.unregister()
    assert facts(error) == ("transient", "maybe", code)


def test_names_are_those_that_sqlite_gives() -> None:
    codes = {**apsw.mapping_result_codes, **apsw.mapping_extended_result_codes}
    named = {number: name for number, name in codes.items() if isinstance(number, int)}
    errors = {number: name for number, name in named.items() if 0 < number & 255 < 27}
    assert len(errors) > 90
    assert {number: _code_name(number) for number in errors} == errors
    assert _code_name(5 | 99 << 8) == "SQLITE_BUSY_99"
    assert _code_name(77) == "SQLITE_77"


def test_a_broken_page_is_permanent_even_among_the_io_errors() -> None:
    for number in (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS):
        assert facts(io_error(number)())[:2] == ("permanent", "maybe")
    error = apsw.CorruptError()
    assert facts(error) == ("permanent", "maybe", "SQLITE_CORRUPT")
