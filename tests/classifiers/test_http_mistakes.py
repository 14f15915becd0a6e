"""Permanent HTTP errors: wrong addresses, endless redirects, bodies that cannot be decoded."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import TLS, caught
from tests.servers import faults

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


def with_httpx(module: Any) -> Callable[[str], object]:
    def get(url: str) -> object:
        with module.Client(follow_redirects=True, trust_env=False, verify=TLS) as client:
            return client.get(url).json()

    return get


def with_requests(url: str) -> object:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url).json()


def with_aiohttp(url: str) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            await answer.json()

    asyncio.run(main())


def with_urllib3(url: str) -> object:
    with urllib3.PoolManager(retries=3) as pool:
        return pool.request("GET", url).json()


def with_urllib(url: str) -> None:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url).close()


GET: dict[str, Callable[[str], object]] = {
    "httpx": with_httpx(httpx),
    "httpx2": with_httpx(httpx2),
    "requests": with_requests,
    "aiohttp": with_aiohttp,
    "urllib3": with_urllib3,
    "urllib": with_urllib,
}


@pytest.mark.parametrize("client", GET)
@pytest.mark.parametrize("url", ["nonsense://example.invalid/", "http:///nowhere"])
def test_a_wrong_address_is_permanent_and_was_not_sent(client: str, url: str) -> None:
    assert facts(caught(GET[client], url)) == ("permanent", "no", "INVALID_URL")


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests", "aiohttp"])
def test_endless_redirects_are_permanent(client: str) -> None:
    with faults.serve(faults.answers(302, {"Location": "/"})) as server:
        error = caught(GET[client], server.url)
    assert facts(error) == ("permanent", "maybe", "REDIRECTS")


def test_urllib_and_urllib3_leave_endless_redirects_to_the_status() -> None:
    with faults.serve(faults.answers(302, {"Location": "/"})) as server:
        error = caught(GET["urllib"], server.url)
        assert facts(error) == ("permanent", "maybe", "HTTP_302")
        error.close()  # type: ignore[attr-defined]
        error = caught(GET["urllib3"], server.url)
        assert facts(error)[0] == "permanent"


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests", "aiohttp", "urllib3"])
def test_a_body_that_does_not_decode_is_permanent(client: str) -> None:
    with faults.serve(faults.answers(200, {"Content-Encoding": "gzip"}, b"this is no gzip")) as server:
        error = caught(GET[client], server.url)
    assert facts(error) == ("permanent", "maybe", "DECODE")


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests", "aiohttp", "urllib3"])
def test_an_answer_that_is_not_json_is_permanent(client: str) -> None:
    with faults.serve(faults.answers(200, {"Content-Type": "text/html"}, b"<html>")) as server:
        error = caught(GET[client], server.url)
    assert facts(error)[:2] == ("permanent", "maybe")
    assert facts(error)[2] in ("DECODE", "EXC_JSONDecodeError")


@pytest.mark.parametrize("module", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_request_that_breaks_http_is_permanent_and_may_have_been_sent_in_part(module: Any) -> None:
    def notes(conn: socket.socket, server: faults.Server) -> None:
        server.requests.append(conn.recv(65536))

    with faults.serve(notes) as server, module.Client(trust_env=False, verify=TLS) as client:
        illegal = caught(lambda: client.get(server.url, headers={"bad header": "x"}))
        short = caught(lambda: client.post(server.url, content=b"x", headers={"Content-Length": "9"}))
        server.wait_for(2)
    assert facts(illegal) == facts(short) == ("permanent", "maybe", "PROTOCOL")
    assert [request[:4] for request in server.requests if request] == [b"POST"], "the second was begun"


#: What a loopback server cannot provoke, or only a version of the client that is not installed.
OTHERS = [
    (httpx.CloseError("x"), ("transient", "maybe", "CONNECTION_ERROR")),
    (httpx.WriteError("x"), ("transient", "maybe", "CONNECTION_ERROR")),
    (httpx.ReadError("x"), ("transient", "maybe", "CONNECTION_ERROR")),
    (httpx.ConnectError("x"), ("transient", "no", "CONNECTION_FAILED")),
    (
        httpx.RemoteProtocolError("<ConnectionTerminated error_code:0>"),
        ("transient", "maybe", "CONNECTION_CLOSED"),
    ),
    (httpx.TransportError("x"), ("transient", "maybe", "CONNECTION_ERROR")),
    (httpx.CookieConflict("x"), ("permanent", "maybe", "EXC_CookieConflict")),
    (requests.ConnectionError(), ("transient", "maybe", "CONNECTION_ERROR")),
    (requests.Timeout(), ("transient", "maybe", "TIMEOUT")),
    (requests.HTTPError(), ("permanent", "maybe", "HTTP")),
    (requests.exceptions.InvalidHeader(), ("permanent", "no", "EXC_InvalidHeader")),
    (requests.exceptions.SSLError(), ("permanent", "maybe", "TLS")),
    (requests.RequestException(), ("permanent", "maybe", "EXC_RequestException")),
    (urllib3.exceptions.ClosedPoolError(None, "x"), ("permanent", "no", "POOL_CLOSED")),  # type: ignore[arg-type]
    (urllib3.exceptions.ResponseError("too many error responses"), ("permanent", "maybe", "HTTP")),
    (aiohttp.ClientConnectionError(), ("transient", "maybe", "CONNECTION_ERROR")),
    (aiohttp.ClientOSError(32, "x"), ("transient", "maybe", "CONNECTION_CLOSED")),
    (aiohttp.ClientOSError(111, "x"), ("transient", "maybe", "CONNECTION_REFUSED")),
    (aiohttp.ClientConnectionResetError(), ("transient", "maybe", "CONNECTION_RESET")),
    (aiohttp.ServerFingerprintMismatch(b"", b"", "h", 1), ("permanent", "no", "TLS")),
    (aiohttp.ServerTimeoutError(), ("transient", "maybe", "TIMEOUT")),
    (urllib.error.URLError("no host given"), ("permanent", "no", "INVALID_URL")),
    (urllib.error.URLError(OSError("tunnel failed")), ("transient", "maybe", "CONNECTION_ERROR")),
    (urllib.error.ContentTooShortError("x", b""), ("transient", "maybe", "BODY_CUT")),
]


@pytest.mark.parametrize(("error", "wanted"), OTHERS, ids=lambda value: type(value).__name__)
def test_errors_that_cannot_be_provoked(error: Exception, wanted: object) -> None:
    assert facts(error) == wanted
