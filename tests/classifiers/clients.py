"""Every HTTP client as a function that posts to an address and raises the client's own errors."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import httpx2
import requests
import trio
import urllib3

if TYPE_CHECKING:
    from collections.abc import Callable

    Post = Callable[..., None]

#: Seconds that a client waits to connect, and for an answer: of a server that answers, and of one that
#: does not.
PATIENCE, SHORT = 10.0, 0.3

#: Made once: reading the machine's certificates takes longer than most of the tests.
TLS = ssl.create_default_context()


def blocking(module: Any) -> Post:
    def post(url: str, patience: float = PATIENCE) -> None:
        with module.Client(timeout=patience, verify=TLS, trust_env=False) as client:
            client.post(url, content=b"x").raise_for_status()

    return post


def awaiting(module: Any, run: Callable[[Any], None]) -> Post:
    def post(url: str, patience: float = PATIENCE) -> None:
        async def main() -> None:
            async with module.AsyncClient(timeout=patience, verify=TLS, trust_env=False) as client:
                (await client.post(url, content=b"x")).raise_for_status()

        run(main)

    return post


def on_asyncio(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def with_requests(url: str, patience: float = PATIENCE) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, data=b"x", timeout=patience).raise_for_status()


def with_aiohttp(url: str, patience: float = PATIENCE) -> None:
    async def main() -> None:
        limits = aiohttp.ClientTimeout(sock_connect=patience, sock_read=patience)
        async with (
            aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(ssl=TLS)) as session,
            session.post(url, data=b"x") as answer,
        ):
            await answer.read()
            answer.raise_for_status()

    asyncio.run(main())


def with_urllib(url: str, patience: float = PATIENCE) -> None:
    straight = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=TLS)
    )
    with straight.open(url, data=b"x", timeout=patience) as answer:
        answer.read()


def with_http_client(url: str, patience: float = PATIENCE) -> None:
    parts = urlsplit(url)
    make: Any = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.netloc, timeout=patience)
    try:
        connection.request("POST", parts.path, b"x")
        connection.getresponse().read()
    finally:
        connection.close()


def with_urllib3(url: str, patience: float = PATIENCE) -> None:
    with urllib3.PoolManager(retries=False, timeout=patience, ssl_context=TLS) as pool:
        pool.request("POST", url, body=b"x")


CLIENTS: dict[str, Post] = {
    "httpx": blocking(httpx),
    "httpx-asyncio": awaiting(httpx, on_asyncio),
    "httpx-trio": awaiting(httpx, trio.run),
    "httpx2": blocking(httpx2),
    "httpx2-asyncio": awaiting(httpx2, on_asyncio),
    "httpx2-trio": awaiting(httpx2, trio.run),
    "requests": with_requests,
    "aiohttp": with_aiohttp,
    "urllib": with_urllib,
    "http.client": with_http_client,
    "urllib3": with_urllib3,
}

#: These hand a bad status over as an answer instead of raising it.
RETURNING = ("http.client", "urllib3")


def caught(act: Callable[..., object], *args: object) -> BaseException:
    """Return the exception that `act` raises; fail if it raises nothing."""
    try:
        act(*args)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return error
    raise AssertionError("nothing was raised")
