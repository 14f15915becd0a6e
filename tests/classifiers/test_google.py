"""Errors of google-api-core and google-auth, over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import google.auth.transport.requests
import grpc
import pytest
import requests
from google.api_core import exceptions, grpc_helpers, grpc_helpers_async, retry
from google.auth import exceptions as auth

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults
from tests.servers import grpc as servers

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Sun, 06 Nov 1994 08:49:37 GMT
EPOCH = 784111777.0


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, EPOCH)
    return found.kind, found.sent, found.code


def answered(status: int, headers: dict[str, str] | None = None, **error: object) -> BaseException:
    """Return the error that google-api-core makes of a real answer."""
    body = json.dumps({"error": {"message": "because", **error}}).encode()
    with faults.serve(faults.answers(status, headers, body)) as server, requests.Session() as session:
        return exceptions.from_http_response(session.get(server.url, timeout=5))


STATUSES = {
    400: ("permanent", "no"),
    401: ("permanent", "no"),
    403: ("permanent", "no"),
    404: ("permanent", "no"),
    409: ("conflict", "no"),
    412: ("conflict", "no"),
    429: ("throttled", "no"),
    499: ("permanent", "no"),
    500: ("transient", "maybe"),
    501: ("permanent", "no"),
    502: ("transient", "maybe"),
    503: ("transient", "maybe"),
    504: ("transient", "maybe"),
    529: ("transient", "maybe"),
}


@pytest.mark.parametrize("status", STATUSES)
def test_over_http_the_status_decides(status: int) -> None:
    error = answered(status)
    assert isinstance(error, exceptions.GoogleAPICallError)
    assert classify(error, EPOCH) == (*STATUSES[status], None, f"HTTP_{status}", "http:status")


def test_errors_that_the_library_retries_may_pass() -> None:
    errors = [answered(status) for status in STATUSES]
    errors += [
        requests.ConnectionError(),
        requests.exceptions.ChunkedEncodingError(),
        auth.TransportError("x"),
    ]
    passing = [error for error in errors if retry.if_transient_error(error)]
    assert len(passing) == 6
    assert all(classify(error, EPOCH).may_pass for error in passing)


def test_the_wait_is_in_a_header_or_in_the_details() -> None:
    assert classify(answered(429, {"Retry-After": "7"}), EPOCH).retry_after == 7
    found = classify(answered(503, {"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"}), EPOCH)
    assert (found.kind, found.retry_after) == ("throttled", 60)
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    found = classify(answered(503, details=[info]), EPOCH)
    assert (found.kind, found.retry_after) == ("throttled", 3.5)
    assert classify(answered(404, details=[info]), EPOCH).retry_after is None


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with servers.running() as found:
        yield found


def blocking(port: int, word: str) -> None:
    with grpc.insecure_channel(f"{faults.HOST}:{port}") as channel:
        grpc_helpers.wrap_errors(channel.unary_unary(f"/any/{word}"))(b"", timeout=5)


def awaiting(port: int, word: str) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(f"{faults.HOST}:{port}") as channel:
            call: Any = grpc_helpers_async.wrap_errors(channel.unary_unary(f"/any/{word}"))
            await call(b"", timeout=5)

    asyncio.run(main())


CALLS = {
    "UNAVAILABLE": (exceptions.ServiceUnavailable, "transient", "maybe"),
    "ABORTED": (exceptions.Aborted, "transient", "no"),
    "ALREADY_EXISTS": (exceptions.AlreadyExists, "conflict", "no"),
    "DEADLINE_EXCEEDED": (exceptions.DeadlineExceeded, "transient", "maybe"),
    "RESOURCE_EXHAUSTED": (exceptions.ResourceExhausted, "throttled", "no"),
    "INTERNAL": (exceptions.InternalServerError, "transient", "maybe"),
    "INVALID_ARGUMENT": (exceptions.InvalidArgument, "permanent", "no"),
    "PERMISSION_DENIED": (exceptions.PermissionDenied, "permanent", "no"),
}


@pytest.mark.parametrize("call", [blocking, awaiting])
@pytest.mark.parametrize("status", CALLS)
def test_over_grpc_the_call_decides(port: int, call: Any, status: str) -> None:
    cls, kind, sent = CALLS[status]
    error = caught(call, port, status)
    assert type(error) is cls
    assert facts(error) == (kind, sent, f"GRPC_{status}")


def test_over_grpc_a_retry_info_is_found(port: int) -> None:
    found = classify(caught(blocking, port, "info_RESOURCE_EXHAUSTED"), EPOCH)
    assert found[:4] == ("throttled", "no", 3.5, "GRPC_RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("status", CALLS)
def test_without_an_answer_the_class_decides(status: str) -> None:
    cls, kind, sent = CALLS[status]
    found = facts(cls("x"))
    assert found[0] == kind
    over_grpc_alone = cls.__name__.upper() == status.replace("_", "")
    assert found[2] == (f"GRPC_{status}" if over_grpc_alone else f"HTTP_{int(cls.code)}")
    assert found[1] == sent


def test_a_call_without_any_status_is_unmatched() -> None:
    assert classify(exceptions.GoogleAPICallError("x"), EPOCH).rule == "default:unmatched"
    assert facts(exceptions.Unknown("x")) == ("transient", "maybe", "GRPC_UNKNOWN")


def test_a_librarys_own_failed_retries_are_classified_by_the_last_failure() -> None:
    @retry.Retry(initial=0.001, maximum=0.001, timeout=0.01)
    def work() -> None:
        raise exceptions.ServiceUnavailable("busy")

    error = caught(work)
    assert isinstance(error, exceptions.RetryError)
    assert facts(error) == ("transient", "maybe", "HTTP_503")


def test_fetching_a_token_fails_as_its_request_does() -> None:
    def fetch(url: str) -> None:
        google.auth.transport.requests.Request()(url, timeout=5)

    with faults.refusing() as server:
        error = caught(fetch, server.url)
    assert isinstance(error, auth.TransportError)
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")
    with faults.serve(faults.closes) as server:
        assert facts(caught(fetch, server.url)) == ("transient", "maybe", "CONNECTION_CLOSED")
    refresh = auth.RefreshError("x")
    refresh.__cause__ = error
    assert facts(refresh) == ("transient", "no", "CONNECTION_REFUSED")


MADE = {
    "vague transport": (auth.TransportError("x"), ("transient", "maybe", "CONNECTION_ERROR")),
    "refresh": (auth.RefreshError("x"), ("permanent", "no", "EXC_RefreshError")),
    "refresh later": (auth.RefreshError("x", retryable=True), ("transient", "no", "EXC_RefreshError")),
    "no credentials": (auth.DefaultCredentialsError("x"), ("permanent", "no", "EXC_DefaultCredentialsError")),
    "slow": (auth.TimeoutError("x"), ("transient", "maybe", "TIMEOUT")),
    "file": (auth.OSError("x"), ("permanent", "no", "EXC_OSError")),
    "two credentials": (
        exceptions.DuplicateCredentialArgs("x"),
        ("permanent", "no", "EXC_DuplicateCredentialArgs"),
    ),
    "stalled": (exceptions.TransferStalledError("x"), ("transient", "maybe", "TIMEOUT_WRITE")),
    "cancelled": (exceptions.UploadCancelledError("x"), ("permanent", "maybe", "EXC_UploadCancelledError")),
    "499": (exceptions.Cancelled("x"), ("permanent", "no", "HTTP_499")),
}


@pytest.mark.parametrize("case", MADE)
def test_errors_that_need_no_server(case: str) -> None:
    error, expected = MADE[case]
    assert facts(error) == expected
