"""The WSGI middleware without a server: protocol details, checked by the standard library's validator."""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

import oncemore
import oncemore.http

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Response:
    """A server's view of one response: what was started, written and returned."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, list[tuple[str, str]]]] = []
        self.written: list[bytes] = []
        self.body = b""
        self.breaks_after = 99

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        self.starts.append((status, headers))
        return self.write

    def write(self, part: bytes) -> None:
        if len(self.written) >= self.breaks_after:
            raise RuntimeError("the client is gone")
        self.written.append(part)

    @property
    def status(self) -> str:
        return self.starts[-1][0]

    @property
    def problem(self) -> str:
        return str(json.loads(self.body)["type"].rpartition(":")[2])


class World:
    """A WSGI application behind the middleware."""

    def __init__(self, engine: oncemore.Engine, effect: str = "idempotent", **options: Any) -> None:
        self.runs: list[dict[str, Any]] = []
        self.work: Callable[..., Any] = self.answer
        self.inner: Callable[..., Any] = validator(self._run)
        options.setdefault("principal", oncemore.http.same_principal)
        self.app = oncemore.http.WsgiIdempotencyMiddleware(
            lambda *request: self.inner(*request), effect=effect, engine=engine, **options
        )

    def _run(self, environ: Any, start: Any) -> Any:
        self.runs.append(dict(environ))
        return self.work(environ, start)

    def answer(self, environ: Any, start: Any) -> Any:
        start("201 Made", [("Location", "/1"), ("Content-Type", "text/plain")])
        return [environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))]

    def ask(self, body: bytes = b"one", response: Response | None = None, **environ: Any) -> Response:
        response = response or Response()
        whole: dict[str, Any] = {
            "REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "HTTP_IDEMPOTENCY_KEY": '"k1"',
            "QUERY_STRING": "", "SCRIPT_NAME": "",
            "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body), **environ,
        }  # fmt: skip
        setup_testing_defaults(whole)
        parts = self.app({name: value for name, value in whole.items() if value is not None}, response.start)
        response.body = b"".join(response.written) + b"".join(parts)
        if hasattr(parts, "close"):
            parts.close()
        return response


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def test_both_sides_keep_to_the_specification(engine: oncemore.Engine) -> None:
    world = World(engine)
    outer = validator(world.app)
    for replayed in (False, True):
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "CONTENT_LENGTH": "3",
            "wsgi.input": BytesIO(b"one"), "QUERY_STRING": "",
        }  # fmt: skip
        setup_testing_defaults(environ)
        response = Response()
        parts = outer(environ, response.start)
        assert b"".join(parts) == b"one"
        parts.close()  # type: ignore[attr-defined]
        assert response.status == ("201 Created" if replayed else "201 Made")
        assert (("idempotent-replayed", "true") in response.starts[0][1]) is replayed
    assert len(world.runs) == 1


def test_the_body_has_no_length_only_if_the_server_ends_it(engine: oncemore.Engine) -> None:
    world = World(engine, max_request=5)
    chunked = {"CONTENT_LENGTH": None, "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    assert world.ask(b"12345", **chunked).body == b"12345"
    assert world.ask(b"123456", HTTP_IDEMPOTENCY_KEY="k2", **chunked).problem == "request-too-large"
    # An open stream without a length could block for ever, so it counts as empty, as frameworks have it.
    endless = {**chunked, "wsgi.input_terminated": None}
    assert world.ask(b"12345", HTTP_IDEMPOTENCY_KEY="k3", **endless).body == b""
    assert len(world.runs) == 2
    assert all("HTTP_TRANSFER_ENCODING" not in run for run in world.runs)


def test_an_incomplete_body_is_not_begun(engine: oncemore.Engine) -> None:
    class Broken:
        def read(self, size: int) -> bytes:
            raise ConnectionResetError

    world = World(engine)
    assert world.ask(b"one", CONTENT_LENGTH="30").problem == "request-cut-off"
    assert world.ask(**{"wsgi.input": Broken()}).problem == "request-cut-off"
    assert world.runs == []


def test_a_path_is_the_same_as_that_of_asgi(engine: oncemore.Engine) -> None:
    paths: list[Any] = []
    world = World(engine, paths="/shop/ä*", fingerprint=lambda environ, body: paths.append(environ) or "f")
    raw = "/ä/1".encode().decode("latin-1")
    assert world.ask(SCRIPT_NAME="/shop", PATH_INFO=raw).status == "201 Made"
    assert world.ask(SCRIPT_NAME="/shop", PATH_INFO="/b", HTTP_IDEMPOTENCY_KEY=None).status == "201 Made"
    assert len(paths) == 1


def test_a_request_needs_a_key_and_an_undecided_response_is_not_stored(engine: oncemore.Engine) -> None:
    world = World(engine, optional="/free")
    assert world.ask(HTTP_IDEMPOTENCY_KEY=None).problem == "key-missing"
    assert world.ask(HTTP_IDEMPOTENCY_KEY="a b").problem == "key-malformed"
    assert world.ask(HTTP_IDEMPOTENCY_KEY=None, PATH_INFO="/free").status == "201 Made"

    def fail(environ: Any, start: Any) -> Any:
        start("503 Busy", [("Content-Type", "text/plain")])
        return [b"busy"]

    world.work = fail
    assert (world.ask().status, world.ask().body) == ("503 Busy", b"busy")
    world.work = world.answer
    assert world.ask().status == "201 Made"


def test_parts_can_be_written_and_iterables_are_closed(engine: oncemore.Engine) -> None:
    closed: list[str] = []

    class Parts(list[bytes]):
        def close(self) -> None:
            closed.append("closed")

    def work(environ: Any, start: Any) -> Any:
        write = start("200 OK", [("Content-Type", "text/plain")])
        write(b"a")
        return Parts([b"b", b"c"])

    world = World(engine)
    world.work = world.inner = work
    assert (world.ask().body, closed) == (b"abc", ["closed"])
    assert world.ask().body == b"abc"


def test_an_error_page_replaces_a_response_that_has_no_body_yet(engine: oncemore.Engine) -> None:
    def work(environ: Any, start: Any) -> Any:
        start("200 OK", [("Content-Type", "text/plain")])
        try:
            raise ValueError("late")
        except ValueError as error:
            start("404 Not Found", [("Content-Type", "text/plain")], (ValueError, error, error.__traceback__))
        yield b"page"

    def work_late(environ: Any, start: Any) -> Any:
        write = start("200 OK", [("Content-Type", "text/plain")])
        write(b"body")
        try:
            raise ValueError("too late")
        except ValueError as error:
            start("404 Not Found", [], (ValueError, error, error.__traceback__))

    world = World(engine)
    world.inner = work
    assert (world.ask().status, world.ask().body) == ("404 Not Found", b"page")
    world.inner = work_late
    with pytest.raises(ValueError, match="too late"):
        world.ask(HTTP_IDEMPOTENCY_KEY="k2")


def test_an_application_that_starts_no_response_is_not_a_result(engine: oncemore.Engine) -> None:
    world = World(engine)
    world.inner = lambda environ, start: []
    assert world.ask().problem == "no-answer"
    assert world.ask().status == "500 Internal Server Error"


def test_a_large_response_is_streamed_while_the_step_runs(engine: oncemore.Engine) -> None:
    seen: list[int] = []
    response = Response()

    def work(environ: Any, start: Any) -> Any:
        start("200 OK", [("Content-Type", "text/plain")])
        for _ in range(4):
            yield b"abc"
            seen.append(len(response.written))

    world = World(engine, max_response=5)
    world.inner = work
    assert world.ask(response=response).body == b"abcabcabcabc"
    assert seen == [0, 1, 2, 3]
    assert world.ask().problem == "answer-not-kept"


def test_a_client_that_is_gone_does_not_end_the_work(engine: oncemore.Engine) -> None:
    ended: list[str] = []

    def work(environ: Any, start: Any) -> Any:
        start("200 OK", [("Content-Type", "text/plain")])
        yield from (b"abc", b"def", b"ghi")
        ended.append("ended")

    world, response = World(engine, "once", max_response=2), Response()
    world.inner, response.breaks_after = work, 1
    world.ask(response=response)
    assert (response.written, ended) == ([b"abc"], ["ended"])
    assert world.ask().problem == "answer-not-kept"


def test_a_large_response_that_breaks_is_not_answered_twice(engine: oncemore.Engine) -> None:
    def work(environ: Any, start: Any) -> Any:
        start("200 OK", [("Content-Type", "text/plain")])
        yield b"abc"
        raise RuntimeError("broken")

    world, response = World(engine, max_response=2), Response()
    world.inner = work
    with pytest.raises(RuntimeError, match="broken"):
        world.ask(response=response)
    assert len(response.starts) == 1


def test_a_large_response_of_which_the_record_fails_is_not_answered_twice(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(environ: Any, start: Any) -> Any:
        start("200 OK", [("Content-Type", "text/plain")])
        yield b"abc"

        def fail(*told: Any) -> Any:
            raise oncemore.StoreError("the disk is full")

        monkeypatch.setattr(engine.store, "append", fail)

    world, response = World(engine, max_response=2), Response()
    world.inner = work
    world.ask(response=response)
    assert (len(response.starts), response.body) == (1, b"abc")


async def _async_function(*told: Any) -> Any:
    """An async function, which a blocking application cannot call."""


def test_async_functions_are_refused(engine: oncemore.Engine) -> None:
    with pytest.raises(oncemore.UsageError, match="principal is async; a blocking application takes a plain"):
        World(engine, principal=_async_function).ask()
    held = World(engine, "once", reconcile=_async_function)
    held.inner = lambda environ, start: []
    assert held.ask().problem == "outcome-unknown"
    assert held.ask().problem == "outcome-unknown"
    assert len(held.runs) == 0
