"""Repeated requests to an endpoint, with real servers, real clients, and a record of the effects.

Every test runs with each kind of application: ASGI, WSGI, Django in threads, and Django on an event loop.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

import oncemore
import oncemore.http
from tests.http.shop import FRONTS, Shop, make_app, serve_lifespan, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.testing import FakeClock


class Counter:
    """A served shop, and requests to it."""

    def __init__(self, shop: Shop, url: str, client: httpx2.Client, number: str) -> None:
        self.shop, self.url, self.client, self.number = shop, url, client, number

    def __call__(
        self, key: str | None = "k1", body: bytes = b"one", path: str = "/orders", **more: Any
    ) -> httpx2.Response:
        headers = {"X-User": more.pop("user", "anna"), "X-Shop": self.number}
        if key is not None:
            headers["Idempotency-Key"] = f'"{key}"'
        if path in ("/fails", "/plain"):  # the server hangs up after an application's error: let it
            headers["Connection"] = "close"
        method = more.pop("method", "POST")
        return self.client.request(method, self.url + path, content=body, headers=headers, **more)

    @property
    def lines(self) -> list[str]:
        return self.shop.book.lines


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


class Street:
    """One server for many shops of one kind, because starting a server takes longer than the tests."""

    def __init__(self, front: str) -> None:
        self.front, self.is_async = front, FRONTS[front]
        self.shops: list[Any] = []

    def __call__(self, request: Any, *server: Any) -> Any:
        if not self.is_async:
            return self.shops[int(request.get("HTTP_X_SHOP", "-1"))](request, *server)
        if request["type"] == "lifespan":
            return serve_lifespan(*server)
        return self.shops[int(dict(request["headers"]).get(b"x-shop", b"-1"))](request, *server)


@pytest.fixture(scope="module", params=FRONTS)
def street(request: pytest.FixtureRequest) -> Iterator[tuple[Street, str, httpx2.Client]]:
    street = Street(request.param)
    with (
        serving(street, is_async=street.is_async) as url,
        httpx2.Client(trust_env=False, timeout=10, verify=False) as client,
    ):
        yield street, url, client


@pytest.fixture
def opened(
    engine: oncemore.Engine, tmp_path: Path, street: tuple[Street, str, httpx2.Client]
) -> Callable[..., Counter]:
    """Serve a shop on the engine of the test."""
    there, url, client = street

    def open_shop(effect: str = "idempotent", **options: Any) -> Counter:
        shop = Shop(tmp_path / f"book{len(there.shops)}.txt")
        there.shops.append(make_app(there.front, shop, effect=effect, engine=engine, **options))
        return Counter(shop, url, client, str(len(there.shops) - 1))

    return open_shop


def problem(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == answer.status_code
    assert told["title"]
    assert told["detail"]
    return answer.status_code, told["type"].removeprefix("urn:oncemore:idempotency:")


def test_a_repeat_gets_the_same_response_byte_for_byte(opened: Callable[..., Counter]) -> None:
    post = opened()
    first, again = post(), post()
    assert (first.status_code, first.content, post.lines) == (201, b'{"order":1}', ["POST one"])
    assert (again.status_code, again.content) == (first.status_code, first.content)
    kept = {
        name: value for name, value in first.headers.items() if name not in ("date", "set-cookie", "server")
    }
    others = {name: value for name, value in again.headers.items() if name not in ("date", "server")}
    assert others == {**kept, "idempotent-replayed": "true"}
    assert kept["x-request"] == "é"
    assert "secret-1" in first.headers["set-cookie"]


def test_another_key_is_another_request(opened: Callable[..., Counter]) -> None:
    post = opened()
    assert [post("k1").json(), post("k2").json()] == [{"order": 1}, {"order": 2}]


def test_a_client_never_gets_the_response_of_another_principal(opened: Callable[..., Counter]) -> None:
    post = opened()
    assert post(user="anna").json() == {"order": 1}
    assert post(user="bert").json() == {"order": 2}
    assert post(user="bert", body=b"other").status_code == 422
    assert post(user="a" * 5000).json() == {"order": 3}
    assert post(user="a" * 4999 + "b").json() == {"order": 4}
    assert post(user="a" * 5000).json() == {"order": 3}


def test_a_key_that_belongs_to_another_request_is_refused(opened: Callable[..., Counter]) -> None:
    post = opened()
    post()
    changes: list[dict[str, Any]] = [{"body": b"two"}, {"path": "/orders?x=1"}, {"method": "PATCH"}]
    for change in changes:
        assert problem(post(**change)) == (422, "key-reused"), change
    assert post.lines == ["POST one"]


KEYS = {
    "empty": '""', "bare and empty": "", "too long": f'"{"k" * 256}"', "not closed": '"abc',
    "two": '"a", "b"',
    "a list": "a,b", "not ASCII": '"ä"', "a wrong escape": '"a\\b"',
}  # fmt: skip


def test_a_malformed_key_is_refused(opened: Callable[..., Counter]) -> None:
    post = opened()
    for case, key in KEYS.items():
        got = post.client.post(f"{post.url}/orders", headers={"Idempotency-Key": key.encode()})
        assert problem(got) == (400, "key-malformed"), case
    twice = post.client.post(
        f"{post.url}/orders", headers=[("Idempotency-Key", "a"), ("idempotency-key", "b")]
    )
    assert problem(twice) == (400, "key-malformed")
    assert post.lines == []


def test_a_missing_key_is_refused_where_it_is_needed_and_only_there(opened: Callable[..., Counter]) -> None:
    post = opened(optional="/pl*", paths=("/orders", "/plain"))
    assert problem(post(None)) == (400, "key-missing")
    assert post(None, user="nobody").status_code == 201
    assert post(None, method="PUT").status_code == 201
    assert post(None, path="/stream?count=1&size=1").status_code == 200
    assert post(None, path="/plain").status_code == 500  # it asks for its attempt, and there is none
    assert post("k", path="/plain").status_code == 200
    assert post.lines == ["POST one", "PUT one", "stream 1 1", "http 1"]


def test_quoted_and_bare_keys_are_one(opened: Callable[..., Counter]) -> None:
    post = opened()
    post("k1")
    for value in ("k1", '"k1"; a=1', '"k1";a'):
        got = post.client.post(f"{post.url}/orders", content=b"one", headers={"Idempotency-Key": value})
        assert got.status_code == 201, value
    assert post.lines == ["POST one"]


def test_of_two_concurrent_requests_one_runs_and_the_other_gets_409(opened: Callable[..., Counter]) -> None:
    post = opened()
    post.shop.go_on.clear()
    answers: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: answers.append(post()))
    thread.start()
    assert post.shop.entered.wait(10)
    got = post()
    assert problem(got) == (409, "in-progress")
    assert got.headers["retry-after"] == "1"
    assert problem(post(body=b"other")) == (422, "key-reused")
    post.shop.go_on.set()
    thread.join(10)
    assert answers[0].content == post().content == b'{"order":1}'
    assert post.lines == ["POST one"]


def test_of_many_concurrent_requests_one_runs_and_all_get_its_response(
    opened: Callable[..., Counter],
) -> None:
    post = opened("once")

    def until_answered(_: int) -> bytes:
        for _ in range(500):
            got = post()
            if got.status_code != 409:
                return got.content
            time.sleep(0.01)
        raise AssertionError("no answer")

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(until_answered, range(16))) == {b'{"order":1}'}
    assert post.lines == ["POST one"]


def test_an_undecided_response_is_sent_and_not_stored(opened: Callable[..., Counter]) -> None:
    post = opened()
    for done, status in enumerate((500, 503, 429, 401, 403, 408)):
        post.shop.statuses, key = [status], f"k{status}"
        first, again = post(key), post(key)
        assert (first.status_code, first.json()) == (status, {"order": 2 * done + 1})
        assert "set-cookie" in first.headers
        assert (again.status_code, again.json()) == (201, {"order": 2 * done + 2})


def test_a_final_response_is_stored(opened: Callable[..., Counter]) -> None:
    post = opened()
    for done, status in enumerate((200, 303, 400, 404, 409, 422, 501), 1):
        post.shop.statuses, key = [status], f"k{status}"
        assert [post(key).status_code, post(key).status_code, len(post.lines)] == [status, status, done]


def test_server_errors_can_be_stored(opened: Callable[..., Counter]) -> None:
    post = opened("once", server_errors="keep")
    post.shop.statuses = [500]
    assert [post().status_code, post().status_code, len(post.lines)] == [500, 500, 1]


def test_after_a_server_error_a_once_request_is_held(opened: Callable[..., Counter]) -> None:
    post = opened("once")
    post.shop.statuses = [500]
    assert post().status_code == 500
    got = post()
    assert problem(got) == (409, "outcome-unknown")
    assert "retry-after" not in got.headers
    assert got.json()["run"]
    assert post.lines == ["POST one"]


def test_a_once_request_runs_again_after_a_response_without_effect(
    opened: Callable[..., Counter], engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = engine.store.now()
    monkeypatch.setattr(engine.store, "now", lambda: now)  # it waits for a second, which may pass meanwhile
    post = opened("once", not_applied=(503,), attempts=2)
    for status in (429, 503):
        post.shop.statuses = [status]
        assert post(f"k{status}").status_code == status
        got = post(f"k{status}")
        assert problem(got) == (503, "not-yet")
        assert got.headers["retry-after"] == "1"
    clock.advance(1.1)
    assert (post("k429").status_code, len(post.lines)) == (201, 3)
    post.shop.statuses = [429]
    assert post("k503").status_code == 429
    assert problem(post("k503")) == (409, "given-up")
    assert len(post.lines) == 4


def test_an_exception_of_the_application_is_raised_and_a_repeat_runs_again(
    opened: Callable[..., Counter],
) -> None:
    post = opened()
    assert [post(path="/fails").status_code, post(path="/fails").status_code] == [500, 500]
    assert post.lines == ["fails", "fails"]
    held = opened("once", name="held")
    assert held("k", path="/fails").status_code == 500
    assert problem(held("k", path="/fails")) == (409, "outcome-unknown")
    assert held.lines == ["fails"]


def test_reconcile_settles_an_unknown_outcome(
    opened: Callable[..., Counter], street: tuple[Street, str, httpx2.Client]
) -> None:
    asked = []

    def reconcile(key: str, principal: str) -> Any:
        asked.append((key, principal))
        return oncemore.applied(oncemore.http.StoredResponse(201, b"found", {"Location": "/orders/7"}))

    async def reconcile_async(key: str, principal: str) -> Any:
        return reconcile(key, principal)

    post = opened("once", reconcile=reconcile_async if street[0].is_async else reconcile)
    assert post(path="/fails").status_code == 500
    got = post(path="/fails")
    assert (got.status_code, got.content, got.headers["location"]) == (201, b"found", "/orders/7")
    assert (asked, post.lines) == ([("k1", "anna")], ["fails"])


def test_the_application_can_ask_for_its_attempt_also_in_a_thread(opened: Callable[..., Counter]) -> None:
    post = opened()
    assert [post(path="/plain").text, post(path="/plain").text] == ["attempt 1", "attempt 1"]
    assert post.lines == ["http 1"]


def test_a_streamed_response_is_stored_up_to_the_limit(opened: Callable[..., Counter]) -> None:
    post = opened(max_response=1000)
    first, again = post(path="/stream?count=10&size=100"), post(path="/stream?count=10&size=100")
    assert first.content == again.content
    assert len(first.content) == 1000
    large = post("k2", path="/stream?count=11&size=100")
    assert (large.status_code, len(large.content)) == (200, 1100)
    got = post("k2", path="/stream?count=11&size=100")
    assert problem(got) == (409, "answer-not-kept")
    assert got.json()["first_status"] == "200"
    assert post.lines == ["stream 10 100", "stream 11 100"]


def test_a_response_too_large_for_the_log_is_stored_as_an_artifact(opened: Callable[..., Counter]) -> None:
    post = opened()
    first, again = (post(path="/stream?count=10&size=60000") for _ in range(2))
    assert (len(first.content), first.content == again.content) == (600_000, True)
    assert again.headers["idempotent-replayed"] == "true"


def test_a_request_that_is_too_large_is_refused_and_nothing_is_begun(opened: Callable[..., Counter]) -> None:
    post = opened(max_request=1000)
    assert problem(post(body=b"x" * 1001)) == (413, "request-too-large")
    assert post("k2", body=b"x" * 1000).status_code == 201


def raw(url: str, request: bytes) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    line = socket.create_connection((host, int(port)), 10)
    line.sendall(request)
    return line


def test_a_disconnected_client_gets_its_stored_response_later(
    opened: Callable[..., Counter],
) -> None:
    post = opened("once")
    post.shop.go_on.clear()
    fields = b"Host: x\r\nX-User: anna\r\nIdempotency-Key: k1\r\nContent-Length: 3\r\n\r\n"
    head = b"POST /orders HTTP/1.1\r\n" + fields
    with raw(post.url, head + b"one"):
        assert post.shop.entered.wait(10)
    time.sleep(0.05)
    post.shop.go_on.set()
    until = time.monotonic() + 10
    while (got := post()).status_code == 409:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (got.status_code, got.headers["idempotent-replayed"], post.lines) == (201, "true", ["POST one"])


def test_an_incomplete_request_is_not_begun(opened: Callable[..., Counter]) -> None:
    post = opened("once")
    head = b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\nContent-Length: 30\r\n\r\n"
    raw(post.url, head + b"two").close()
    time.sleep(0.05)
    assert post().status_code == 201
    assert post.lines == ["POST one"]


def test_an_expired_key_is_refused(
    opened: Callable[..., Counter], engine: oncemore.Engine, clock: FakeClock
) -> None:
    post = opened(expires_after=7200)
    post()
    clock.advance(7000)
    engine.prune()
    assert post().headers["idempotent-replayed"] == "true"
    clock.advance(300)
    engine.prune()
    assert problem(post()) == (410, "key-expired")
    assert post.lines == ["POST one"]
