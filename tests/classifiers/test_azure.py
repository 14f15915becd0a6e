"""Errors of azure-core, through its transports on requests and on aiohttp."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from azure.core import AsyncPipelineClient, PipelineClient, exceptions
from azure.core.exceptions import map_error
from azure.core.pipeline import policies
from azure.core.rest import HttpRequest

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import PATIENCE, SHORT, caught
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Callable

    Put = Callable[..., None]

#: Sun, 06 Nov 1994 08:49:37 GMT
EPOCH = 784111777.0

#: As the clients that are built on azure-core have it.
ERRORS: Any = {
    401: exceptions.ClientAuthenticationError,
    404: exceptions.ResourceNotFoundError,
    409: exceptions.ResourceExistsError,
    412: exceptions.ResourceModifiedError,
}


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, EPOCH)
    return found.kind, found.sent, found.code


def checked(answer: Any) -> None:
    map_error(answer.status_code, answer, ERRORS)
    answer.raise_for_status()


def blocking(url: str, patience: float = PATIENCE) -> None:
    options: Any = {"connection_timeout": patience, "read_timeout": patience}
    with PipelineClient[Any, Any](url, policies=[policies.RetryPolicy.no_retries()]) as client:
        checked(client.send_request(HttpRequest("PUT", url, json={}), **options))


def awaiting(url: str, patience: float = PATIENCE) -> None:
    options: Any = {"connection_timeout": patience, "read_timeout": patience}

    async def main() -> None:
        once = policies.AsyncRetryPolicy.no_retries()
        async with AsyncPipelineClient[Any, Any](url, policies=[once]) as client:
            answer: Any = await client.send_request(HttpRequest("PUT", url, json={}), **options)
            await answer.read()
            checked(answer)

    asyncio.run(main())


def answered(put: Put, status: int, headers: dict[str, str] | None = None, **body: object) -> BaseException:
    with faults.serve(faults.answers(status, headers, json.dumps(body).encode())) as server:
        error = caught(put, server.url)
    assert len(server.requests) == 1, "azure-core must not have retried by itself"
    assert isinstance(error, exceptions.HttpResponseError)
    return error


STATUSES = {
    400: ("permanent", "no"),
    401: ("permanent", "no"),
    403: ("permanent", "no"),
    404: ("permanent", "no"),
    408: ("transient", "maybe"),
    409: ("conflict", "no"),
    412: ("conflict", "no"),
    429: ("throttled", "no"),
    500: ("transient", "maybe"),
    501: ("permanent", "no"),
    502: ("transient", "maybe"),
    503: ("transient", "maybe"),
    504: ("transient", "maybe"),
    505: ("permanent", "no"),
    507: ("transient", "maybe"),
    529: ("transient", "maybe"),
}


@pytest.mark.parametrize("put", [blocking, awaiting])
@pytest.mark.parametrize("status", STATUSES)
def test_the_status_decides(put: Put, status: int) -> None:
    error = answered(put, status)
    assert type(error) is ERRORS.get(status, exceptions.HttpResponseError)
    assert facts(error) == (*STATUSES[status], f"HTTP_{status}")


WAITS = {
    "seconds": ({"Retry-After": "7"}, 7.0),
    "a date": ({"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"}, 60.0),
    "milliseconds": ({"retry-after-ms": "1500"}, 1.5),
    "Azure's own": ({"x-ms-retry-after-ms": "250"}, 0.25),
    "HTTP's first": ({"x-ms-retry-after-ms": "250", "Retry-After": "7"}, 7.0),
    "malformed": ({"x-ms-retry-after-ms": "-5", "retry-after-ms": "soon"}, None),
}


@pytest.mark.parametrize("put", [blocking, awaiting])
@pytest.mark.parametrize("case", WAITS)
def test_the_wait_is_read_from_the_answer(put: Put, case: str) -> None:
    headers, wait = WAITS[case]
    assert classify(answered(put, 429, headers), EPOCH).retry_after == wait
    assert classify(answered(put, 404, headers), EPOCH).retry_after is None


@pytest.mark.parametrize("put", [blocking, awaiting])
def test_transport_errors_are_classified(put: Put) -> None:
    with faults.refusing() as server:
        error = caught(put, server.url)
    assert isinstance(error, exceptions.ServiceRequestError)
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")
    with faults.serve(faults.stalls) as server:
        error = caught(put, server.url, SHORT)
    assert isinstance(error, exceptions.ServiceResponseError)
    assert facts(error) == ("transient", "maybe", "TIMEOUT_READ")
    with faults.unanswered() as server:
        assert facts(caught(put, server.url, SHORT)) == ("transient", "no", "TIMEOUT_CONNECT")
    with faults.serve(faults.plain_text) as server:
        error = caught(put, server.url.replace("http:", "https:"))
    assert facts(error)[::2] == ("permanent", "TLS")
    with faults.serve(faults.cuts) as server:
        error = caught(put, server.url)
    assert isinstance(error, exceptions.IncompleteReadError)
    assert facts(error) == ("transient", "maybe", "BODY_CUT")


def test_a_closed_connection_may_have_taken_effect_in_every_class() -> None:
    with faults.serve(faults.closes) as server:
        error = caught(blocking, server.url)
    assert isinstance(error, exceptions.ServiceResponseError)
    assert facts(error) == ("transient", "maybe", "CONNECTION_CLOSED")
    with faults.serve(faults.closes) as server:
        error = caught(awaiting, server.url)
    assert isinstance(error, exceptions.ServiceRequestError), "azure-core calls it not sent"
    assert facts(error) == ("transient", "maybe", "CONNECTION_CLOSED")


def with_status(cls: Any, status: int) -> BaseException:
    """Make an error of a class with a status that the class does not usually come with."""
    error: BaseException = cls("x")
    error.status_code = status  # type: ignore[attr-defined]
    return error


MADE = {
    "a conflict whatever its status": (
        with_status(exceptions.ResourceModifiedError, 400),
        ("conflict", "no", "HTTP_400"),
    ),
    "not found by an update": (
        with_status(exceptions.ResourceNotFoundError, 412),
        ("permanent", "no", "HTTP_412"),
    ),
    "no credential": (exceptions.ClientAuthenticationError("x"), ("permanent", "no", "HTTP")),
    "not sent": (exceptions.ServiceRequestError("x"), ("transient", "no", "CONNECTION_FAILED")),
    "sent": (exceptions.ServiceResponseError("x"), ("transient", "maybe", "CONNECTION_ERROR")),
    "timeout before": (exceptions.ServiceRequestTimeoutError("x"), ("transient", "no", "TIMEOUT_CONNECT")),
    "timeout after": (exceptions.ServiceResponseTimeoutError("x"), ("transient", "maybe", "TIMEOUT_READ")),
    "decode": (exceptions.DecodeError("x"), ("permanent", "maybe", "DECODE")),
    "cut": (exceptions.IncompleteReadError("x"), ("transient", "maybe", "BODY_CUT")),
    "redirects": (exceptions.TooManyRedirectsError([]), ("permanent", "maybe", "REDIRECTS")),
    "ours": (exceptions.SerializationError("x"), ("permanent", "no", "EXC_SerializationError")),
    "theirs": (exceptions.DeserializationError("x"), ("permanent", "maybe", "DECODE")),
    "without an answer": (exceptions.HttpResponseError("x"), ("permanent", "maybe", "HTTP")),
    "streamed": (
        exceptions.HttpResponseError("x", error=ConnectionResetError()),
        ("transient", "maybe", "CONNECTION_RESET"),
    ),
    "base": (exceptions.AzureError("x"), ("permanent", "maybe", "EXC_AzureError")),
}


@pytest.mark.parametrize("case", MADE)
def test_errors_that_need_no_server(case: str) -> None:
    error, expected = MADE[case]
    assert facts(error) == expected
