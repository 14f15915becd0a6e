"""The sinks: a webhook on a real server that fails in every way, and a file that is never half written."""

from __future__ import annotations

import fcntl
import json
import os
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trustme

import oncemore
from oncemore.messaging import sinks
from oncemore.outbox import DeliveryStats, EventMessage, JsonLinesSink, OutboxRelay, WebhookSink
from tests.messaging.outbox.consumer import Shop, open_shop, takes_and
from tests.messaging.outbox.simulation import POLICY, events, give
from tests.servers import faults

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

MESSAGE = EventMessage("0" * 32, "topic", {"a": "ü"}, "c-1", "", 1000.5, "1" * 32, 1000, 3)
in_memory = pytest.mark.parametrize("engine", ["memory"], indirect=True)


def only(engine: oncemore.Engine) -> Any:
    (event,) = events(engine).values()
    return event


# Webhooks -------------------------------------------------------------------------------------------


def test_a_webhook_posts_json_with_the_id_and_the_attempt_beside_it() -> None:
    with open_shop() as shop:
        WebhookSink(shop.url + "?a=1", headers={"Authorization": "Bearer x"})(MESSAGE)
    (got,) = shop.received
    assert got["line"] == "POST /hook?a=1 HTTP/1.1"
    assert got["bytes"] == MESSAGE.to_json()
    headers = got["headers"]
    assert (headers["oncemore-id"], headers["oncemore-attempt"]) == ("0" * 32, "3")
    assert (headers["content-type"], headers["authorization"]) == ("application/json", "Bearer x")
    assert headers["user-agent"].startswith("oncemore/")


def test_a_webhook_uses_tls_and_refuses_an_unknown_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    with faults.serve(faults.answers(200), server) as shop:
        WebhookSink(shop.url, tls=client)(MESSAGE)
        with pytest.raises(ssl.SSLCertVerificationError):
            WebhookSink(shop.url)(MESSAGE)
    assert len(shop.requests) == 1


@in_memory
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_response_means_delivered(engine: oncemore.Engine, status: int) -> None:
    give("a", ["x"])
    with faults.serve(faults.answers(status)) as server:
        assert OutboxRelay(engine, {"*": WebhookSink(server.url)}).run_once() == DeliveryStats(delivered=1)


@in_memory
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 501, 301, 307])
def test_a_refusal_is_dead_at_once(engine: oncemore.Engine, status: int) -> None:
    give("a", ["x"])
    with faults.serve(faults.answers(status, {"Location": "/elsewhere"})) as server:
        relay = OutboxRelay(engine, {"*": WebhookSink(server.url)})
        assert relay.run_once() == DeliveryStats(dead=1)
        assert len(server.requests) == 1, "a redirect is not followed"
    (letter,) = relay.dead_letters()
    assert (letter.reason, letter.error["code"]) == ("not_retryable", f"HTTP_{status}")


@in_memory
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_transient_failure_is_sent_again_with_the_next_attempt_number(
    engine: oncemore.Engine, clock: FakeClock, status: int
) -> None:
    give("a", ["x"])
    with open_shop(faults.answers(status)) as shop:
        relay = OutboxRelay(engine, {"*": WebhookSink(shop.url)}, policy=POLICY)
        assert relay.run_once() == DeliveryStats(failed=1, waiting=1)
        clock.advance(5.0)
        assert relay.run_once() == DeliveryStats(delivered=1)
        assert shop.attempts == [2]


@in_memory
def test_retry_after_is_a_floor_also_beyond_the_cap(engine: oncemore.Engine, clock: FakeClock) -> None:
    give("a", ["x"])
    asks = [faults.answers(503, {"Retry-After": "20"}), faults.answers(429, {"Retry-After": "7200"})]
    with open_shop(*asks) as shop:
        relay = OutboxRelay(engine, {"*": WebhookSink(shop.url)}, policy=POLICY)
        for wait in (20.0, 7200.0):
            assert relay.run_once().failed == 1
            assert 0 < only(engine).not_before - engine.now() <= wait
            clock.advance(wait - 10.0)
            assert relay.run_once() == DeliveryStats(waiting=1)
            clock.advance(10.0)
        assert relay.run_once() == DeliveryStats(delivered=1)


BROKEN = {
    "closes": faults.closes,
    "resets": faults.resets,
    "stalls": faults.stalls,
    "nonsense": faults.talks_nonsense,
    "reads nothing": faults.reads_nothing,
}


@in_memory
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_connection_is_retried(engine: oncemore.Engine, clock: FakeClock, fault: str) -> None:
    give("a", ["x"])
    with open_shop(BROKEN[fault]) as shop:
        relay = OutboxRelay(engine, {"*": WebhookSink(shop.url, timeout=1.0)}, policy=POLICY)
        assert relay.run_once() == DeliveryStats(failed=1, waiting=1)
        clock.advance(5.0)
        assert relay.run_once() == DeliveryStats(delivered=1)
        assert len(shop.applied) == 1


@in_memory
def test_a_refused_webhook_connection_is_retried(engine: oncemore.Engine) -> None:
    give("a", ["x"])
    with faults.refusing() as server:
        assert OutboxRelay(engine, {"*": WebhookSink(server.url)}, policy=POLICY).run_once().failed == 1
    assert only(engine).reason == "retry"


@in_memory
@pytest.mark.parametrize(
    "fault", [faults.cuts, faults.stalls_in_body, faults.resets_in_body], ids=lambda f: f.__name__
)
def test_the_status_counts_even_if_the_body_of_the_response_breaks(
    engine: oncemore.Engine, fault: Any
) -> None:
    give("a", ["x"])
    with faults.serve(fault) as server:
        assert OutboxRelay(engine, {"*": WebhookSink(server.url, timeout=1.0)}).run_once() == DeliveryStats(
            delivered=1
        )


@in_memory
def test_a_consumer_that_does_not_respond_gets_the_event_again_and_applies_it_once(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["x"])
    with open_shop() as shop:
        shop.says.append(takes_and(faults.resets)(shop))
        relay = OutboxRelay(engine, {"*": WebhookSink(shop.url)}, policy=POLICY)
        assert relay.run_once().failed == 1
        shop_has(shop, 1)
        clock.advance(5.0)
        assert relay.run_once() == DeliveryStats(delivered=1)
        assert shop.attempts == [1, 2]
        assert len({one["bytes"] for one in shop.received}) == 1
        assert len(shop.applied) == 1


def shop_has(shop: Shop, count: int) -> None:
    ends = threading.Event()
    for _ in range(1000):
        if len(shop.received) >= count:
            return
        ends.wait(0.005)
    raise AssertionError(f"{len(shop.received)} of {count} came")


def test_a_slow_response_is_cut_off_at_the_total_timeout() -> None:
    def drips(conn: Any, server: faults.Server) -> None:
        server.requests.append(faults.read_request(conn))
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
            conn.sendall(bytes([byte]))
            if server.stopping.wait(0.05):
                return

    before = threading.active_count()
    with faults.serve(drips) as server, pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        WebhookSink(server.url, timeout=0.3)(MESSAGE)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/", {}),
        ("host/path", {}),
        ("http:///path", {}),
        ("http://user:secret@host/", {}),
        ("http://host/", {"timeout": 0}),
        ("http://host/", {"timeout": True}),
        ("http://host/", {"timeout": 10_000}),
        ("http://host/", {"headers": {"A": "b\r\nC: d"}}),
        ("http://host/", {"headers": {"A": 1}}),
        ("http://host/", {"headers": {"Oncemore-Id": "x"}}),
    ],
)
def test_bad_webhook_options_are_refused_without_showing_a_secret(url: str, options: Any) -> None:
    with pytest.raises(oncemore.UsageError) as refused:
        WebhookSink(url, **options)
    assert "secret" not in str(refused.value)


def test_a_webhook_shows_neither_headers_nor_path_nor_query() -> None:
    shown = repr(WebhookSink("https://host:1/hook?token=abc", headers={"Authorization": "Bearer abc"}))
    assert shown == "<oncemore.WebhookSink https://host:1/…>"


# Files ----------------------------------------------------------------------------------------------


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_file_gets_one_line_for_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLinesSink("out.jsonl")
    monkeypatch.chdir("/")
    sink(MESSAGE)
    sink(MESSAGE._replace(attempt=4))
    found = lines(tmp_path / "out.jsonl")
    assert [one["attempt"] for one in found] == [3, 4]
    assert found[0]["payload"] == {"a": "ü"}
    assert repr(sink) == f"<oncemore.JsonLinesSink {tmp_path / 'out.jsonl'}>"


def test_a_line_cut_off_by_a_crash_does_not_affect_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(MESSAGE.to_json_line() + MESSAGE.to_json_line()[:40])
    JsonLinesSink(path)(MESSAGE)
    first, torn, last = path.read_bytes().splitlines(keepends=True)
    assert first == last == MESSAGE.to_json_line()
    assert torn == MESSAGE.to_json_line()[:40] + b"\n"


def test_a_line_that_does_not_fit_on_the_disk_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "out.jsonl", os.write
    JsonLinesSink(path)(MESSAGE)
    left = [10, 10]

    def full(file: int, data: bytes) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        return write(file, data[: left.pop()])

    monkeypatch.setattr(sinks.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        JsonLinesSink(path)(MESSAGE)
    assert path.read_bytes() == MESSAGE.to_json_line()


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(sinks.os, "write", lambda file, data: write(file, data[:7]))
    JsonLinesSink(tmp_path / "out")(MESSAGE)
    assert (tmp_path / "out").read_bytes() == MESSAGE.to_json_line()


def test_concurrent_writers_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    crowd = [
        threading.Thread(target=lambda: [JsonLinesSink(path)(MESSAGE) for _ in range(20)]) for _ in range(4)
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(30)
    assert len(lines(path)) == 80


def test_a_file_that_stays_locked_is_a_transient_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "LOCK_TIMEOUT_S", 0.02)
    path = tmp_path / "out.jsonl"
    with path.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="was locked"):
            JsonLinesSink(path)(MESSAGE)
    assert path.read_bytes() == b""


def test_a_path_that_is_not_a_regular_file_is_permanently_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(oncemore.PermanentError, match="not a regular file"):
        JsonLinesSink(tmp_path / "pipe")(MESSAGE)


@in_memory
def test_a_folder_that_is_missing_ends_in_the_dead_list(engine: oncemore.Engine, tmp_path: Path) -> None:
    give("a", ["x"])
    relay = OutboxRelay(engine, {"*": JsonLinesSink(tmp_path / "gone" / "out")}, policy=POLICY)
    assert relay.run_once() == DeliveryStats(dead=1)
    (letter,) = relay.dead_letters()
    assert letter.error["type"] == "FileNotFoundError"


def test_a_sink_that_cannot_be_called_is_refused() -> None:
    from oncemore.messaging.driver import SinkTable

    with pytest.raises(oncemore.UsageError, match="the sink of 'orders' is 5"):
        SinkTable({"orders": 5})  # type: ignore[dict-item]
