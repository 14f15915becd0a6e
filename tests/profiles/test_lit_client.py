"""CoreClient against real servers: its requests, their times, and the result for the caller."""

from __future__ import annotations

import errno
import json
import logging
import pickle
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from email.utils import formatdate
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import pytest

import oncemore
from oncemore.classifiers.classify import classify
from oncemore.demo.core_server import LOST, STALLED, CoreServer
from oncemore.policy import files
from oncemore.profiles import lit
from oncemore.profiles.lit import (
    CoreClient,
    CoreClientError,
    CoreClientHTTPError,
    ExhaustionAlert,
    Persistence,
    context,
)
from oncemore.profiles.lit import policy as lit_policy
from oncemore.telemetry import JsonLogFormatter
from tests.servers.faults import (
    Behaviour,
    Server,
    answers,
    closes,
    cuts,
    cuts_chunks,
    refusing,
    resets,
    resets_in_body,
    serve,
    stalls,
    stalls_in_body,
    talks_nonsense,
)

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from oncemore.testing import FakeClock

GOOD = answers(200, body=b'{"score": 7}')


def in_turn(*behaviours: Behaviour, at: list[float] | None = None) -> Behaviour:
    """One behaviour after another, the last one repeated; `at` receives the times of the requests."""
    left = list(behaviours)

    def behave(conn: socket.socket, server: Server) -> None:
        if at is not None:
            at.append(time.monotonic())
        (left.pop(0) if len(left) > 1 else left[0])(conn, server)

    return behave


def client(server: Server, **told: Any) -> CoreClient:
    return CoreClient(server.url, counter=ExhaustionAlert(), **{"timeout_s": 5, **told})


def header(request: bytes, name: str) -> str | None:
    for line in request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        field, _, value = line.partition(": ")
        if field.lower() == name.lower():
            return value
    return None


# Numbers -------------------------------------------------------------------------------------------


@pytest.mark.req("HTTP-1")
def test_a_server_that_fails_once_gets_two_requests_a_quarter_second_apart() -> None:
    at: list[float] = []
    with serve(in_turn(answers(500), GOOD, at=at)) as server:
        assert client(server).call("/v1/analyze", {"document": "d-9"}) == {"score": 7}
        assert len(server.requests) == 2
    assert 0.25 <= at[1] - at[0] < 1.5


@pytest.mark.req("HTTP-1")
def test_a_new_client_has_the_numbers_of_the_profile() -> None:
    policy = CoreClient("http://localhost").policy
    assert policy == files.profile("lit").policy()
    assert (policy.max_attempts, policy.schedule.base, policy.timeout_s) == (2, 0.25, 30.0)
    assert lit_policy.MINIMUMS == {"retry_attempts": 1, "retry_backoff_seconds": 0.0}
    text = (files.file_reader.PROFILES_FOLDER / "lit.yaml").read_text(encoding="utf-8")
    assert "minimums:" in text
    for name, least in lit_policy.MINIMUMS.items():
        assert f"\n  {name}: {least}\n" in text


def test_waits_grow_by_the_attempt(clock: FakeClock) -> None:
    with serve(answers(500)) as server, pytest.raises(CoreClientHTTPError):
        client(server, retry_attempts=4).get("/")
    assert clock.delays == [0.25, 0.5, 0.75]
    with serve(answers(500)) as server, pytest.raises(CoreClientHTTPError):
        client(server, retry_attempts=3, retry_backoff_seconds=1).get("/")
    assert clock.delays[3:] == [1.0, 2.0]


@pytest.mark.req("HTTP-2")
def test_attempts_are_requests_and_not_repeats() -> None:
    with serve(answers(500)) as server, pytest.raises(CoreClientHTTPError):
        client(server, retry_attempts=1).get("/")
    assert len(server.requests) == 1


@pytest.mark.req("BACKOFF-21")
def test_settings_below_their_minimum_are_raised_with_one_warning_each(clock: FakeClock) -> None:
    with serve(answers(500)) as server:
        with pytest.warns(oncemore.PolicyWarning, match="retry_attempts is 0; raised to its") as caught:
            core = client(server, retry_attempts=0)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        with pytest.raises(CoreClientHTTPError):
            core.get("/")
        assert len(server.requests) == 1
        with pytest.warns(oncemore.PolicyWarning, match="retry_backoff_seconds is -1; raised") as caught:
            core = client(server, retry_backoff_seconds=-1)
        assert len(caught) == 1
        with pytest.raises(CoreClientHTTPError):
            core.get("/")
        assert len(server.requests) == 3
    assert clock.delays == []


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"retry_attempts": 1.5}, "retry_attempts is 1.5; it takes a whole number"),
        ({"retry_attempts": True}, "retry_attempts is True"),
        ({"retry_backoff_seconds": "1"}, "retry_backoff_seconds is '1'; it takes a finite number of seconds"),
        ({"retry_backoff_seconds": 31}, "retry_backoff_seconds is 31; it must not be above the cap, 30"),
        ({"timeout_s": 0}, "timeout_s is 0.0; it must be more than 0"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        (
            {"headers": {"X-A": "one\r\nX-B: two"}},
            "X-A is 'one\\\\r\\\\nX-B: two'; it takes 1 to 200 printable",
        ),
        ({"base_url": "ftp://core"}, "base_url is 'ftp://core'; it takes http:// or https:// and a host"),
        ({"base_url": "http://core?x=1"}, "no query"),
        ({"base_url": "http://core:x"}, "base_url is 'http://core:x': "),
        ({"base_url": "http://me:secret@core"}, "base_url holds a user name; give headers="),
        ({"base_url": None}, "base_url is None; it takes a text"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(told: dict[str, Any], fault: str) -> None:
    with pytest.raises(oncemore.UsageError, match=fault):
        CoreClient(**{"base_url": "http://core", **told})


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"method": "TRACE"}, "method is 'TRACE'; it takes DELETE, GET, PUT, PATCH, POST"),
        ({"path": "v1/x"}, "path is 'v1/x'; it begins with / and is quoted already"),
        ({"path": "/a b"}, "path is '/a b'"),
        ({"path": "/a\r\nHost: b"}, "it begins with /"),
        ({"payload": {"x": float("nan")}}, "the payload cannot be written as JSON"),
        ({"payload": object()}, "the payload cannot be written as JSON"),
        ({"idempotency_key": 'a"b'}, "idempotency_key holds a quote"),
        ({"idempotency_key": ""}, "idempotency_key is ''"),
        ({"request_id": "a\nb"}, "request_id is"),
        ({"session_id": " s"}, "session_id is ' s'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_sent(told: dict[str, Any], fault: str) -> None:
    with serve(GOOD) as server:
        with pytest.raises(oncemore.UsageError, match=fault):
            client(server).request(**{"method": "POST", "path": "/", **told})
        assert server.requests == []


def test_retries_can_be_switched_off_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_RETRY", "off")
    with serve(answers(500)) as server, pytest.raises(CoreClientHTTPError):
        client(server).get("/")
    assert len(server.requests) == 1


# What is tried again -------------------------------------------------------------------------------


@pytest.mark.req("HTTP-3")
@pytest.mark.parametrize(
    "fault",
    [closes, resets, cuts, cuts_chunks, resets_in_body, stalls, stalls_in_body, talks_nonsense,
     answers(500), answers(502), answers(507), answers(599)],
    ids=("closes", "resets", "cuts", "cuts-chunks", "resets-in-body", "stalls", "stalls-in-body", "nonsense",
         "500", "502", "507", "599"),
)  # fmt: skip
def test_a_fault_of_the_transport_leads_to_a_second_request(fault: Behaviour, clock: FakeClock) -> None:
    with serve(in_turn(fault, GOOD)) as server:
        core = client(server, timeout_s=1.0)
        assert core.get("/") == {"score": 7}
        assert [header(request, "Oncemore-Attempt") for request in server.requests] == ["1", "2"]
    assert clock.delays == [0.25]
    assert (core.counter.operations, core.counter.exhausted) == (1, 0)


@pytest.mark.req("HTTP-3")
def test_a_refused_connection_is_tried_again(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    with refusing() as server, pytest.raises(CoreClientError, match="in 2 requests") as caught:
        client(server).get("/")
    assert clock.delays == [0.25]
    assert not isinstance(caught.value, CoreClientHTTPError)


@pytest.mark.req("HTTP-3")
def test_every_address_that_urllib_cannot_reach_is_tried_again(clock: FakeClock) -> None:
    with pytest.raises(CoreClientError, match="URLError"):
        CoreClient("http://nowhere.invalid", counter=ExhaustionAlert(), timeout_s=5).get("/")
    assert clock.delays == [0.25]


@pytest.mark.req("HTTP-3")
@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EMFILE])
def test_every_urlerror_that_may_pass_is_covered(number: int) -> None:
    policy, error = CoreClient("http://core").policy, URLError(OSError(number, "no"))
    assert lit_policy.is_repeatable(error, classify(error, 0.0), policy)
    wrong = URLError("unknown url type: core")
    assert not lit_policy.is_repeatable(wrong, classify(wrong, 0.0), policy)


@pytest.mark.req("HTTP-4")
@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 422, 425, 429])
def test_4xx_is_raised_after_one_request(status: int, clock: FakeClock) -> None:
    with serve(answers(status, body=b'{"detail": "no such finding"}')) as server:
        core = client(server)
        with pytest.raises(CoreClientHTTPError) as caught:
            core.get("/v1/findings/99")
        assert len(server.requests) == 1
    assert (caught.value.status_code, caught.value.detail) == (status, "no such finding")
    assert clock.delays == []
    assert core.counter.exhausted == 0


@pytest.mark.req("HTTP-5")
@pytest.mark.parametrize(
    "body", [b"<html>busy</html>", b"", b'{"a":', b'{"a": NaN}', b"\xff\xfe", b"[" * 99_999]
)
def test_a_response_that_is_not_json_is_raised_after_one_request(body: bytes, clock: FakeClock) -> None:
    with serve(answers(200, {"Content-Type": "text/html"}, body)) as server:
        with pytest.raises(CoreClientError, match="that are not JSON") as caught:
            client(server).get("/")
        assert len(server.requests) == 1
    assert type(caught.value) is CoreClientError
    assert clock.delays == []


def test_a_response_without_content_is_none() -> None:
    with serve(answers(204, body=b"")) as server:
        assert client(server).request("DELETE", "/v1/notes/1") is None


def test_an_endless_response_is_ended_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.profiles.lit.http.MAX_BYTES", 1000)
    with serve(answers(200, body=b"[" + b"1," * 70_000 + b"1]")) as server:
        with pytest.raises(CoreClientError, match="more than 1000 bytes"):
            client(server).get("/")
        assert len(server.requests) == 1


def test_a_redirect_is_not_followed() -> None:
    with serve(GOOD) as other, serve(answers(302, {"Location": other.url})) as server:
        with pytest.raises(CoreClientHTTPError, match=f"302: redirects to {other.url}, which is not"):
            client(server, headers={"Authorization": "Bearer x"}).post("/v1/notes", {})
        assert (len(server.requests), other.requests) == (1, [])


# What its caller gets ------------------------------------------------------------------------------


@pytest.mark.req("HTTP-6")
def test_two_503_are_an_http_error_with_the_servers_detail(clock: FakeClock) -> None:
    with serve(answers(503, body=b'{"detail": "overloaded"}')) as server:
        with pytest.raises(CoreClientHTTPError) as caught:
            client(server).call("/v1/analyze", {})
        assert len(server.requests) == 2
    error = caught.value
    assert (error.status_code, error.detail, error.retry_after) == (503, "overloaded", None)
    assert repr(error) == "CoreClientHTTPError(503, 'overloaded')"
    assert repr(pickle.loads(pickle.dumps(error))) == repr(error)  # noqa: S301 - our own
    assert oncemore.get_decision(error).reason == "max_attempts_exceeded"  # type: ignore[union-attr]


@pytest.mark.req("HTTP-6")
def test_two_timeouts_are_a_client_error_with_the_cause() -> None:
    with serve(stalls) as server:
        with pytest.raises(CoreClientError, match="no answer in 2 requests; the last ended with") as caught:
            client(server, timeout_s=0.1, retry_backoff_seconds=0).get("/v1/slow?token=secret")
        server.wait_for(2)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert not isinstance(caught.value, CoreClientHTTPError)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"detail": "a"}', "a"),
        (b'{"message": "b"}', "b"),
        (b'{"error": "c"}', "c"),
        (b'{"title": "d"}', "d"),
        (b'{"detail": [1]}', '{"detail": [1]}'),
        (b"[1]", "[1]"),
        (b"plain words", "plain words"),
        (b"", "Because"),
        (b'{"detail": "token=abc123"}', "token=***"),
    ],
)
def test_the_error_has_the_detail_of_the_server(body: bytes, detail: str) -> None:
    with serve(answers(404, body=body)) as server, pytest.raises(CoreClientHTTPError) as caught:
        client(server).get("/")
    assert caught.value.detail == detail


def test_an_error_response_with_a_cut_body_keeps_its_status() -> None:
    def breaks(conn: socket.socket, server: Server) -> None:
        server.requests.append(conn.recv(65536))
        conn.sendall(b"HTTP/1.1 404 Gone Away\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n0123")

    with serve(breaks) as server, pytest.raises(CoreClientHTTPError) as caught:
        client(server).get("/")
    assert (caught.value.status_code, caught.value.detail) == (404, "Gone Away")


def test_its_errors_are_final_for_a_retry_around_it(clock: FakeClock) -> None:
    with serve(answers(503)) as server:
        core = client(server)
        with pytest.raises(CoreClientHTTPError):
            oncemore.retrying(core.get, on="transient", attempts=5)("/")
        assert len(server.requests) == 2


@pytest.mark.req("HTTP-7")
@pytest.mark.parametrize("fault", ["stalls", "drips"])
def test_a_stalled_server_ends_in_a_timeout(fault: str) -> None:
    def drips(conn: socket.socket, server: Server) -> None:
        conn.recv(65536)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not server.stopping.wait(0.05):
            conn.sendall(b" ")

    with serve(stalls if fault == "stalls" else drips) as server:
        began = time.monotonic()
        with pytest.raises(CoreClientError) as caught:
            client(server, timeout_s=0.3, retry_attempts=1).get("/")
        took = time.monotonic() - began
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert 0.25 < took < 2


@pytest.mark.req("HTTP-7")
def test_every_request_has_a_limit_unless_given_otherwise() -> None:
    assert CoreClient("http://core").policy.timeout_s == 30.0


# Delivery ------------------------------------------------------------------------------------------


@pytest.mark.req("MSG-9", "HTTP-8")
def test_a_request_whose_response_was_lost_is_repeated_as_attempt_2() -> None:
    with CoreServer() as core:
        core.queue_faults("POST /v1/analyze", LOST)
        answer = CoreClient(core.url, counter=ExhaustionAlert()).call(
            "/v1/analyze", {"document": "d-9"}, request_id="r-17"
        )
        assert answer["of"] == {"document": "d-9"}
        seen = core.requests_for("POST /v1/analyze")
    assert [(visit.ending, visit.attempt, visit.request_id) for visit in seen] == [
        ("lost", "1", "r-17"),
        ("200", "2", "r-17"),
    ]


@pytest.mark.req("HTTP-8")
def test_the_docstring_of_each_method_states_its_delivery() -> None:
    methods = [CoreClient.get, CoreClient.call, CoreClient.post, CoreClient.request, lit.CoreSession.state]
    methods += [
        lit.CoreSession.accept,
        lit.CoreSession.reject,
        lit.CoreSession.advance,
        lit.CoreSession.discuss,
    ]
    for method in methods:
        assert any(word in (method.__doc__ or "").lower() for word in ("at least once", "sent once")), method
    assert "at least once" in (CoreClient.__doc__ or "")


@pytest.mark.req("HTTP-11")
@pytest.mark.parametrize(
    ("method", "told", "requests"),
    [
        ("POST", {}, 1),
        ("PATCH", {}, 1),
        ("POST", {"idempotent": True}, 2),
        ("GET", {}, 2),
        ("PUT", {}, 2),
        ("DELETE", {}, 2),
        ("PUT", {"idempotent": False}, 1),
    ],
)
@pytest.mark.parametrize(
    "fault",
    [stalls, resets, answers(503), answers(501)],  # a 501 was not acted on, but it was sent
    ids=["times-out", "reset", "503", "501"],
)
def test_an_undeclared_request_is_sent_once(
    method: str,
    told: dict[str, Any],
    requests: int,
    fault: Behaviour,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serve(fault) as server:
        core = client(server, timeout_s=0.5)
        with pytest.raises(CoreClientError):
            core.request(method, "/v1/notes", {"text": "x"}, **told)
        server.wait_for(requests)
        assert len(server.requests) == requests
    assert core.counter.exhausted == (requests == 2)
    how = "exhausted" if requests == 2 else "failed, and is not sent again,"
    assert f"{method} /v1/notes: {how} after {requests} attempt" in caplog.text


@pytest.mark.req("HTTP-11")
def test_contract_calls_are_declared_and_posts_are_not(clock: FakeClock) -> None:
    with serve(resets) as server:
        core = client(server)
        with pytest.raises(CoreClientError):
            core.call("/v1/analyze", {})
        assert len(server.requests) == 2
        with pytest.raises(CoreClientError):
            core.post("/v1/notes", {})
        assert len(server.requests) == 3
        with pytest.raises(CoreClientError):
            core.post("/v1/notes", {}, idempotent=True)
        assert len(server.requests) == 5


def test_an_undeclared_post_is_repeated_if_nothing_was_sent(clock: FakeClock) -> None:
    with refusing() as server, pytest.raises(CoreClientError, match="2 requests"):
        client(server).post("/v1/notes", {})
    assert clock.delays == [0.25]


# Waiting as asked ----------------------------------------------------------------------------------


@pytest.mark.req("HTTP-13")
def test_the_retry_after_of_core_is_obeyed() -> None:
    at: list[float] = []
    with serve(in_turn(answers(503, {"Retry-After": "2"}), GOOD, at=at)) as server:
        assert client(server).get("/") == {"score": 7}
    assert 2 <= at[1] - at[0] < 4


@pytest.mark.req("HTTP-13")
def test_retry_after_is_obeyed_in_both_forms_and_on_every_5xx(clock: FakeClock) -> None:
    with serve(in_turn(answers(507, {"Retry-After": "3"}), GOOD)) as server:
        client(server).get("/")
    date = formatdate(clock.wall() + 12, usegmt=True)
    with serve(in_turn(answers(503, {"Retry-After": date}), GOOD)) as server:
        client(server).get("/")
    assert clock.delays == [3.0, 12.0]


@pytest.mark.req("HTTP-13")
@pytest.mark.parametrize(("asked", "requests"), [("30", 2), ("31", 1), ("120", 1)])
def test_a_retry_after_above_the_cap_is_raised_at_once(
    asked: str, requests: int, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(answers(503, {"Retry-After": asked})) as server:
        core = client(server)
        with pytest.raises(CoreClientHTTPError) as caught:
            core.get("/")
        assert len(server.requests) == requests
    assert clock.delays == ([30.0] if requests == 2 else [])
    assert caught.value.retry_after == float(asked)
    deferred = requests == 1  # there are attempts left: Core puts the operation off
    assert (core.counter.operations, core.counter.exhausted) == (1, int(not deferred))
    assert core.counter.total_deferred == int(deferred)
    how = f"deferred: Core asks for {asked} s without requests," if deferred else "exhausted"
    assert f"GET /: {how} after {requests} attempt" in caplog.text


def test_an_operation_whose_deadline_comes_first_is_not_exhausted(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(answers(503)) as server:
        core = client(server)
        ask = oncemore.retry(on=OSError, total_timeout=0.2)(lambda: core.get("/"))
        with pytest.raises(CoreClientHTTPError):
            ask()
        assert len(server.requests) == 1
    assert (core.counter.exhausted, core.counter.total_deferred) == (0, 0)
    assert "GET /: failed, and is not sent again, after 1 attempt" in caplog.text


@pytest.mark.req("HTTP-13")
def test_the_retry_after_of_a_429_is_on_the_error() -> None:
    with serve(answers(429, {"Retry-After": "7"})) as server, pytest.raises(CoreClientHTTPError) as caught:
        client(server).get("/")
    assert caught.value.retry_after == 7.0
    assert len(server.requests) == 1


# Logs ----------------------------------------------------------------------------------------------


@pytest.mark.req("HTTP-12")
def test_exhaustion_is_logged_with_its_ids(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncemore.lit")
    with serve(answers(503, body=b'{"detail": "overloaded"}')) as server:
        core = client(server)
        with context(request_id="r-17", session_id="s-4"), pytest.raises(CoreClientHTTPError):
            core.call("/v1/analyze?token=hush", {})
        assert header(server.requests[1], "X-Request-ID") == "r-17"
        assert header(server.requests[1], "X-Session-ID") == "s-4"
    (line,) = [one for one in caplog.records if one.name == "oncemore.lit"]
    assert line.getMessage() == (
        "POST /v1/analyze: exhausted after 2 attempts; request=r-17 session=s-4; "
        "CoreClientHTTPError(503, 'overloaded')"
    )
    told = vars(line)
    assert {name: told[f"oncemore_{name}"] for name in
            ("method", "path", "attempts", "request_id", "session_id", "error", "error_class", "reason")} == {
        "method": "POST", "path": "/v1/analyze", "attempts": 2, "request_id": "r-17", "session_id": "s-4",
        "error": "CoreClientHTTPError(503, 'overloaded')", "error_class": "HTTP_503",
        "reason": "max_attempts_exceeded",
    }  # fmt: skip
    assert (core.counter.operations, core.counter.exhausted, core.counter.rate) == (1, 1, 1.0)


@pytest.mark.req("TELEM-14")
def test_every_line_is_json_and_exhaustion_and_locks_have_all_three_ids(
    clock: FakeClock, tmp_path: Path
) -> None:
    text, errors = StringIO(), [ConnectionError("refused")]
    handler, log = logging.StreamHandler(text), logging.getLogger("oncemore")
    handler.setFormatter(JsonLogFormatter())

    @oncemore.step(effect="idempotent", name="shop.charge")
    def charge() -> int:
        if errors:
            raise errors.pop()
        return 7

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE finding (id TEXT)")

    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with (
            serve(answers(503)) as server,
            closing(sqlite3.connect(tmp_path / "lit.db")) as mine,
            closing(sqlite3.connect(tmp_path / "lit.db", isolation_level=None)) as theirs,
            oncemore.context(correlation_id="c-9"),
            context(request_id="r-17", session_id="s-4"),
        ):
            with pytest.raises(CoreClientHTTPError):
                client(server).call("/v1/analyze", {})
            theirs.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError):
                Persistence(mine, counter=ExhaustionAlert()).write(write)
            with oncemore.open("memory:"):
                charge()
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    steps = [line for line in lines if line["logger"] == "oncemore.steps"]
    assert [(line["event"], line["attempt"]) for line in steps] == [
        ("RunStarted", 1), ("AttemptStarted", 1), ("AttemptFailed", 1), ("AttemptStarted", 2),
        ("RunCompleted", 2),
    ]  # fmt: skip
    assert {line["correlation_id"] for line in steps} == {"c-9"}
    ended = [line for line in lines if line["logger"] == "oncemore.lit"]
    kinds = ["exhausted" if "exhausted" in line["message"] else "lock" for line in ended]
    assert kinds == ["exhausted", "lock", "lock", "lock", "exhausted"]
    for line in ended:
        ids = [line[name] for name in ("request_id", "session_id", "correlation_id")]
        assert ids == ["r-17", "s-4", "c-9"]


def test_a_permanent_failure_is_not_an_exhaustion(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    with serve(answers(404)) as server, pytest.raises(CoreClientHTTPError):
        client(server).get("/")
    assert [one for one in caplog.records if one.name == "oncemore.lit"] == []


def test_ids_come_from_the_call_the_context_or_are_new() -> None:
    with serve(GOOD) as server:
        core = client(server)
        with context(request_id="outer", session_id="s-1"):
            core.get("/", request_id="own")
            with context(session_id="s-2"):
                core.get("/")
        with oncemore.context(correlation_id="c-1"):
            core.get("/")
        core.get("/")
        core.get("/")
    ids = [(header(one, "X-Request-ID"), header(one, "X-Session-ID")) for one in server.requests]
    assert ids[:3] == [("own", "s-1"), ("outer", "s-2"), ("c-1", None)]
    new = {request for request, _ in ids[3:]}
    assert len(new) == 2
    assert all(request and len(request) == 36 for request in new)


def test_requests_are_json_with_the_headers_of_the_client() -> None:
    with serve(GOOD) as server:
        core = client(server, headers={"Authorization": "Bearer abc"})
        core.request("PUT", "/v1/notes/1", {"text": "ä"})
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /v1/notes/1 HTTP/1.1")
    assert json.loads(body) == {"text": "ä"}
    assert header(server.requests[0], "Content-Type") == "application/json"
    assert header(server.requests[0], "Authorization") == "Bearer abc"
    assert repr(core) == f"<CoreClient {server.url.rstrip('/')}>"


# Answers by key ------------------------------------------------------------------------------------


def numbered() -> Behaviour:
    """A server with a model behind it: every response differs."""

    def behave(conn: socket.socket, server: Server) -> None:
        answers(200, body=b'{"answer": %d}' % (len(server.requests) + 1))(conn, server)

    return behave


@pytest.mark.req("HTTP-14")
def test_the_first_successful_response_of_a_key_is_returned_from_then_on(tmp_path: Path) -> None:
    with serve(in_turn(answers(500), numbered())) as server:
        with oncemore.open(tmp_path / "log.db"):
            core = client(server, retry_backoff_seconds=0)
            assert core.call("/v1/analyze", {"d": 1}, idempotency_key="k-1") == {"answer": 2}
            assert core.call("/v1/analyze", {"d": 1}, idempotency_key="k-1") == {"answer": 2}
        with oncemore.open(tmp_path / "log.db"):  # another process has the same log and no other memory
            assert client(server).call("/v1/analyze", {"d": 1}, idempotency_key="k-1") == {"answer": 2}
            assert client(server).call("/v1/analyze", {"d": 1}, idempotency_key="k-2") == {"answer": 3}
            assert client(server).call("/v1/analyze", {"d": 1}) == {"answer": 4}
            with pytest.raises(oncemore.KeyConflict) as conflict:
                client(server).call("/v1/analyze", {"d": 2}, idempotency_key="k-1")
            assert str(conflict.value) == (
                "POST /v1/analyze: the idempotency_key 'k-1' belongs to another request (another method, "
                "path or payload); give this request an idempotency_key of its own"
            )
            assert conflict.value.run is not None
    sent = [(header(one, "Idempotency-Key"), header(one, "Oncemore-Attempt")) for one in server.requests]
    assert sent == [('"k-1"', "1"), ('"k-1"', "2"), ('"k-2"', "1"), (None, "1")]


@pytest.mark.req("HTTP-14", "HTTP-11")
def test_a_key_makes_a_post_repeatable_and_a_failure_is_not_kept(clock: FakeClock) -> None:
    with serve(in_turn(resets, resets, answers(404), GOOD)) as server, oncemore.open("memory:") as engine:
        core = client(server, engine=engine)
        with pytest.raises(CoreClientError, match="in 2 requests"):
            core.post("/v1/notes", {"text": "x"}, idempotency_key="k")
        with pytest.raises(CoreClientHTTPError, match="404"):
            core.post("/v1/notes", {"text": "x"}, idempotency_key="k")
        assert core.post("/v1/notes", {"text": "x"}, idempotency_key="k") == {"score": 7}
        assert core.post("/v1/notes", {"text": "x"}, idempotency_key="k") == {"score": 7}
        assert len(server.requests) == 4
    numbers = [int(header(one, "Oncemore-Attempt") or 0) for one in server.requests]
    assert all(one < other for one, other in pairwise(numbers))


def test_a_key_belongs_to_one_core(tmp_path: Path) -> None:
    with serve(numbered()) as one, serve(GOOD) as other, oncemore.open("memory:"):
        assert client(one).get("/") == {"answer": 1}
        assert client(one).call("/", {}, idempotency_key="k") == {"answer": 2}
        assert client(other).call("/", {}, idempotency_key="k") == {"score": 7}


def test_a_call_without_time_left_raises_a_client_error() -> None:
    with serve(GOOD) as server, oncemore.open("memory:"):
        core = client(server)
        with (
            oncemore.context(deadline=1.0),
            pytest.raises(CoreClientError, match="deadline has passed") as caught,
        ):
            core.call("/", {}, idempotency_key="k")
        assert isinstance(caught.value.__cause__, oncemore.DeadlineExceeded)
        assert server.requests == []


VICTIM = """
import sys, oncemore
from oncemore.profiles.lit import CoreClient

with oncemore.open(sys.argv[2]):
    CoreClient(sys.argv[1]).call("/v1/analyze", {"document": "d-9"}, idempotency_key="k-1")
"""


@pytest.mark.req("HTTP-14")
def test_the_key_of_a_killed_process_is_continued(tmp_path: Path) -> None:
    with CoreServer() as core:
        core.queue_faults("POST /v1/analyze", STALLED)
        log = tmp_path / "log.db"
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, core.url, str(log)])
        try:
            until = time.monotonic() + 30
            while not core.visits:
                assert time.monotonic() < until, "the request never came"
                time.sleep(0.01)
        finally:
            victim.kill()
            victim.wait(10)
        with oncemore.open(log):
            again = CoreClient(core.url, counter=ExhaustionAlert())
            answer = again.call("/v1/analyze", {"document": "d-9"}, idempotency_key="k-1")
            assert again.call("/v1/analyze", {"document": "d-9"}, idempotency_key="k-1") == answer
        first, second = core.requests_for("POST /v1/analyze")
    assert (first.ending, second.ending, first.attempt) == ("stalled", "200", "1")
    assert int(second.attempt) > 1  # so that Core knows that it may have seen it before


@pytest.mark.req("HTTP-14")
def test_concurrent_callers_of_one_key_get_one_response() -> None:
    with serve(numbered()) as server, oncemore.open("memory:") as engine:
        core = client(server, engine=engine)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(core.call, "/v1/analyze", {}, idempotency_key="k") for _ in range(8)]
            found = [one.result(30) for one in asked]
        assert found == [{"answer": 1}] * 8
        assert len(server.requests) == 1
