"""A server with configurable behaviour and a log of its own, and one interface to all clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import httpx2
import requests

import oncemore.http
from tests.servers import faults

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator


class Line(NamedTuple):
    """A request in the server's log."""

    at: float
    since: float
    method: str
    target: str
    fields: dict[str, str]
    body: bytes


class Script:
    """The behaviours of a server in turn; the last one is repeated."""

    def __init__(self, *behaviours: faults.Behaviour) -> None:
        self._behaviours, self._lock = list(behaviours), threading.Lock()
        self.log: list[Line] = []

    def __call__(self, conn: socket.socket, server: faults.Server) -> None:
        at, since = time.time(), time.monotonic()
        with self._lock:
            turn = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
        turn(conn, faults.Server(server.port, requests=_Noted(self.log, at, since), stopping=server.stopping))


class _Noted(list[bytes]):
    """A handler that logs each request with the time at which its connection was accepted."""

    def __init__(self, log: list[Line], at: float, since: float) -> None:
        super().__init__()
        self._log, self._when = log, (at, since)

    def append(self, request: bytes) -> None:
        self._log.append(_line(*self._when, request))


def _line(at: float, since: float, request: bytes) -> Line:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return Line(at, since, method, target, fields, body)


@contextlib.contextmanager
def scripted(*behaviours: faults.Behaviour) -> Iterator[tuple[str, list[Line]]]:
    script = Script(*behaviours)
    with faults.serve(script) as server:
        yield server.url, script.log


ok = faults.answers(200, body=b"fine")


class Answered(NamedTuple):
    """The result of a call: status and body, or error, and the `RetryInfo`."""

    status: int
    body: bytes
    error: BaseException | None
    told: oncemore.http.RetryInfo | None


#: Made once: reading all the certificates there are takes longer than a whole test.
NO_TLS = ssl.create_default_context()


def _answered(response: Any) -> Answered:
    return Answered(response.status_code, response.content, None, oncemore.http.retry_info(response))


def _caught(error: BaseException) -> Answered:
    return Answered(0, b"", error, oncemore.http.retry_info(error))


def _limit(module: Any, sent: dict[str, Any]) -> Any:
    """Return the timeouts of a request: a short limit is for the reply, a busy machine may connect slowly."""
    return module.Timeout(5.0, read=sent.pop("limit", 5.0))


def _plain(module: Any) -> Callable[..., Answered]:
    def call(method: str, url: str, options: dict[str, Any] | None = None, **sent: Any) -> Answered:
        inner = module.HTTPTransport(verify=NO_TLS)
        transport = oncemore.http.Transport(inner, **options or {})
        with module.Client(transport=transport, trust_env=False, timeout=_limit(module, sent)) as client:
            try:
                return _answered(client.request(method, url, **sent))
            except Exception as error:
                return _caught(error)

    return call


def _awaited(module: Any) -> Callable[..., Answered]:
    def call(method: str, url: str, options: dict[str, Any] | None = None, **sent: Any) -> Answered:
        async def main() -> Answered:
            inner = module.AsyncHTTPTransport(verify=NO_TLS)
            transport = oncemore.http.AsyncTransport(inner, **options or {})
            limit = _limit(module, sent)
            async with module.AsyncClient(transport=transport, trust_env=False, timeout=limit) as client:
                try:
                    return _answered(await client.request(method, url, **sent))
                except Exception as error:
                    return _caught(error)

        return asyncio.run(main())

    return call


def _requests(method: str, url: str, options: dict[str, Any] | None = None, **sent: Any) -> Answered:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", oncemore.http.Adapter(**options or {}))
        sent["timeout"] = (5.0, sent.pop("limit", 5.0))
        if "content" in sent:
            sent["data"] = sent.pop("content")
        try:
            return _answered(session.request(method, url, **sent))
        except Exception as error:
            return _caught(error)


CLIENTS: dict[str, Callable[..., Answered]] = {
    "httpx": _plain(httpx),
    "httpx2": _plain(httpx2),
    "httpx-async": _awaited(httpx),
    "httpx2-async": _awaited(httpx2),
    "requests": _requests,
}
