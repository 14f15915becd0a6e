"""Retrying clients: what is sent, when and how often, according to the log of a real server."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.world import CLIENTS, Answered, Line, ok, scripted
from tests.servers import faults

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterator

    from oncemore.testing import FakeClock

    Call = Callable[..., Answered]

busy = faults.answers(503, body=b"busy")
FAILING = {"resets": faults.resets, "closes": faults.closes, "503": busy, "500": faults.answers(500)}


@pytest.mark.parametrize("fault", FAILING)
@pytest.mark.req("MSG-9")
def test_a_repeat_has_the_number_of_its_attempt(call: Call, clock: FakeClock, fault: str) -> None:
    with scripted(FAILING[fault], ok) as (url, log):
        got = call("GET", url)
    assert (got.status, got.body) == (200, b"fine")
    assert [line.fields["oncemore-attempt"] for line in log] == ["1", "2"]
    assert got.told is not None
    assert (got.told.attempts, got.told.reason, got.told.decision) == (2, "", None)
    assert len(clock.delays) == 1


def test_a_refused_connection_is_tried_again(call: Call, clock: FakeClock) -> None:
    with faults.refusing() as server:
        got = call("POST", server.url, {"attempts": 4}, content=b"x")
    assert got.error is not None
    assert got.told is not None
    assert (got.told.attempts, got.told.reason) == (4, "max_attempts_exceeded")
    assert "4" in "".join(got.error.__notes__)
    assert len(clock.delays) == 3


def test_the_response_of_the_last_attempt_is_returned(call: Call, clock: FakeClock) -> None:
    with scripted(faults.answers(500), busy) as (url, log):
        got = call("GET", url, {"attempts": 2})
    assert (got.status, got.body, len(log)) == (503, b"busy", 2)
    assert got.told is not None
    assert (got.told.attempts, got.told.reason) == (2, "max_attempts_exceeded")


@pytest.mark.parametrize("status", [302, 404, 409, 501])
def test_a_permanent_failure_is_sent_once(call: Call, clock: FakeClock, status: int) -> None:
    with scripted(faults.answers(status)) as (url, log):
        got = call("GET", url)
    assert (got.status, len(log)) == (status, 1)


def test_a_429_is_retried_for_any_method(call: Call, clock: FakeClock) -> None:
    with scripted(faults.answers(429), ok) as (url, log):
        assert call("POST", url, content=b"x").status == 200
    assert [line.body for line in log] == [b"x", b"x"]


# HTTP-11 --------------------------------------------------------------------------------------------

DECLARED: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "an undeclared POST": ("POST", {}, {}, 1),
    "an undeclared PATCH": ("PATCH", {}, {}, 1),
    "a PUT": ("PUT", {}, {}, 2),
    "a DELETE": ("DELETE", {}, {}, 2),
    "a declared POST": ("POST", {"idempotent": ("post",)}, {}, 2),
    "a POST declared by a function": (
        "POST",
        {"idempotent": lambda request: "pay" in str(request.url)},
        {},
        2,
    ),
    "a POST that the function does not mean": ("POST", {"idempotent": lambda request: False}, {}, 1),
    "a POST when PATCH is declared": ("POST", {"idempotent": ["PATCH"]}, {}, 1),
    "a POST with a key": ("POST", {}, {"headers": {"Idempotency-Key": '"k-1"'}}, 2),
}


#: With every client; the others with one of them.
WITH_ALL = ("an undeclared POST", "a PUT", "a declared POST", "a POST with a key")
DECLARING = [(case, client) for case in DECLARED for client in (CLIENTS if case in WITH_ALL else ("httpx2",))]


@pytest.mark.parametrize(("case", "client"), DECLARING)
@pytest.mark.req("HTTP-11")
def test_a_request_that_times_out_is_repeated_only_if_that_is_safe(
    clock: FakeClock, case: str, client: str
) -> None:
    method, options, sent, times = DECLARED[case]
    with scripted(faults.stalls) as (url, log):
        got = CLIENTS[client](
            method, f"{url}pay", {"attempts": 2, **options}, content=b"x", limit=0.05, **sent
        )
    assert got.error is not None
    assert len(log) == times
    assert got.told is not None
    if times == 1:
        assert got.told.reason.startswith(f"{method} is not idempotent and the server may have received it")
        assert "is not sent again" in got.error.__notes__[-1]
    keys = {line.fields.get("idempotency-key") for line in log}
    assert keys == ({'"k-1"'} if "key" in case else {None})


def test_an_ambiguous_response_is_not_followed_by_a_second_post(call: Call, clock: FakeClock) -> None:
    with scripted(faults.answers(502, body=b"gateway"), ok) as (url, log):
        got = call("POST", url, content=b"x")
    assert (got.status, got.body, len(log)) == (502, b"gateway", 1)
    assert got.told is not None
    assert "declare it with idempotent=, or send an Idempotency-Key" in got.told.reason


def test_with_a_key_409_means_that_the_first_request_is_in_progress(call: Call, clock: FakeClock) -> None:
    with scripted(faults.answers(409), ok) as (url, log):
        assert call("POST", url, content=b"x", headers={"Idempotency-Key": "k"}).status == 200
    assert [line.fields["idempotency-key"] for line in log] == ["k", "k"]


# Retry-After ----------------------------------------------------------------------------------------


def later(seconds: int, form: str) -> faults.Behaviour:
    """A response with Retry-After and a Date."""

    def behave(conn: socket.socket, server: faults.Server) -> None:
        now = time.time()
        asked = str(seconds) if form == "seconds" else formatdate(now + seconds, usegmt=True)
        if form == "RateLimit":
            fields = {"RateLimit": f'"m";r=0;t={seconds}', "RateLimit-Policy": '"m";q=1;w=60'}
        else:
            fields = {"Retry-After": asked}
        faults.answers(503, {"Date": formatdate(now, usegmt=True), **fields})(conn, server)

    return behave


@pytest.mark.req("BACKOFF-16")
def test_the_next_request_is_never_earlier_than_the_server_asked() -> None:
    """In real time, with all clients and forms concurrently to save time."""

    def logged(client: str, form: str) -> tuple[str, list[Line]]:
        with scripted(later(1, form), ok) as (url, log):
            assert CLIENTS[client]("GET", url, {"wait": (0.01, 0.02)}).status == 200
        return form, log

    told = [(client, form) for client in CLIENTS for form in ("seconds", "date", "RateLimit")]
    with ThreadPoolExecutor(len(told)) as threads:
        logs = list(threads.map(lambda one: logged(*one), told))
    assert len(logs) == 15
    for form, (first, second) in logs:
        assert second.since - first.since >= (0.0 if form == "date" else 1.0)
        assert form != "date" or second.at >= int(first.at) + 1


@pytest.mark.req("BACKOFF-16")
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_wait_beyond_the_cap_returns_the_response_with_not_before(call: Call, form: str) -> None:
    with scripted(later(120, form), ok) as (url, log):
        got = call("GET", url)
    assert (got.status, len(log)) == (503, 1)
    assert got.told is not None
    assert got.told.decision is not None
    assert got.told.not_before == pytest.approx(log[0].at + 120, abs=2)


# Bodies ---------------------------------------------------------------------------------------------


def pieces() -> Iterator[bytes]:
    yield b"one"
    yield b"two"


async def pieces_awaited() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stream_body_is_sent_once_and_the_reason_is_reported(clock: FakeClock, client: str) -> None:
    stream = pieces_awaited if "async" in client else pieces
    with scripted(chunked(503), ok) as (url, log):
        got = CLIENTS[client]("PUT", url, content=stream())
    assert (got.status, len(log)) == (503, 1)
    assert got.told is not None
    assert "its body is a stream and cannot be sent twice" in got.told.reason


def chunked(status: int) -> faults.Behaviour:
    """Read a chunked body to its end, then respond."""

    def behave(conn: socket.socket, server: faults.Server) -> None:
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += conn.recv(65536)
        server.requests.append(data)
        conn.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

    return behave


def test_a_form_with_files_is_sent_again_whole(call: Call, clock: FakeClock) -> None:
    file = io.BytesIO(b"content of the file")
    with scripted(busy, ok) as (url, log):
        assert call("PUT", url, files={"f": ("name.txt", file)}).status == 200
    assert len(log) == 2
    assert log[0].body == log[1].body
    assert b"content of the file" in log[0].body


class Pipe:
    """A file that can be read once."""

    def __init__(self, *told: bool) -> None:
        self._left, self._told = [b"once"], told

    def read(self, _: int = -1) -> bytes:
        return self._left.pop() if self._left else b""

    def __iter__(self) -> Iterator[bytes]:
        yield from iter(self.read, b"")

    def seekable(self) -> bool:
        return self._told[0]  # or fails, as some do


@pytest.mark.parametrize("told", [(False,), ()])
@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests"])
def test_a_file_that_cannot_be_rewound_is_sent_once(
    clock: FakeClock, client: str, told: tuple[bool, ...]
) -> None:
    sent: dict[str, Any] = {"data" if client == "requests" else "content": Pipe(*told)}
    if client == "httpx":
        sent = {"files": {"f": ("name", Pipe(*told))}}
    with scripted(chunked(503), ok) as (url, log):
        got = CLIENTS[client]("PUT", url, **sent)
    assert (got.status, len(log)) == (503, 1)
    assert b"once" in log[0].body


def test_requests_sends_a_file_again_from_where_it_stood(clock: FakeClock) -> None:
    file = io.BytesIO(b"skipped, sent")
    file.seek(9)
    with scripted(busy, ok) as (url, log):
        assert CLIENTS["requests"]("PUT", url, data=file).status == 200
    assert [line.body for line in log] == [b"sent", b"sent"]
