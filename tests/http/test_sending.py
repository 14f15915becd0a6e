"""Header fields, timeouts and connections of requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
import requests
import requests.adapters
import urllib3
from starlette.responses import PlainTextResponse

import oncemore
import oncemore.http
from oncemore.http.clients import CappedTimeouts
from tests.http.shop import serving
from tests.http.world import CLIENTS, NO_TLS, Answered, ok, scripted
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.testing import FakeClock

    Call = Callable[..., Answered]

busy = faults.answers(503)

# Inside a step --------------------------------------------------------------------------------------


def in_step(work: Callable[[], Any], effect: str = "idempotent", **options: Any) -> Any:
    """Run plain work inside a step."""

    @oncemore.step(effect=effect, name="pay", **options)  # type: ignore[arg-type]
    def pay(order: str) -> Any:
        return work()

    return pay("o-1"), pay.key("o-1")


def failing(call: Call, *told: Any, **more: Any) -> Answered:
    got = call(*told, **more)
    if got.error is not None:
        raise got.error
    if got.status >= 400:
        raise oncemore.TransientError(f"HTTP {got.status}")
    return got


@pytest.mark.req("MSG-9")
@pytest.mark.usefixtures("engine")
def test_all_attempts_of_a_step_send_one_key_which_is_not_the_steps_own(call: Call, clock: FakeClock) -> None:
    with scripted(faults.closes, busy, ok) as (url, log):
        _, key = in_step(lambda: failing(call, "POST", url, content=b"x").status)
    sent = {line.fields["idempotency-key"] for line in log}
    assert len(sent) == 1
    (one,) = sent
    assert (one[0], one[-1], len(one)) == ('"', '"', 38)
    assert one.strip('"').replace("-", "")[:8] not in key
    assert [line.fields["oncemore-attempt"] for line in log] == ["1", "2", "3"]


@pytest.mark.usefixtures("engine")
def test_each_request_of_a_step_has_its_own_key_the_same_in_every_attempt(clock: FakeClock) -> None:
    call = CLIENTS["httpx2"]

    def work() -> int:
        call("POST", f"{url}a", content=b"1")
        call("POST", f"{url}b", content=b"2")
        call("PATCH", f"{url}a", content=b"3")
        call("POST", f"{url}a", content=b"4")
        call("GET", f"{url}a")
        call("POST", f"{url}a", content=b"5", headers={"Idempotency-Key": "own"})
        if len(log) < 10:
            raise oncemore.TransientError("again")
        return 1

    with scripted(ok) as (url, log):
        in_step(work)
    keys = [line.fields.get("idempotency-key", "") for line in log]
    assert keys[:6] == keys[6:]
    assert len(set(keys[:4])) == 4
    assert keys[4:6] == ["", "own"]


@pytest.mark.usefixtures("engine")
def test_two_concurrent_requests_need_keys_of_their_own() -> None:
    async def both(named: bool) -> list[Any]:
        inner = httpx.AsyncHTTPTransport(verify=NO_TLS)
        transport = oncemore.http.AsyncTransport(inner)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            fields: list[dict[str, str]] = [
                {"Idempotency-Key": oncemore.http.idempotency_key(part)} if named else {} for part in "ab"
            ]
            posts = (client.post(url, content=b"x", headers=field) for field in fields)
            return await asyncio.gather(*posts, return_exceptions=True)

    @oncemore.step(effect="idempotent", name="pay both")
    async def pay(named: bool) -> list[str]:
        return [type(one).__name__ + str(one)[:80] for one in await both(named)]

    with scripted(ok) as (url, log):
        first, second = asyncio.run(pay(False))
        assert first.startswith("Response")
        assert second.startswith("UsageErrorpay both sends two requests with the same method and URL")
        assert len(log) == 1
        assert all(one.startswith("Response") for one in asyncio.run(pay(True)))
    assert len({line.fields["idempotency-key"] for line in log}) == 3


@pytest.mark.usefixtures("engine")
def test_idempotency_key_derives_a_key_from_parts() -> None:
    def work() -> list[str]:
        make = oncemore.http.idempotency_key
        return [make("a"), make("a"), make("b"), make("a", "b"), make("a", style="bare")]

    (a, again, b, ab, bare), _ = in_step(work)
    assert a == again == f'"{bare}"'
    assert len({a, b, ab}) == 3
    with pytest.raises(oncemore.UsageError, match="needs a surrounding @oncemore"):
        oncemore.http.idempotency_key("a")
    with pytest.raises(oncemore.PermanentFailure, match="takes strings"):
        in_step(lambda: oncemore.http.idempotency_key(7), bucket="hour")  # type: ignore[arg-type]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("effect", "mode", "times"),
    [("idempotent", "retry", 3), ("once", "retry", 1), ("once", "once", 1), ("idempotent", "once", 1)],
)
def test_the_key_of_a_once_step_allows_no_repeat(
    clock: FakeClock, effect: str, mode: str, times: int
) -> None:
    with scripted(busy) as (url, log):
        got, _ = in_step(
            lambda: CLIENTS["httpx"]("POST", url, {"retries_in_step": mode}, content=b"x").status, effect
        )
    assert (got, len(log)) == (503, times)
    assert all("idempotency-key" in line.fields for line in log)
    assert [line.fields["oncemore-attempt"] for line in log] == ["1", "2", "3"][:times]


@pytest.mark.usefixtures("engine")
def test_a_key_can_be_sent_bare() -> None:
    with scripted(ok) as (url, log):
        in_step(lambda: CLIENTS["requests"]("POST", url, {"key_style": "bare"}, data=b"x").status)
    assert '"' not in log[0].fields["idempotency-key"]


# Limits ---------------------------------------------------------------------------------------------


@pytest.mark.req("HTTP-7")
def test_no_timeout_exceeds_the_surrounding_deadline(call: Call) -> None:
    with scripted(faults.stalls) as (url, log):
        began = time.monotonic()
        with oncemore.context(deadline=time.time() + 0.15):
            got = call("GET", url, limit=30)
        took = time.monotonic() - began
    assert got.error is not None
    assert 0.1 < took < 2
    assert len(log) == 1


def test_total_timeout_limits_the_call_and_not_reading_the_body(call: Call) -> None:
    def drips(conn: Any, server: faults.Server) -> None:
        server.requests.append(faults.read_request(conn))
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfi")
        server.stopping.wait(0.3)
        conn.sendall(b"ne")

    with scripted(drips) as (url, _):
        got = call("GET", url, {"total_timeout": 0.2}, limit=5)
    if call is not CLIENTS["requests"]:  # there a socket keeps the limit that it was given
        assert (got.body, got.error) == (b"fine", None)
    with scripted(faults.stalls) as (url, log):
        began = time.monotonic()
        got = call("GET", url, {"total_timeout": 0.15}, limit=30)
        assert time.monotonic() - began < 2
    assert got.error is not None
    assert len(log) == 1


def test_a_deadline_that_has_passed_sends_nothing(call: Call) -> None:
    with scripted(ok) as (url, log), oncemore.context(deadline=1.0):
        got = call("GET", url)
    assert isinstance(got.error, oncemore.DeadlineExceeded)
    assert got.told is not None
    assert (got.told.attempts, log) == (0, [])


def test_the_surrounding_deadline_limits_reading_the_body() -> None:
    with (
        scripted(faults.stalls_in_body) as (url, _),
        httpx2.Client(transport=oncemore.http.Transport(httpx2.HTTPTransport(verify=NO_TLS))) as client,
        oncemore.context(deadline=time.time() + 0.2),
    ):
        began = time.monotonic()
        with pytest.raises(httpx2.ReadTimeout):
            client.get(url, timeout=30)
        assert time.monotonic() - began < 2


class Watched(requests.adapters.HTTPAdapter):
    """A transport that records its timeouts."""

    def send(self, *told: Any, **named: Any) -> Any:
        self.told = told[2]
        return super().send(*told, **named)


@pytest.mark.req("HTTP-7")
def test_a_request_without_a_timeout_gets_the_default() -> None:
    watched, limits = Watched(), {}
    with scripted(ok) as (url, _), requests.Session() as session:
        session.mount("http://", oncemore.http.Adapter(watched))
        for told in (None, 3.0, (1.0, None), urllib3.Timeout(connect=4, read=5, total=6)):
            session.get(url, timeout=told)  # type: ignore[arg-type]
            limits[str(told)] = (watched.told.connect_timeout, watched.told.read_timeout)
        with oncemore.context(deadline=time.time() + 2):
            session.get(url, timeout=urllib3.Timeout(connect=4, read=5, total=6))
    assert list(limits.values()) == [(30.0, 30.0), (3.0, 3.0), (1.0, 30.0), (4, 5)]
    assert watched.told.total <= 2
    seen: list[Any] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append({name: request.extensions["timeout"].get(name) for name in ("read", "pool", "other")})
        return httpx.Response(200)

    transport = oncemore.http.Transport(httpx.MockTransport(note), timeout=7)
    with httpx.Client(transport=transport, timeout=None) as client:  # noqa: S113
        client.get("http://example.org/")
        client.get("http://example.org/", timeout=2)
    assert seen == [{"read": 7.0, "pool": 7.0, "other": None}, {"read": 2, "pool": 2, "other": None}]


def test_a_timeout_is_capped_when_its_phase_begins(clock: FakeClock) -> None:
    limits = CappedTimeouts({"read": 5.0, "pool": None})
    assert (limits.get("read"), limits.get("pool"), limits.get("x", 1)) == (5.0, None, 1)
    limits.deadline = 3.0
    assert (limits.get("read"), limits.get("pool")) == (3.0, 3.0)
    clock.advance(2.5)
    assert limits.get("read") == 0.5
    clock.advance(9)
    assert limits.get("read") == 0.001


# Connections ----------------------------------------------------------------------------------------


def keeps_open(*statuses: int, size: int = 2) -> Any:
    """An application on a real server that records the connection of each request."""
    left, ports = list(statuses), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        ports.append(scope["client"][1])
        await PlainTextResponse("x" * size, left.pop(0) if left else 200)(scope, receive, send)

    return app, ports


@pytest.mark.parametrize("size", [2, 100_000], ids=["short", "long"])
def test_a_discarded_response_returns_its_connection(clock: FakeClock, size: int) -> None:
    """With a pool of one connection, a connection that is not returned would block the next attempt."""
    app, ports = keeps_open(503, 429, size=size)
    limits = {"max_connections": 1}
    with serving(app) as url:
        for module in (httpx, httpx2):
            inner = module.HTTPTransport(verify=NO_TLS, limits=module.Limits(**limits))
            with module.Client(transport=oncemore.http.Transport(inner), timeout=5) as client:
                assert client.get(url).status_code == 200
        inner = requests.adapters.HTTPAdapter(pool_connections=1, pool_maxsize=1, pool_block=True)
        with requests.Session() as session:
            session.mount("http://", oncemore.http.Adapter(inner))
            assert session.get(url, timeout=5).status_code == 200
    assert len(set(ports[:3])) == (1 if size == 2 else 3)


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_discarded_async_response_returns_its_connection(clock: FakeClock, module: Any) -> None:
    app, ports = keeps_open(503, 429)

    async def main(url: str) -> int:
        inner = module.AsyncHTTPTransport(verify=NO_TLS, limits=module.Limits(max_connections=1))
        async with module.AsyncClient(transport=oncemore.http.AsyncTransport(inner), timeout=5) as client:
            return int((await client.get(url)).status_code)

    with serving(app) as url:
        assert asyncio.run(main(url)) == 200
    assert (len(ports), len(set(ports))) == (3, 1)


def test_redirects_are_followed_as_before(call: Call, clock: FakeClock) -> None:
    moved = faults.answers(307, {"Location": "/there"})
    with scripted(moved, busy, ok) as (url, log):
        follow = {} if call is CLIENTS["requests"] else {"follow_redirects": True}
        assert call("PUT", f"{url}here", content=b"x", **follow).status == 200
    assert [(line.target, line.fields["oncemore-attempt"], line.body) for line in log] == [
        ("/here", "1", b"x"),
        ("/there", "1", b"x"),
        ("/there", "2", b"x"),
    ]


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_the_default_inner_transport_is_of_the_library_in_use(clock: FakeClock, module: Any) -> None:
    async def main() -> int:
        async with module.AsyncClient(transport=oncemore.http.AsyncTransport()) as client:
            assert client is not None
        async with module.AsyncClient(transport=oncemore.http.AsyncTransport()) as client:
            response = await client.get(url)
            assert isinstance(response, module.Response)
            return int(response.status_code)

    with scripted(busy, ok) as (url, log):
        transport = oncemore.http.Transport()
        with module.Client(transport=transport) as client:
            assert isinstance(client.get(url), module.Response)
        transport.close()
        oncemore.http.Transport().close()
        assert asyncio.run(main()) == 200
        asyncio.run(oncemore.http.AsyncTransport().aclose())
        asyncio.run(oncemore.http.AsyncTransport(module.AsyncHTTPTransport(verify=NO_TLS)).aclose())
    assert len(log) == 3


# What it is told ------------------------------------------------------------------------------------


def test_a_budget_can_be_per_host(clock: FakeClock) -> None:
    made: dict[str, oncemore.Budget] = {}

    def budget(host: str) -> oncemore.Budget:
        made[host] = oncemore.Budget(1, 0)
        return made[host]

    with scripted(busy) as (one, first), scripted(busy) as (other, second):
        transport = oncemore.http.Transport(httpx.HTTPTransport(verify=NO_TLS), budget=budget)
        with httpx.Client(transport=transport) as client:
            for url in (one, one, other):
                told = oncemore.http.retry_info(client.get(url))
                assert told is not None
                assert told.reason == "retry_budget_empty"
    assert (len(first), len(second)) == (3, 2)
    assert sorted(made) == sorted(url.removeprefix("http://").strip("/") for url in (one, other))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_breaker_of_a_failing_host_opens_and_other_hosts_are_not_affected(
    clock: FakeClock, method: str
) -> None:
    """A POST that is not sent again counts as well, so a client that only posts has a breaker."""
    made: dict[str, oncemore.Breaker] = {}

    def breaker(host: str) -> oncemore.Breaker:
        made[host] = oncemore.Breaker(host, failures=2, cooldown_s=60)
        return made[host]

    with scripted(busy, busy, busy, busy, ok) as (one, first), scripted(ok) as (other, second):
        transport = oncemore.http.Transport(
            httpx.HTTPTransport(verify=NO_TLS), breaker=breaker, attempts=2, wait=(0.1, 0.2)
        )
        with httpx.Client(transport=transport) as client:
            assert [client.request(method, one).status_code for _ in range(2)] == [503, 503]
            before = len(first)
            with pytest.raises(oncemore.CircuitOpen) as caught:
                client.request(method, one)
            told = oncemore.http.retry_info(caught.value)
            assert told is not None
            assert (told.attempts, len(first), client.get(other).status_code) == (0, before, 200)
            clock.advance(61)
            while (got := client.request(method, one)).status_code == 503:
                clock.advance(61)
            assert (got.status_code, len(second)) == (200, 1)
    assert sorted(one.state for one in made.values()) == ["CLOSED", "CLOSED"]


def test_an_async_client_has_breakers_too(clock: FakeClock) -> None:
    breaker = oncemore.Breaker("all", failures=1)
    with scripted(busy) as (url, log):
        assert CLIENTS["httpx2-async"]("GET", url, {"breaker": breaker, "attempts": 2}).status == 503
        got = CLIENTS["httpx2-async"]("GET", url, {"breaker": breaker})
    assert isinstance(got.error, oncemore.CircuitOpen)
    assert len(log) == 1
    with pytest.raises(oncemore.UsageError, match="breaker is 'name'; it takes a Breaker, or a function"):
        oncemore.http.Transport(breaker="name")  # type: ignore[arg-type]


def test_hosts_beyond_the_limit_are_dropped(clock: FakeClock) -> None:
    from oncemore.http.host_limits import MAX_HOSTS, PerHostLimits

    hosts = PerHostLimits("budget", lambda host: oncemore.Budget(), oncemore.Budget)
    first = hosts.for_host("h0")
    for number in range(MAX_HOSTS):
        assert hosts.for_host(f"h{number}") is hosts.for_host(f"h{number}")
    assert hosts.for_host("h0") is first
    hosts.for_host("one more")
    assert hosts.for_host("h0") is not first


def test_hooks_are_called_for_each_retry_and_the_end(call: Call, clock: FakeClock) -> None:
    heard: list[str] = []
    hooks: dict[str, Any] = {
        "on_retry": lambda report: heard.append(f"{report.name.partition(' ')[0]} {report.number}"),
        "on_give_up": lambda report: heard.append(report.decision.reason),
    }
    with scripted(busy) as (url, _):
        call("GET", url, {"attempts": 2, **hooks})
    assert heard == ["GET 1", "max_attempts_exceeded"]


def test_async_hooks_are_awaited(clock: FakeClock) -> None:
    heard = []

    async def hear(report: oncemore.RetryReport) -> None:
        await asyncio.sleep(0)
        heard.append(report.number)

    with scripted(busy, ok) as (url, _):
        assert CLIENTS["httpx-async"]("GET", url, {"on_retry": hear}).status == 200
        assert CLIENTS["httpx-async"]("GET", "http://127.0.0.1:1/", {"on_retry": hear, "attempts": 2}).error
    assert heard == [1, 1]


def test_retry_info_of_another_transport_is_none() -> None:
    assert [oncemore.http.retry_info(one) for one in (httpx.Response(200), ValueError(), None)] == [None] * 3


OWN: dict[str, Any] = {
    "httpx": lambda: oncemore.http.Transport(httpx.HTTPTransport(verify=NO_TLS, retries=2)),
    "httpx2, async": lambda: oncemore.http.AsyncTransport(
        httpx2.AsyncHTTPTransport(verify=NO_TLS, retries=2)
    ),
    "requests": lambda: oncemore.http.Adapter(requests.adapters.HTTPAdapter(max_retries=3)),
    "requests, by parts": lambda: oncemore.http.Adapter(
        requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(total=None, connect=2))
    ),
    "requests, endless": lambda: oncemore.http.Adapter(
        requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(total=None))
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_a_client_that_retries_by_itself_is_refused(case: str) -> None:
    with pytest.raises(oncemore.UsageError, match="retries of its own"):
        OWN[case]()


@pytest.mark.parametrize("retries", [0, False, urllib3.Retry(0), urllib3.Retry(False, redirect=5)])
def test_a_client_without_retries_is_accepted(retries: Any) -> None:
    oncemore.http.Adapter(requests.adapters.HTTPAdapter(max_retries=retries))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"retries": 3}, r"Transport\(\) has no retries=; it takes attempts"),
    "timeout": ({"timeout": 0}, "timeout is 0.0; it takes more than 0"),
    "retries_in_step": (
        {"retries_in_step": "never"},
        "retries_in_step is 'never'; the choices are once, retry",
    ),
    "key_style": ({"key_style": "'"}, 'key_style is "\'"; the choices are quoted, bare'),
    "idempotent": ({"idempotent": "POST"}, "idempotent is 'POST'; it takes methods"),
    "repeats, others": ({"idempotent": [7]}, r"idempotent is \[7\]; it takes methods"),
    "budget": ({"budget": 7}, "budget is 7; it takes a Budget, or a function that makes one"),
    "attempts": ({"attempts": 0}, "max_attempts"),
    "an async hook": ({"on_retry": asyncio.sleep}, "on_retry is an async function"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_options_are_refused(case: str) -> None:
    options, message = WRONG[case]
    with pytest.raises(oncemore.UsageError, match=message):
        oncemore.http.Transport(**options)


def test_bad_inner_transports_and_limits_are_refused() -> None:
    with pytest.raises(oncemore.UsageError, match="takes an inner transport with a method handle_request"):
        oncemore.http.Transport(httpx.AsyncHTTPTransport(verify=NO_TLS))
    with pytest.raises(oncemore.PolicyWarning, match="no jitter"):
        oncemore.http.Transport(wait=1)
    transport = oncemore.http.Transport(
        httpx.MockTransport(lambda request: httpx.Response(503)), budget=lambda host: 7
    )  # type: ignore[arg-type,return-value]
    with (
        httpx.Client(transport=transport) as client,
        pytest.raises(oncemore.UsageError, match="budget returned 7"),
    ):
        client.get("http://example.org/")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        oncemore.http.Nothing  # noqa: B018
    assert "Transport" in dir(oncemore.http)


def test_a_missing_requests_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests.adapters", None)
    with pytest.raises(oncemore.MissingExtra, match="pip install requests"):
        oncemore.http.Adapter()


def test_a_transport_loads_no_other_library() -> None:
    code = (
        "import sys; before = {name.partition('.')[0] for name in sys.modules}; import oncemore.http; "
        "oncemore.http.Transport(); oncemore.http.AsyncTransport(); "
        "after = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(after - before - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "['oncemore']\n"
