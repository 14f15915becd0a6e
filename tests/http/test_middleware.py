"""The middleware without a server: protocol details and bad options."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
import oncemore.http
from oncemore.http.endpoint import ApplicationRefused
from oncemore.http.key_scope import parse_key
from oncemore.http.middleware import AsgiExchange
from oncemore.http.problems import error_response
from oncemore.http.stored_response import ResponseRecorder, response_to_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

KEYED = ((b"idempotency-key", b'"k1"'),)


class World:
    """An application, a client, and the messages of both."""

    def __init__(self, engine: oncemore.Engine, effect: str = "idempotent", **options: Any) -> None:
        self.runs: list[dict[str, Any]] = []
        self.work: Callable[..., Awaitable[None]] = self._answers
        options.setdefault("principal", oncemore.http.same_principal)
        self.app = oncemore.http.IdempotencyMiddleware(self._app, effect=effect, engine=engine, **options)  # type: ignore[arg-type]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs.append(scope)
        await self.work(scope, receive, send)

    async def _answers(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        if scope["type"] == "http":
            body = (await receive())["body"]
        await send(
            {
                "type": "http.response.start",
                "status": 201,
                "headers": [(b"Location", b"/1"), (b"X-Own", b"1")],
            }
        )
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        await send({"type": "http.response.body", "body": body[1:]})

    async def ask(
        self, body: bytes = b"one", headers: Any = KEYED, send: Any = None, **scope: Any
    ) -> list[Any]:
        """Send a request in two parts; return the messages of the response."""
        told: list[Any] = []
        parts = iter([(body[:1], True), (body[1:], False)])

        async def receive() -> Any:
            part, more = next(parts)
            return {"type": "http.request", "body": part, "more_body": more}

        async def keep(message: Any) -> None:
            told.append(message)

        whole = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": headers}
        await self.app({**whole, **scope}, receive, send or keep)
        return told


def status(told: list[Any]) -> tuple[int, str]:
    start, body = told
    fields = dict(start["headers"])
    if fields[b"content-type"] != b"application/problem+json":
        return start["status"], ""
    return start["status"], json.loads(body["body"])["type"].rpartition(":")[2]


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


@pytest.mark.parametrize("run", [asyncio.run, trio.run], ids=["asyncio", "trio"])
def test_it_runs_wherever_a_server_runs(engine: oncemore.Engine, run: Any) -> None:
    world = World(engine)

    async def main() -> None:
        first, again = await world.ask(), await world.ask()
        assert [part["body"] for part in (first[1], again[1])] == [b"one", b"one"]
        assert again[0]["headers"] == [
            (b"location", b"/1"),
            (b"x-own", b"1"),
            (b"idempotent-replayed", b"true"),
        ]

    run(main) if run is trio.run else run(main())
    assert len(world.runs) == 1


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_server_that_cancels_the_request_does_not_stop_the_work(engine: oncemore.Engine, kind: str) -> None:
    world = World(engine, "once")

    async def main_asyncio() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await go_on.wait()
            await world._answers(scope, receive, send)

        world.work = slow
        task = asyncio.create_task(world.ask())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert status(await world.ask()) == (409, "in-progress")
        go_on.set()
        for _ in range(1000):
            told = await world.ask()
            if told[0]["status"] != 409:
                break
            await asyncio.sleep(0.001)
        assert told[0]["status"] == 201

    async def main_trio() -> None:
        async def slow(scope: Any, receive: Any, send: Any) -> None:
            scopes[0].cancel()
            await trio.sleep(0.01)
            await world._answers(scope, receive, send)

        world.work, scopes = slow, []
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await world.ask()
        assert (await world.ask())[0]["status"] == 201

    asyncio.run(main_asyncio()) if kind == "asyncio" else trio.run(main_trio)
    assert len(world.runs) == 1


def test_shutdown_waits_for_requests_in_progress(engine: oncemore.Engine) -> None:
    world = World(engine)

    async def main() -> None:
        begun, go_on, order = asyncio.Event(), asyncio.Event(), []

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                assert (await receive())["type"] == "lifespan.startup"
                assert (await receive())["type"] == "lifespan.shutdown"
                order.append("the application may close")
                return
            begun.set()
            await go_on.wait()
            order.append("work is over")
            await world._answers(scope, receive, send)

        world.work = slow
        task = asyncio.create_task(world.ask())
        await begun.wait()
        task.cancel()
        messages = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> Any:
            return {"type": next(messages)}

        closing = asyncio.create_task(world.app({"type": "lifespan"}, receive, receive))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert order == []
        go_on.set()
        await closing
        assert order == ["work is over", "the application may close"]

    asyncio.run(main())


def test_shutdown_without_requests_in_progress_does_not_wait(engine: oncemore.Engine) -> None:
    world = World(engine)

    async def end(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    world.work = end

    async def receive() -> Any:
        return {"type": "lifespan.shutdown"}

    asyncio.run(world.app({"type": "lifespan"}, receive, receive))  # type: ignore[arg-type]


def test_other_connections_pass_through(engine: oncemore.Engine) -> None:
    world = World(engine)
    scope = {"type": "websocket", "path": "/orders"}
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    asyncio.run(world.app(scope, send, send))  # type: ignore[arg-type]
    assert world.runs == [scope]
    assert len(told) == 3


def test_the_application_does_not_learn_of_a_disconnect(engine: oncemore.Engine) -> None:
    world = World(engine)

    async def listens(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.02)
        await world._answers({"type": "x"}, receive, send)

    world.work = listens
    assert len(asyncio.run(world.ask())) == 2


def test_the_application_does_not_learn_of_a_disconnect_on_trio(engine: oncemore.Engine) -> None:
    world = World(engine)

    async def listens(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        with trio.move_on_after(0.02) as waiting:
            await receive()
        assert waiting.cancelled_caught
        await world._answers({"type": "x"}, receive, send)

    world.work = listens
    assert len(trio.run(world.ask)) == 2


def test_one_request_has_one_attempt(engine: oncemore.Engine) -> None:
    world = World(engine, "once")
    asked: list[Any] = []

    async def turned_away(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope)
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body", "body": b"deferred"})

    async def main() -> bytes:
        async def send(message: Any) -> None:
            raise AssertionError("the recorded response is small")

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        exchange = AsgiExchange(scope, send, send, set())  # type: ignore[arg-type]
        exchange.recorder = ResponseRecorder(9, frozenset())
        for _ in range(2):
            with pytest.raises(ApplicationRefused):
                await world.app._run_request_async("k1", "POST /", "f", exchange)
        return exchange.recorder.body

    world.work = turned_away
    assert asyncio.run(main()) == b"deferred"
    assert len(asked) == 1


def test_a_usage_error_is_raised_and_not_a_response() -> None:
    with pytest.raises(oncemore.UsageError, match="mine"):
        error_response(oncemore.UsageError("mine"))


def test_an_error_of_send_does_not_end_the_work(engine: oncemore.Engine) -> None:
    world = World(engine, max_response=2)
    calls = []

    async def broken(message: Any) -> None:
        calls.append(message)
        raise OSError("gone")

    asyncio.run(world.ask(send=broken))
    assert len(calls) == 1
    assert status(asyncio.run(world.ask())) == (409, "answer-not-kept")
    assert len(world.runs) == 1


def test_extensions_are_hidden_and_changes_of_the_scope_are_kept(
    engine: oncemore.Engine,
) -> None:
    world = World(engine)

    async def leaves(scope: Any, receive: Any, send: Any) -> None:
        assert scope["extensions"] == {}
        scope["endpoint"] = "orders"
        await send({"type": "http.response.pathsend", "path": "/etc/passwd"})
        await world._answers(scope, receive, send)

    world.work = leaves
    scope = {
        "type": "http", "method": "POST", "path": "/orders", "headers": KEYED,
        "extensions": {"http.response.pathsend": {}},
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        """A client that does not read the response."""

    asyncio.run(world.app(scope, receive, send))
    assert scope["endpoint"] == "orders"
    assert list(scope["extensions"]) == ["http.response.pathsend"]


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_an_application_without_a_response_is_not_a_result(engine: oncemore.Engine, effect: str) -> None:
    world = World(engine, effect)

    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"ha", "more_body": True})

    world.work = half
    expected = (409, "outcome-unknown") if effect == "once" else (500, "no-answer")
    assert status(asyncio.run(world.ask())) == expected
    world.work = world._answers
    again = asyncio.run(world.ask())
    assert again[0]["status"] == (409 if effect == "once" else 201)


def test_a_broken_large_response_is_not_answered_twice(
    engine: oncemore.Engine,
) -> None:
    world = World(engine, max_response=1)

    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ha", "more_body": True})

    world.work = half
    told = asyncio.run(world.ask())
    assert [message["type"] for message in told] == ["http.response.start", "http.response.body"]


def test_an_unreachable_store_gets_503(engine: oncemore.Engine, tmp_path: Any) -> None:
    (tmp_path / "log.db").write_text("this is no database, and it is long enough to be looked at\n" * 99)
    with oncemore.open(tmp_path / "log.db") as broken:
        world = World(broken)
        told = asyncio.run(world.ask())
    assert status(told) == (503, "no-record")
    assert dict(told[0]["headers"])[b"retry-after"] == b"1"
    assert world.runs == []


def test_principal_may_be_async(engine: oncemore.Engine) -> None:
    async def who(scope: Any) -> str:
        await asyncio.sleep(0)
        return scope["headers"][-1][1].decode()

    world = World(engine, principal=who)
    for user in (b"a", b"b", b"a"):
        asyncio.run(world.ask(headers=(*KEYED, (b"x-user", user))))
    assert len(world.runs) == 2
    wrong = World(engine, principal=lambda scope: 7)
    with pytest.raises(oncemore.UsageError, match="principal returned 7"):
        asyncio.run(wrong.ask())


def test_the_fingerprint_can_be_a_function(engine: oncemore.Engine) -> None:
    world = World(engine, fingerprint=lambda scope, body: body[:1].hex())
    asyncio.run(world.ask(b"one"))
    assert asyncio.run(world.ask(b"other"))[1]["body"] == b"one"
    assert status(asyncio.run(world.ask(b"two"))) == (422, "key-reused")


def test_header_fields_can_be_unstored(engine: oncemore.Engine) -> None:
    world = World(engine, unstored_headers=("x-own",))
    first, again = asyncio.run(world.ask()), asyncio.run(world.ask())
    assert (b"X-Own", b"1") in first[0]["headers"]
    assert [name for name, _ in again[0]["headers"]] == [b"location", b"idempotent-replayed"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no effect there is": ({"effect": "maybe"}, "effect is 'maybe'; the choices are pure"),
    "nobody who says who asks": ({"principal": "anna"}, "principal takes a function of the request"),
    "server_errors": ({"server_errors": True}, "server_errors is True; the choices are rerun, keep"),
    "not_applied": ({"not_applied": (503,)}, "not_applied is for effect='once'"),
    "reconcile": ({"effect": "once", "reconcile": 7}, "reconcile is 7; it takes a function"),
    "max_request": ({"max_request": 0}, "max_request is 0; it takes 1 to"),
    "max_response": ({"max_response": True}, "max_response is True; it takes 1 to"),
    "paths": ({"paths": (7,)}, "take patterns such as"),
    "expires_after": ({"expires_after": "1d"}, "expires_after is '1d'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_options_are_refused(engine: oncemore.Engine, case: str) -> None:
    options, message = WRONG[case]
    with pytest.raises(oncemore.UsageError, match=message):
        World(engine, **options)


def test_reconcile_must_return_a_stored_response(engine: oncemore.Engine) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("fire")

    for given, left in (
        (oncemore.applied("text"), 409),
        (oncemore.unknown(), 409),
        (oncemore.not_applied(), 201),
    ):
        world = World(engine, "once", reconcile=lambda key, who, given=given: given, name=f"n{given}")
        world.work = fails
        with pytest.raises(RuntimeError):
            asyncio.run(world.ask())
        world.work = world._answers
        assert len(world.runs) == 1
        assert asyncio.run(world.ask())[0]["status"] == left
        assert len(world.runs) == (2 if left == 201 else 1)
    with pytest.raises(oncemore.UsageError, match="status from 100 to 599"):
        response_to_record(oncemore.http.StoredResponse(99))


READ = {
    '"abc"': "abc",
    "abc": "abc",
    '  "a b"  ': "a b",
    '"a\\"b\\\\"': 'a"b\\',
    '"a";x="1"': "a",
    "8e03978e-40d5-43dd-bc93-6894a57f9324": "8e03978e-40d5-43dd-bc93-6894a57f9324",
    "~" * 255: "~" * 255,
}


@pytest.mark.parametrize("text", READ)
def test_quoted_and_bare_keys_are_parsed(text: str) -> None:
    assert parse_key([text.encode()]) == READ[text]


MALFORMED = [
    "",
    '"',
    '""',
    '"a',
    '"a"b',
    '"a" "b"',
    '"a\\',
    '"a\\n"',
    "a b",
    "a,b",
    "a;b",
    'a"',
    "x" * 256,
    "ä",
    '"\t"',
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_key_raises_a_text_for_the_client(text: str) -> None:
    with pytest.raises(ValueError, match="Idempotency-Key"):
        parse_key([text.encode("latin-1")])
    assert parse_key([]) is None
