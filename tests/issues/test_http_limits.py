"""Requests that try what an endpoint takes: odd paths, long ids, limits that cannot be meant."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore._redact import describe_value, mask_headers, mask_text
from oncemore.errors import log_warning
from oncemore.http import IdempotencyMiddleware, same_principal
from oncemore.inbox import endpoint
from oncemore.outbox import EventMessage, SqsSink
from tests.fixtures import _isolated
from tests.issues.hostile_messages import GOOD, make_step
from tests.issues.test_unreadable_messages import post_all

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["_isolated"]


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def ask(app: Any, path: str, key: str, query: bytes = b"") -> int:
    """Send a request to an application in this process, with a path as servers decode it."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": query,
        "headers": [(b"idempotency-key", f'"{key}"'.encode())],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


def test_a_path_with_a_line_end_is_not_another_path_with_a_query(engine: oncemore.Engine) -> None:
    calls: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    guarded = IdempotencyMiddleware(app, effect="idempotent", principal=same_principal, engine=engine)
    assert ask(guarded, "/a\nb", "k1") == 201
    assert ask(guarded, "/a", "k1", b"b") == 422
    for path in ("/a\x00b", "/\x1b[31m", "/\ud800", "/" + "x" * 10_000):
        assert ask(guarded, path, f"k{hash(path)}") == 201
    assert len(calls) == 5


@pytest.mark.parametrize("limit", [0, -1, "1", True, 10**12])
def test_a_limit_of_bytes_that_cannot_be_meant_is_refused(limit: Any) -> None:
    with pytest.raises(oncemore.UsageError, match="max_request is"):
        endpoint(make_step([]), max_request=limit)


def test_an_id_that_is_too_long_is_refused(engine: oncemore.Engine) -> None:
    app = endpoint(make_step([]), engine=engine)
    for headers, status in (({"oncemore-id": "x" * 1001}, 400), ({"oncemore-id": "x" * 1000}, 200)):
        (answer,) = post_all(app, [("", GOOD)], headers=headers)
        assert answer.status_code == status


def test_log_records_of_an_engine_are_one_line_each(
    engine: oncemore.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    log_warning("first\nWARNING forged \x1b[31mline\u202e")
    assert [record.getMessage() for record in caplog.records] == ["oncemore: first WARNING forged line"]


def test_a_correlation_id_that_sqs_refuses_is_left_out_of_the_attributes() -> None:
    sent: list[Any] = []

    class Client:
        def send_message(self, **asked: Any) -> None:
            sent.append(asked["MessageAttributes"])

    message = EventMessage("1", "t", {}, "c\x00", "", 0.0, "l", 1, 1)
    sink = SqsSink("https://sqs.example/1/queue", client=Client())
    sink(message)
    sink(message._replace(correlation_id="c-1"))
    assert [("Correlation-Id" in each) for each in sent] == [False, True]


@pytest.mark.parametrize("part", ["://a:b", "?a", "&a=", "a:b@", "password", "=", "\x1b[", "://" + "a" * 90])
def test_a_hostile_text_costs_little_to_mask(part: str) -> None:
    began = time.process_time()
    text = part * (200_000 // len(part))
    describe_value(text)
    mask_text(text)
    mask_headers({"x-one": text})
    assert time.process_time() - began < 2.0
