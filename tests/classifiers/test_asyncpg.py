"""Errors of a real PostgreSQL through asyncpg, with the same codes as through psycopg."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


def raised(work: Callable[[], Awaitable[object]]) -> BaseException:
    async def main() -> None:
        await work()

    return caught(lambda: asyncio.run(main()))


def connected(url: str, work: Callable[[Any], Awaitable[object]]) -> BaseException:
    """Return the exception that `work` raises with its own connection."""

    async def main() -> None:
        conn = await asyncpg.connect(url)
        try:
            await work(conn)
        finally:
            await conn.close(timeout=5)

    return raised(main)


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    async def prepare() -> None:
        conn = await asyncpg.connect(postgres_url)
        await conn.execute("drop table if exists ap_t; create table ap_t(a int primary key, b int)")
        await conn.execute("insert into ap_t values (1, 1), (2, 2)")
        await conn.close()

    asyncio.run(prepare())
    return postgres_url


STATEMENTS = {
    "insert into ap_t values (1, 1)": ("permanent", "no", "SQLSTATE_23505"),
    "selec 1": ("permanent", "no", "SQLSTATE_42601"),
    "select nothing from ap_t": ("permanent", "no", "SQLSTATE_42703"),
    "select 1/0": ("permanent", "no", "SQLSTATE_22012"),
    "begin read only; insert into ap_t values (9, 9)": ("transient", "no", "SQLSTATE_25006"),
    "set statement_timeout = '20ms'; select pg_sleep(5)": ("transient", "no", "SQLSTATE_57014"),
    "do $$ begin raise exception using errcode = '40P01'; end $$": ("transient", "no", "SQLSTATE_40P01"),
    "do $$ begin raise exception using errcode = '53100'; end $$": ("transient", "no", "SQLSTATE_53100"),
    "do $$ begin raise exception using errcode = 'ZZ999'; end $$": ("permanent", "maybe", "SQLSTATE_ZZ999"),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_that_the_server_refuses(url: str, statement: str) -> None:
    found = classify(connected(url, lambda conn: conn.execute(statement)), 0.0)
    assert found[:2] + found[3:] == (*STATEMENTS[statement], "asyncpg:sqlstate")


def test_a_serialization_failure_was_rolled_back(url: str) -> None:
    async def main() -> None:
        one, two = await asyncpg.connect(url), await asyncpg.connect(url)
        for conn in (one, two):
            await conn.execute("begin isolation level serializable")
            await conn.fetch("select sum(b) from ap_t")
        await one.execute("update ap_t set b = 5 where a = 1")
        await two.execute("update ap_t set b = 6 where a = 2")
        await one.execute("commit")
        try:
            await two.execute("commit")
        finally:
            one.terminate()
            two.terminate()

    assert facts(raised(main)) == ("transient", "no", "SQLSTATE_40001")


def test_a_locked_row_is_transient(url: str) -> None:
    async def main() -> None:
        one, two = await asyncpg.connect(url), await asyncpg.connect(url)
        await one.execute("begin; select * from ap_t where a = 1 for update")
        try:
            await two.execute("select * from ap_t where a = 1 for update nowait")
        finally:
            one.terminate()
            two.terminate()

    assert facts(raised(main)) == ("transient", "no", "SQLSTATE_55P03")


def test_a_session_ended_by_the_server_may_have_committed_and_has_its_sqlstate(url: str) -> None:
    error = connected(url, lambda conn: conn.execute("select pg_terminate_backend(pg_backend_pid())"))
    assert isinstance(error, asyncpg.ConnectionDoesNotExistError)
    assert facts(error) == ("transient", "maybe", "SQLSTATE_57P01")


def test_a_lost_connection_may_have_committed(url: str) -> None:
    async def lose(conn: Any) -> None:
        running = asyncio.ensure_future(conn.execute("select pg_sleep(5)"))
        await asyncio.sleep(0.02)
        number = conn._transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(number)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        await running

    error = connected(url, lose)
    assert isinstance(error, asyncpg.ConnectionDoesNotExistError)
    assert facts(error) == ("transient", "maybe", "CONNECTION_CLOSED")


def test_a_closed_connection_sends_nothing(url: str) -> None:
    async def use(conn: Any) -> None:
        await conn.close()
        await conn.execute("select 1")

    assert facts(connected(url, use)) == ("transient", "no", "CONNECTION_CLOSED")


def hangs_up(conn: socket.socket, _server: faults.Server) -> None:
    conn.recv(1000)


def says_nothing(_conn: socket.socket, server: faults.Server) -> None:
    server.stopping.wait(faults.PATIENCE)


def connect(port: int, **options: Any) -> BaseException:
    where = {"host": faults.HOST, "port": port, "user": "u", "database": "d", "ssl": False}
    return raised(lambda: asyncpg.connect(**{**where, **options}))


def test_nothing_is_sent_where_no_connection_could_be_made(postgres_url: str) -> None:
    with faults.refusing() as server:
        assert facts(connect(server.port)) == ("transient", "no", "CONNECTION_REFUSED")
    assert facts(connect(1, host="nohost.invalid")) == ("transient", "no", "DNS")
    with faults.serve(hangs_up) as server:
        error = connect(server.port)
    assert isinstance(error, asyncpg.ConnectionDoesNotExistError)
    assert facts(error) == ("transient", "no", "CONNECTION_CLOSED")
    for fault in (faults.serve(says_nothing), faults.unanswered()):
        with fault as server:
            assert facts(connect(server.port, timeout=0.1)) == ("transient", "no", "TIMEOUT_CONNECT")
    nothing = postgres_url.rpartition("/")[0] + "/nothing"
    assert facts(raised(lambda: asyncpg.connect(nothing))) == ("permanent", "no", "SQLSTATE_3D000")
    ghost = postgres_url.replace("oncemore@", "ghost@")
    assert facts(raised(lambda: asyncpg.connect(ghost))) == ("permanent", "no", "SQLSTATE_28000")
    standby = f"{postgres_url}?target_session_attrs=standby"
    assert facts(raised(lambda: asyncpg.connect(standby))) == ("transient", "no", "CONNECTION_FAILED")


def test_too_many_connections_are_transient(postgres_url: str) -> None:
    async def prepare(conn: Any) -> None:
        await conn.execute("drop role if exists ap_crowd; create role ap_crowd login connection limit 0")
        await asyncpg.connect(postgres_url.replace("oncemore@", "ap_crowd@"))

    assert facts(connected(postgres_url, prepare)) == ("transient", "no", "SQLSTATE_53300")


def test_a_pool_that_has_no_connection_left_sent_nothing(postgres_url: str) -> None:
    async def wait() -> None:
        async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool, pool.acquire():
            await pool.acquire(timeout=0.05)

    async def late() -> None:
        pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=1)
        await pool.close()
        await pool.acquire()

    error = raised(wait)
    assert type(error) is TimeoutError
    assert facts(error) == ("transient", "no", "TIMEOUT_POOL")
    assert facts(raised(late)) == ("permanent", "no", "POOL_CLOSED")


def test_a_statement_that_took_too_long_may_have_taken_effect(url: str) -> None:
    error = connected(url, lambda conn: conn.execute("select pg_sleep(5)", timeout=0.05))
    assert facts(error) == ("transient", "maybe", "TIMEOUT")


def test_a_usage_error_is_permanent(url: str) -> None:
    error = connected(url, lambda conn: conn.execute("select $1::int", "x"))
    assert facts(error) == ("permanent", "no", "SQLSTATE_22000")

    async def two_at_once(conn: Any) -> None:
        await asyncio.gather(conn.execute("select pg_sleep(0.05)"), conn.execute("select 1"))

    assert facts(connected(url, two_at_once)) == ("permanent", "no", "EXC_InterfaceError")


def test_every_sqlstate_that_asyncpg_knows_means_the_same_as_elsewhere() -> None:
    states = {
        cls.sqlstate: cls
        for cls in vars(asyncpg.exceptions).values()
        if isinstance(cls, type) and issubclass(cls, asyncpg.PostgresError) and cls.sqlstate
    }
    assert len(states) > 200
    passing = {state for state, cls in states.items() if classify(cls("x"), 0.0).may_pass}
    assert {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "08006", "25006"} <= passing
    assert not {state for state in passing if state[:2] in ("22", "23", "42", "28", "0A", "3D")}
