"""Errors of openai and anthropic, against loopback servers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import openai
import pytest
from openai import _exceptions as shown  # a few of its classes are not at its front door

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import PATIENCE, SHORT, caught
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[..., None]

#: Sun, 06 Nov 1994 08:49:37 GMT
EPOCH = 784111777.0
QUESTION: Any = {"model": "m", "messages": [{"role": "user", "content": "?"}]}


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, EPOCH)
    return found.kind, found.sent, found.code


def ask_openai(url: str, patience: float = PATIENCE, **more: Any) -> None:
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=patience) as client:
        list(client.chat.completions.create(**QUESTION, **more))


def ask_openai_awaiting(url: str, patience: float = PATIENCE) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, timeout=patience) as client:
            await client.chat.completions.create(**QUESTION)

    asyncio.run(main())


def ask_anthropic(url: str, patience: float = PATIENCE, **more: Any) -> None:
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, timeout=patience) as client:
        list(client.messages.create(**QUESTION, max_tokens=1, **more))


def ask_anthropic_awaiting(url: str, patience: float = PATIENCE) -> None:
    async def main() -> None:
        async with anthropic.AsyncAnthropic(
            base_url=url, api_key="k", max_retries=0, timeout=patience
        ) as client:
            await client.messages.create(**QUESTION, max_tokens=1)

    asyncio.run(main())


CLIENTS = [ask_openai, ask_openai_awaiting, ask_anthropic, ask_anthropic_awaiting]
BLOCKING = [ask_openai, ask_anthropic]


def answered(
    ask: Ask, status: int, headers: dict[str, str] | None = None, body: object = None, **more: Any
) -> BaseException:
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    with faults.serve(faults.answers(status, headers, data)) as server:
        error = caught(lambda: ask(server.url, **more))
    assert len(server.requests) == 1, "the client must not have retried by itself"
    return error


STATUSES = {
    400: ("permanent", "no"),
    401: ("permanent", "no"),
    403: ("permanent", "no"),
    404: ("permanent", "no"),
    408: ("transient", "maybe"),
    409: ("transient", "no"),
    422: ("permanent", "no"),
    429: ("throttled", "no"),
    500: ("transient", "maybe"),
    501: ("permanent", "no"),
    503: ("transient", "maybe"),
    507: ("transient", "maybe"),
    529: ("transient", "maybe"),
}


@pytest.mark.parametrize("ask", BLOCKING)
@pytest.mark.parametrize("status", STATUSES)
def test_the_status_decides(ask: Ask, status: int) -> None:
    error = answered(ask, status)
    assert isinstance(error, (openai.APIStatusError, anthropic.APIStatusError))
    assert classify(error, EPOCH) == (*STATUSES[status], None, f"HTTP_{status}", "http:status")


WAITS = {
    "seconds": ({"Retry-After": "7"}, 7.0),
    "a date": ({"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"}, 60.0),
    "milliseconds": ({"retry-after-ms": "1500", "Retry-After": "2"}, 1.5),
    "malformed": ({"retry-after-ms": "soon", "Retry-After": "deferred"}, None),
    "far too long": ({"Retry-After": "9" * 12}, 1e9),
}


@pytest.mark.parametrize("ask", BLOCKING)
@pytest.mark.parametrize("case", WAITS)
def test_the_wait_is_read_from_the_answer(ask: Ask, case: str) -> None:
    headers, wait = WAITS[case]
    found = classify(answered(ask, 429, headers), EPOCH)
    assert (found.kind, found.retry_after) == ("throttled", wait)
    assert classify(answered(ask, 400, headers), EPOCH).retry_after is None


@pytest.mark.parametrize("ask", BLOCKING)
def test_the_servers_own_statement_wins(ask: Ask) -> None:
    assert facts(answered(ask, 503, {"x-should-retry": "false"})) == ("permanent", "maybe", "HTTP_503")
    assert facts(answered(ask, 400, {"x-should-retry": "true"})) == ("transient", "no", "HTTP_400")
    found = classify(answered(ask, 429, {"x-should-retry": "true", "Retry-After": "7"}), EPOCH)
    assert found[:4] == ("throttled", "no", 7.0, "HTTP_429")


def test_an_exhausted_quota_is_not_a_rate_limit() -> None:
    spent = {"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "m"}}
    error = answered(ask_openai, 429, {"Retry-After": "1"}, spent)
    assert isinstance(error, openai.RateLimitError)
    assert classify(error, EPOCH)[:4] == ("permanent", "no", None, "QUOTA_EXHAUSTED")
    limit = {"error": {"code": "rate_limit_exceeded", "type": "tokens", "message": "m"}}
    assert facts(answered(ask_openai, 429, body=limit)) == ("throttled", "no", "HTTP_429")


def test_a_spend_limit_is_not_a_rate_limit() -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    spent = {"type": "error", "error": {"type": "rate_limit_error", "message": "m", "details": details}}
    error = answered(ask_anthropic, 429, body=spent)
    assert isinstance(error, anthropic.RateLimitError)
    assert facts(error) == ("permanent", "no", "QUOTA_EXHAUSTED")
    limit = {"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}
    assert facts(answered(ask_anthropic, 429, body=limit)) == ("throttled", "no", "HTTP_429")


def test_an_overloaded_service_passes() -> None:
    error = answered(ask_anthropic, 529, body={"type": "error", "error": {"type": "overloaded_error"}})
    assert isinstance(error, anthropic.InternalServerError)
    assert facts(error) == ("transient", "maybe", "HTTP_529")


@pytest.mark.parametrize("ask", CLIENTS)
def test_transport_errors_are_classified_by_httpx(ask: Ask) -> None:
    with faults.refusing() as server:
        assert facts(caught(ask, server.url)) == ("transient", "no", "CONNECTION_REFUSED")
    with faults.unanswered() as server:
        assert facts(caught(ask, server.url, SHORT)) == ("transient", "no", "TIMEOUT_CONNECT")
    with faults.serve(faults.stalls) as server:
        error = caught(ask, server.url, SHORT)
    assert isinstance(error, (openai.APITimeoutError, anthropic.APITimeoutError))
    assert facts(error) == ("transient", "maybe", "TIMEOUT_READ")
    with faults.serve(faults.closes) as server:
        assert facts(caught(ask, server.url)) == ("transient", "maybe", "CONNECTION_CLOSED")


def event(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


STREAMED = {
    "overloaded_error": ("transient", "maybe", "HTTP_529"),
    "rate_limit_error": ("throttled", "maybe", "HTTP_429"),
    "api_error": ("transient", "maybe", "HTTP_500"),
    "invalid_request_error": ("permanent", "maybe", "HTTP_400"),
}


@pytest.mark.parametrize("kind", STREAMED)
def test_an_error_inside_a_stream_comes_after_a_good_status(kind: str) -> None:
    stream = {"Content-Type": "text/event-stream"}
    error = answered(
        ask_anthropic, 200, stream, event("error", {"type": "error", "error": {"type": kind}}), stream=True
    )
    assert isinstance(error, anthropic.APIStatusError)
    assert facts(error) == STREAMED[kind]
    error = answered(
        ask_openai, 200, stream, event("x", {"error": {"type": kind, "message": "m"}}), stream=True
    )
    assert type(error) is openai.APIError
    assert facts(error) == STREAMED[kind]


def test_a_quota_may_also_end_inside_a_stream() -> None:
    stream = {"Content-Type": "text/event-stream"}
    spent = event("x", {"error": {"code": "insufficient_quota", "message": "m"}})
    error = answered(ask_openai, 200, stream, spent, stream=True)
    assert facts(error) == ("permanent", "maybe", "QUOTA_EXHAUSTED")


REQUEST = httpx2.Request("POST", "http://127.0.0.1/")
ANSWER = httpx2.Response(200, request=REQUEST)
MADE = {
    "not what was promised": (
        openai.APIResponseValidationError(ANSWER, None),
        ("permanent", "maybe", "DECODE"),
    ),
    "nor here": (anthropic.APIResponseValidationError(ANSWER, None), ("permanent", "maybe", "DECODE")),
    "filtered": (
        openai.ContentFilterFinishReasonError(),
        ("permanent", "maybe", "EXC_ContentFilterFinishReasonError"),
    ),
    "no key": (openai.OpenAIError("The api_key"), ("permanent", "maybe", "EXC_OpenAIError")),
    "no token": (
        shown.SubjectTokenProviderError("x"),
        ("permanent", "no", "EXC_SubjectTokenProviderError"),
    ),
    "no token now": (
        shown.SubjectTokenProviderError("x", response=httpx2.Response(503, request=REQUEST)),
        ("transient", "no", "HTTP_503"),
    ),
    "socket": (
        shown.WebSocketConnectionClosedError("x", unsent_messages=[]),
        ("transient", "maybe", "CONNECTION_CLOSED"),
    ),
    "queue": (shown.WebSocketQueueFullError("x"), ("throttled", "no", "QUEUE_FULL")),
    "own word": (anthropic.RetryableError("x"), ("transient", "maybe", "EXC_RetryableError")),
    "credentials": (anthropic.CredentialsError("x"), ("permanent", "no", "EXC_CredentialsError")),
    "vague": (
        openai.APIConnectionError(request=REQUEST),
        ("transient", "maybe", "CONNECTION_ERROR"),
    ),
}


@pytest.mark.parametrize("case", MADE)
def test_errors_that_need_no_server(case: str) -> None:
    error, expected = MADE[case]
    assert facts(error) == expected


def test_an_answer_that_was_cut_off_by_its_length_is_permanent() -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "["}}
    body = {"id": "i", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    parsed = openai.types.chat.ChatCompletion.model_validate(body)
    error = openai.LengthFinishReasonError(completion=parsed)
    assert facts(error) == ("permanent", "maybe", "EXC_LengthFinishReasonError")


def test_an_error_of_unknown_type_inside_a_stream_is_unmatched() -> None:
    error = openai.APIError("x", REQUEST, body={"type": "brand_new"})
    assert classify(error, EPOCH).rule == "default:unmatched"
