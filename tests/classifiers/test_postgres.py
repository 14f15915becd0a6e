"""Errors of a real PostgreSQL through psycopg, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
import pytest

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("drop table if exists t")
        conn.execute("create table t(a int primary key, b int)")
        conn.execute("insert into t values (1, 1), (2, 2)")
    return postgres_url


STATEMENTS = {
    "insert into t values (1, 1)": ("permanent", "no", "SQLSTATE_23505"),
    "insert into t values (null, 1)": ("permanent", "no", "SQLSTATE_23502"),
    "selec 1": ("permanent", "no", "SQLSTATE_42601"),
    "select nothing from t": ("permanent", "no", "SQLSTATE_42703"),
    "select * from nowhere": ("permanent", "no", "SQLSTATE_42P01"),
    "select 1/0": ("permanent", "no", "SQLSTATE_22012"),
    "set transaction read only; insert into t values (9, 9)": ("transient", "no", "SQLSTATE_25006"),
    "set local statement_timeout = '20ms'; select pg_sleep(5)": ("transient", "no", "SQLSTATE_57014"),
    "select pg_terminate_backend(pg_backend_pid())": ("transient", "maybe", "SQLSTATE_57P01"),
    "do $$ begin raise exception using errcode = '53100'; end $$": ("transient", "no", "SQLSTATE_53100"),
    "do $$ begin raise exception using errcode = '40003'; end $$": ("transient", "maybe", "SQLSTATE_40003"),
    "do $$ begin raise exception using errcode = 'XX000'; end $$": ("permanent", "maybe", "SQLSTATE_XX000"),
    "do $$ begin raise exception using errcode = 'ZZ999'; end $$": ("permanent", "maybe", "SQLSTATE_ZZ999"),
}


def blocking(url: str, statement: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(statement)


def awaiting(url: str, statement: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await conn.execute(statement)

    asyncio.run(main())


@pytest.mark.parametrize("run", [blocking, awaiting])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_that_the_server_refuses(
    url: str, run: Callable[[str, str], None], statement: str
) -> None:
    found = classify(caught(run, url, statement), 0.0)
    assert found[:2] + found[3:] == (*STATEMENTS[statement], "psycopg:sqlstate")
    assert found.retry_after is None


def test_a_serialization_failure_was_rolled_back(url: str) -> None:
    with psycopg.connect(url) as one, psycopg.connect(url) as two:
        for conn in (one, two):
            conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            conn.execute("select sum(b) from t").fetchone()
        one.execute("update t set b = 5 where a = 1")
        two.execute("update t set b = 6 where a = 2")
        one.commit()
        error = caught(two.commit)
    assert facts(error) == ("transient", "no", "SQLSTATE_40001")


def test_a_deadlock_was_rolled_back(url: str) -> None:
    def cross(conn: psycopg.Connection[Any], row: int) -> None:
        try:
            conn.execute("update t set b = 0 where a = %s", (row,))
        except psycopg.Error as error:
            errors.append(error)
        conn.rollback()

    errors: list[BaseException] = []
    with psycopg.connect(url) as one, psycopg.connect(url) as two:
        one.execute("update t set b = 0 where a = 1")
        two.execute("update t set b = 0 where a = 2")
        other = threading.Thread(target=cross, args=(one, 2))
        other.start()
        cross(two, 1)
        other.join()
    assert [facts(error) for error in errors] == [("transient", "no", "SQLSTATE_40P01")]


def test_a_locked_row_is_transient(url: str) -> None:
    with psycopg.connect(url) as one, psycopg.connect(url) as two:
        one.execute("select * from t where a = 1 for update")
        error = caught(two.execute, "select * from t where a = 1 for update nowait")
        assert facts(error) == ("transient", "no", "SQLSTATE_55P03")
        two.rollback()
        two.execute("set local lock_timeout = '20ms'")
        error = caught(two.execute, "update t set b = 0 where a = 1")
        assert facts(error) == ("transient", "no", "SQLSTATE_55P03")


def test_a_session_ended_by_the_server_may_have_committed(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as boss:
        conn = psycopg.connect(url)
        conn.execute("update t set b = 7")
        boss.execute("select pg_terminate_backend(%s, 2000)", (conn.info.backend_pid,))
        assert facts(caught(conn.commit)) == ("transient", "maybe", "SQLSTATE_57P01")
        assert facts(caught(conn.execute, "select 1")) == ("transient", "maybe", "CONNECTION_CLOSED")
        conn.close()


def test_a_lost_connection_may_have_committed(url: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute("update t set b = 8")
        with socket.socket(fileno=os.dup(conn.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        error = caught(conn.commit)
    assert isinstance(error, psycopg.OperationalError)
    assert error.sqlstate is None
    assert facts(error) == ("transient", "maybe", "CONNECTION_CLOSED")


def connect(address: str) -> None:
    psycopg.connect(address).close()


def connect_awaiting(address: str) -> None:
    async def main() -> None:
        await (await psycopg.AsyncConnection.connect(address)).close()

    asyncio.run(main())


@pytest.mark.parametrize("act", [connect, connect_awaiting])
def test_nothing_is_sent_where_no_connection_could_be_made(
    act: Callable[[str], None], postgres_url: str
) -> None:
    with faults.refusing() as server:
        error = caught(act, f"host={faults.HOST} port={server.port} user=u dbname=d")
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")
    error = caught(act, "host=/nonexistent user=u dbname=d")
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")
    error = caught(act, "host=nohost.invalid user=u dbname=d")
    assert facts(error) == ("transient", "no", "DNS")
    with faults.serve(lambda _conn, _server: None) as server:
        error = caught(act, f"host={faults.HOST} port={server.port} user=u dbname=d sslmode=disable")
    assert facts(error)[:2] == ("transient", "no")
    assert facts(error)[2] in ("CONNECTION_CLOSED", "CONNECTION_FAILED")
    error = caught(act, f"{postgres_url}?sslmode=require")
    assert facts(error) == ("permanent", "no", "TLS")
    error = caught(act, postgres_url.rpartition("/")[0] + "/nothing")
    assert facts(error) == ("permanent", "no", "SQLSTATE_3D000")
    error = caught(act, postgres_url.replace("oncemore@", "ghost@"))
    assert facts(error) == ("permanent", "no", "SQLSTATE_28000")


def test_the_name_of_a_host_is_not_taken_for_the_reason() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="certificate-") as place,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"{place}/.s.PGSQL.5432")
        listener.listen()
        hangs_up = threading.Thread(target=lambda: listener.accept()[0].close())
        hangs_up.start()
        error = caught(connect, f"host={place} user=u dbname=d")
        hangs_up.join()
    assert "certificate" in str(error)
    assert facts(error)[:2] == ("transient", "no")


def test_too_many_connections_are_transient(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as boss:
        boss.execute("drop role if exists crowd")
        boss.execute("create role crowd login connection limit 0")
    error = caught(connect, postgres_url.replace("oncemore@", "crowd@"))
    assert facts(error) == ("transient", "no", "SQLSTATE_53300")


def test_connecting_that_takes_too_long_is_not_sent() -> None:
    error = psycopg.errors.ConnectionTimeout("connection timeout expired")  # libpq's shortest is 2 s
    assert facts(error) == ("transient", "no", "TIMEOUT_CONNECT")


def test_a_pool_that_has_no_connection_left(postgres_url: str) -> None:
    errors: list[BaseException] = []
    with (
        psycopg_pool.ConnectionPool(postgres_url, min_size=1, max_size=1, max_waiting=1, open=True) as pool,
        pool.connection(),
    ):
        waits = threading.Thread(target=lambda: errors.append(caught(pool.getconn, 0.3)))
        waits.start()
        until = time.monotonic() + 5
        while not pool.get_stats().get("requests_waiting") and time.monotonic() < until:
            time.sleep(0.005)
        full = caught(pool.getconn, 0.05)
        waits.join()
    assert facts(errors[0]) == ("transient", "no", "TIMEOUT_POOL")
    assert facts(full) == ("throttled", "no", "POOL_FULL")
    assert facts(caught(pool.getconn, 0.05)) == ("permanent", "no", "POOL_CLOSED")


def test_a_usage_error_is_permanent(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as conn:
        error = caught(conn.execute, "select %s", ())
        assert facts(error) == ("permanent", "no", "EXC_ProgrammingError")
        cursor = conn.cursor()
        cursor.close()
        assert facts(caught(cursor.execute, "select 1")) == ("permanent", "no", "EXC_InterfaceError")


def test_every_sqlstate_that_psycopg_knows_has_a_meaning() -> None:
    states = {
        cls.sqlstate: cls
        for cls in vars(psycopg.errors).values()
        if isinstance(cls, type) and issubclass(cls, psycopg.Error) and cls.sqlstate
    }
    assert len(states) > 200
    passing = {state for state, cls in states.items() if classify(cls("x"), 0.0).may_pass}
    assert {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "08006", "25006"} <= passing
    assert not {state for state in passing if state[:2] in ("22", "23", "42", "28", "0A", "3D")}
