"""Timeouts of HTTP clients that are neither for a connection nor for an answer."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import urllib3

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught, with_urllib
from tests.servers import faults

#: Bigger than the buffers of a loopback connection.
BIG = b"x" * 32_000_000


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


@pytest.mark.parametrize("module", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_waiting_for_a_place_in_the_pool_is_not_sent(module: Any) -> None:
    async def main(url: str) -> BaseException:
        limits = module.Limits(max_connections=1)
        async with module.AsyncClient(timeout=0.3, limits=limits, trust_env=False, verify=False) as client:
            first = asyncio.create_task(client.get(url))
            await asyncio.sleep(0.05)
            results = await asyncio.gather(
                client.get(url, timeout=module.Timeout(0.3, pool=0.05)), first, return_exceptions=True
            )
        assert isinstance(results[0], module.PoolTimeout)
        return results[0]

    with faults.serve(faults.stalls) as server:
        error = asyncio.run(main(server.url))
    assert facts(error) == ("transient", "no", "TIMEOUT_POOL")
    assert len(server.requests) == 1


def test_waiting_for_a_place_in_urllib3s_pool_is_not_sent() -> None:
    with faults.serve(faults.stalls_in_body) as server:
        pool = urllib3.HTTPConnectionPool(faults.HOST, server.port, maxsize=1, block=True, timeout=0.3)
        with pool:
            held = pool.request("GET", "/", preload_content=False, retries=False)
            error = caught(lambda: pool.urlopen("GET", "/", pool_timeout=0.05, retries=False))
            held.close()
    assert facts(error) == ("transient", "no", "TIMEOUT_POOL")


def test_aiohttps_total_timeout_says_nothing_about_its_cause() -> None:
    async def main(url: str) -> None:
        limits = aiohttp.ClientTimeout(total=0.1)
        async with aiohttp.ClientSession(timeout=limits) as session, session.post(url, data=b"x"):
            pass

    with faults.serve(faults.stalls) as server:
        error = caught(lambda: asyncio.run(main(server.url)))
    assert type(error) is TimeoutError
    assert facts(error) == ("transient", "maybe", "TIMEOUT")


def test_aiohttps_wait_for_a_connection_of_its_pool_is_not_sent() -> None:
    async def main(url: str) -> list[Any]:
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(connect=0.1, sock_read=0.3), connector=aiohttp.TCPConnector(limit=1)
        ) as session:
            return await asyncio.gather(session.get(url), session.get(url), return_exceptions=True)

    with faults.serve(faults.stalls) as server:
        found = {facts(error) for error in asyncio.run(main(server.url))}
    assert found == {("transient", "maybe", "TIMEOUT_READ"), ("transient", "no", "TIMEOUT_CONNECT")}


@pytest.mark.parametrize("module", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_request_that_cannot_be_written_in_time_may_have_been_sent(module: Any) -> None:
    with faults.serve(faults.reads_nothing) as server, module.Client(timeout=0.2, trust_env=False) as client:
        error = caught(lambda: client.post(server.url, content=BIG))
    assert facts(error) == ("transient", "maybe", "TIMEOUT_WRITE")


def test_urllib_wraps_connecting_and_writing_alike_and_only_connecting_is_not_sent() -> None:
    def post() -> None:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(server.url, data=BIG, timeout=0.2)

    with faults.serve(faults.reads_nothing) as server:
        error = caught(post)
    assert facts(error) == ("transient", "maybe", "TIMEOUT")
    with faults.unanswered() as server:
        error = caught(with_urllib, server.url, 0.1)
    assert facts(error) == ("transient", "no", "TIMEOUT_CONNECT")


def test_a_bare_socket_tells_connecting_from_reading_where_python_says_so() -> None:
    with faults.unanswered() as server:
        error = caught(lambda: socket.create_connection((faults.HOST, server.port), 0.1))
    assert facts(error) == ("transient", "no", "TIMEOUT_CONNECT")
    with (
        faults.serve(faults.reads_nothing) as server,
        socket.create_connection((faults.HOST, server.port), 0.1) as conn,
        conn.makefile("rb") as stream,
    ):
        assert facts(caught(stream.read)) == ("transient", "maybe", "TIMEOUT_READ")
        assert facts(caught(conn.recv, 1)) == ("transient", "maybe", "TIMEOUT")


def test_httpx_through_a_proxy_that_refuses_was_not_sent() -> None:
    with (
        faults.serve(faults.answers(502)) as proxy,
        httpx.Client(proxy=proxy.url, trust_env=False, timeout=0.3) as client,
    ):
        error = caught(lambda: client.post("https://nohost.invalid/", content=b"x"))
    assert facts(error) == ("transient", "no", "PROXY")
