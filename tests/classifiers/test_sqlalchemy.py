"""Errors of SQLAlchemy, classified by the driver's error inside them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc, orm
from sqlalchemy.ext.asyncio import create_async_engine

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[[str, str], None]


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


def blocking(url: str, statement: str) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.begin() as conn:
        conn.exec_driver_sql(statement)


def awaiting(url: str, statement: str) -> None:
    async def main() -> None:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
        try:
            async with engine.begin() as conn:
                await conn.exec_driver_sql(statement)
        finally:
            await engine.dispose()

    asyncio.run(main())


@pytest.fixture
def url(postgres_url: str) -> str:
    blocking(postgres_url, "drop table if exists sa_t")
    blocking(postgres_url, "create table sa_t(a int primary key, b int)")
    blocking(postgres_url, "insert into sa_t values (1, 1), (2, 2)")
    return postgres_url


def refusal(state: str) -> str:
    return f"do $$ begin raise exception using errcode = '{state}'; end $$"


STATEMENTS = {
    "insert into sa_t values (1, 1)": ("permanent", "no", "SQLSTATE_23505"),
    "selec 1": ("permanent", "no", "SQLSTATE_42601"),
    "select 1/0": ("permanent", "no", "SQLSTATE_22012"),
    refusal("40001"): ("transient", "no", "SQLSTATE_40001"),
    refusal("40P01"): ("transient", "no", "SQLSTATE_40P01"),
    refusal("55P03"): ("transient", "no", "SQLSTATE_55P03"),
    "select pg_terminate_backend(pg_backend_pid())": ("transient", "maybe", "SQLSTATE_57P01"),
}


@pytest.mark.parametrize("run", [blocking, awaiting])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_drivers_own_error_decides(url: str, run: Run, statement: str) -> None:
    error = caught(run, url, statement)
    assert isinstance(error, exc.DBAPIError)
    assert facts(error) == STATEMENTS[statement]


@pytest.mark.parametrize("run", [blocking, awaiting])
def test_nothing_is_sent_where_no_connection_could_be_made(run: Run, postgres_url: str) -> None:
    with faults.refusing() as server:
        error = caught(run, f"postgresql://u@{faults.HOST}:{server.port}/d", "select 1")
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")
    error = caught(run, postgres_url.rpartition("/")[0] + "/nothing", "select 1")
    assert facts(error) == ("permanent", "no", "SQLSTATE_3D000")


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), pool_size=1, max_overflow=0, pool_timeout=0.05
    )
    yield made
    made.dispose()


def cut(conn: sa.Connection) -> None:
    driver: Any = conn.connection.dbapi_connection
    with socket.socket(fileno=os.dup(driver.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def test_a_pool_that_has_no_connection_left_sent_nothing(engine: sa.Engine) -> None:
    with engine.connect():
        error = caught(engine.connect)
    assert isinstance(error, exc.TimeoutError)
    assert facts(error) == ("transient", "no", "TIMEOUT_POOL")


def test_a_lost_connection_may_have_committed_and_forgetting_to_roll_back_is_a_mistake(
    engine: sa.Engine,
) -> None:
    with engine.connect() as conn:
        conn.exec_driver_sql("update sa_t set b = 7")
        cut(conn)
        error = caught(conn.exec_driver_sql, "select 1")
        assert isinstance(error, exc.DBAPIError)
        assert error.connection_invalidated
        assert facts(error) == ("transient", "maybe", "CONNECTION_CLOSED")
        error = caught(conn.exec_driver_sql, "select 1")
        assert isinstance(error, exc.PendingRollbackError)
        assert facts(error) == ("permanent", "no", "EXC_PendingRollbackError")


def test_a_real_serialization_failure(url: str) -> None:
    engine = sa.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"),
        isolation_level="SERIALIZABLE",
        poolclass=sa.NullPool,
    )
    with engine.connect() as one, engine.connect() as two:
        for conn in (one, two):
            conn.exec_driver_sql("select sum(b) from sa_t").fetchall()
        one.exec_driver_sql("update sa_t set b = 5 where a = 1")
        two.exec_driver_sql("update sa_t set b = 6 where a = 2")
        one.commit()
        error = caught(two.commit)
    assert isinstance(error, exc.OperationalError)
    assert facts(error) == ("transient", "no", "SQLSTATE_40001")


def test_a_locked_sqlite_database_is_busy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    one, two = (sa.create_engine(url, connect_args={"timeout": 0.0}, poolclass=sa.NullPool) for _ in range(2))
    with one.connect() as holder:
        holder.exec_driver_sql("create table t(a)")
        holder.exec_driver_sql("insert into t values (1)")
        error = caught(lambda: two.connect().exec_driver_sql("create table u(a)"))
    assert facts(error) == ("transient", "no", "SQLITE_BUSY")


def test_an_error_before_the_statement_is_sent_is_not_sent(engine: sa.Engine) -> None:
    with engine.connect() as conn:
        error = caught(conn.execute, sa.text("select :missing"))
        assert type(error) is exc.StatementError
        assert facts(error)[:2] == ("permanent", "no")
        table = sa.Table("sa_t", sa.MetaData(), sa.Column("a", sa.Integer))
        error = caught(conn.execute, table.insert().values(nothing=1))
        assert isinstance(error, exc.CompileError)
        assert facts(error) == ("permanent", "no", "EXC_CompileError")
        error = caught(conn.execute, "not a statement")
        assert isinstance(error, exc.ArgumentError)
        assert facts(error)[:2] == ("permanent", "no")
    error = caught(sa.create_engine, "nothing://")
    assert facts(error)[:2] == ("permanent", "no")


def test_one_row_expected_and_several_found_is_permanent(engine: sa.Engine) -> None:
    with engine.connect() as conn:
        error = caught(lambda: conn.exec_driver_sql("select * from sa_t").scalar_one())
    assert isinstance(error, exc.InvalidRequestError)
    assert facts(error) == ("permanent", "maybe", "EXC_MultipleResultsFound")


class Base(orm.DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "sa_t"
    a: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    b: orm.Mapped[int] = orm.mapped_column()
    __mapper_args__ = {"version_id_col": b}  # noqa: RUF012 - how its users write it


def test_a_row_that_changed_meanwhile_is_a_conflict(url: str, engine: sa.Engine) -> None:
    def change(session: orm.Session) -> None:
        row = session.get_one(Row, 1)
        other = threading.Thread(target=blocking, args=(url, "update sa_t set b = 99 where a = 1"))
        other.start()
        other.join()
        row.b = 5
        session.commit()

    with orm.Session(engine) as session:
        error = caught(change, session)
    assert isinstance(error, orm.exc.StaleDataError)
    assert facts(error) == ("conflict", "no", "STALE_DATA")


class Strange(Exception):
    """The error of an unknown driver."""


#: Of drivers that have no table here.
MADE = {
    "lost": (
        exc.OperationalError("select 1", {}, Strange(), connection_invalidated=True),
        ("transient", "maybe", "CONNECTION_CLOSED"),
    ),
    "integrity": (exc.IntegrityError("x", {}, Strange()), ("permanent", "no", "EXC_IntegrityError")),
    "nobody knows": (
        exc.OperationalError("x", {}, Strange()),
        ("permanent", "maybe", "EXC_OperationalError"),
    ),
    "the pool's own": (exc.DisconnectionError("x"), ("transient", "no", "CONNECTION_CLOSED")),
    "the type's fault": (
        exc.StatementError("x", "select 1", {}, ConnectionResetError()),
        ("transient", "no", "CONNECTION_RESET"),
    ),
    "of unknown type": (
        exc.StatementError("x", "q", {}, Strange()),
        ("permanent", "no", "EXC_StatementError"),
    ),
}


@pytest.mark.parametrize("case", MADE)
def test_an_unknown_driver_is_unmatched(case: str) -> None:
    error, expected = MADE[case]
    assert facts(error) == expected


def test_an_unknown_driver_is_classified_by_its_sqlstate() -> None:
    driver: Any = Strange()
    driver.pgcode = "40001"
    assert facts(exc.OperationalError("x", {}, driver)) == ("transient", "no", "SQLSTATE_40001")
    driver.pgcode = "4000\n"
    assert classify(exc.OperationalError("x", {}, driver), 0.0).rule == "default:unmatched"
