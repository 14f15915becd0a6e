"""Errors of botocore, against a loopback server that answers like AWS."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

import botocore.exceptions
import botocore.session
import pytest
from botocore.config import Config

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Sun, 06 Nov 1994 08:49:37 GMT
EPOCH = 784111777.0


@functools.cache
def session() -> Any:
    made = botocore.session.Session()
    made.set_credentials("key", "secret")
    return made


@contextlib.contextmanager
def client(service: str, url: str, patience: float = 10) -> Iterator[Any]:
    once = Config(
        retries={"total_max_attempts": 1}, connect_timeout=patience, read_timeout=patience, proxies={},
        s3={"addressing_style": "path"},
    )  # fmt: skip
    made = session().create_client(service, region_name="eu-west-1", endpoint_url=url, config=once)
    try:
        yield made
    finally:
        made.close()


def put(url: str, patience: float = 10) -> BaseException:
    """Put an item at an address, and return the raised exception."""
    with client("dynamodb", url, patience) as dynamodb:
        return caught(lambda: dynamodb.put_item(TableName="t", Item={"id": {"S": "1"}}))


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, EPOCH)
    return found.kind, found.sent, found.code


def refusal(
    status: int, code: str, headers: dict[str, str] | None = None, **more: object
) -> faults.Behaviour:
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no", **more})
    return faults.answers(
        status, {"Content-Type": "application/x-amz-json-1.0", **(headers or {})}, body.encode()
    )


ANSWERS = {
    "ProvisionedThroughputExceededException": (400, "throttled", "no"),
    "ThrottlingException": (400, "throttled", "no"),
    "RequestLimitExceeded": (400, "throttled", "no"),
    "SlowDown": (503, "throttled", "no"),
    "LimitExceededException": (400, "throttled", "no"),
    "TransactionInProgressException": (400, "throttled", "maybe"),
    "RequestTimeout": (400, "transient", "maybe"),
    "TransactionConflictException": (400, "transient", "no"),
    "InternalServerError": (500, "transient", "maybe"),
    "ServiceUnavailable": (503, "transient", "maybe"),
    "SomethingNew": (429, "throttled", "no"),
    "ConditionalCheckFailedException": (400, "conflict", "no"),
    "PreconditionFailed": (412, "conflict", "no"),
    "ValidationException": (400, "permanent", "no"),
    "AccessDeniedException": (400, "permanent", "no"),
    "ResourceNotFoundException": (400, "permanent", "no"),
}


@pytest.mark.parametrize("code", ANSWERS)
def test_a_services_own_code_decides_and_then_the_status(code: str) -> None:
    status, kind, sent = ANSWERS[code]
    with faults.serve(refusal(status, code)) as server:
        error = put(server.url)
    assert isinstance(error, botocore.exceptions.ClientError)
    own = (f"AWS_{code}", "botocore:code") if status < 500 or code == "SlowDown" else None
    assert classify(error, EPOCH) == (kind, sent, None, *(own or (f"HTTP_{status}", "http:status")))
    assert len(server.requests) == 1, "botocore must not have retried by itself"


WAITS = {
    "seconds": ({"Retry-After": "7"}, 7.0),
    "a date": ({"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"}, 60.0),
    "AWS's own": ({"x-amz-retry-after": "1500"}, 1.5),
    "both": ({"x-amz-retry-after": "1500", "Retry-After": "7"}, 7.0),
    "malformed": ({"x-amz-retry-after": "soon"}, None),
}


@pytest.mark.parametrize("case", WAITS)
def test_the_wait_is_read_from_the_headers(case: str) -> None:
    headers, wait = WAITS[case]
    with faults.serve(refusal(400, "ThrottlingException", headers)) as server:
        assert classify(put(server.url), EPOCH).retry_after == wait
    with faults.serve(refusal(503, "ServiceUnavailable", headers)) as server:
        assert classify(put(server.url), EPOCH).retry_after == wait
    with faults.serve(refusal(400, "ValidationException", headers)) as server:
        assert classify(put(server.url), EPOCH).retry_after is None


REASONS = {
    ("TransactionConflict", "None"): ("transient", "no"),
    ("ThrottlingError", "TransactionConflict"): ("throttled", "no"),
    ("None", "ConditionalCheckFailed", "TransactionConflict"): ("conflict", "no"),
    ("ConditionalCheckFailed", "ValidationError"): ("permanent", "no"),
    ("None", "None"): ("permanent", "no"),
}


@pytest.mark.parametrize("reasons", REASONS, ids=", ".join)
def test_a_cancelled_transaction_is_as_bad_as_the_worst_of_its_reasons(reasons: tuple[str, ...]) -> None:
    behaviour = refusal(
        400, "TransactionCanceledException", CancellationReasons=[{"Code": reason} for reason in reasons]
    )
    item = {"Put": {"TableName": "t", "Item": {"id": {"S": "1"}}}}
    with faults.serve(behaviour) as server, client("dynamodb", server.url) as dynamodb:
        error = caught(lambda: dynamodb.transact_write_items(TransactItems=[item]))
    assert error.response["CancellationReasons"]  # type: ignore[attr-defined]
    assert facts(error) == (*REASONS[reasons], "AWS_TransactionCanceledException")


def test_an_answer_without_a_body_is_read_by_its_status() -> None:
    for status, kind, sent in (
        (404, "permanent", "no"),
        (503, "transient", "maybe"),
        (412, "conflict", "no"),
    ):
        empty = faults.answers(status, {"Content-Type": "text/plain"}, b"")
        with faults.serve(empty) as server, client("s3", server.url) as s3:
            error = caught(lambda: s3.head_object(Bucket="b", Key="k"))
        assert facts(error) == (kind, sent, f"HTTP_{status}")


TRANSPORT = {
    "refused": (faults.refusing, ("transient", "no", "CONNECTION_REFUSED")),
    "unanswered": (faults.unanswered, ("transient", "no", "TIMEOUT_CONNECT")),
    "stalls": (lambda: faults.serve(faults.stalls), ("transient", "maybe", "TIMEOUT_READ")),
    "closes": (lambda: faults.serve(faults.closes), ("transient", "maybe", "CONNECTION_CLOSED")),
    "resets": (lambda: faults.serve(faults.resets), ("transient", "maybe", "CONNECTION_RESET")),
    "nonsense": (lambda: faults.serve(faults.talks_nonsense), ("transient", "maybe", "PROTOCOL")),
}


@pytest.mark.parametrize("fault", TRANSPORT)
def test_a_transport_error_is_classified(fault: str) -> None:
    make, wanted = TRANSPORT[fault]
    with make() as server:
        assert facts(put(server.url, 0.3 if wanted[2].startswith("TIMEOUT") else 10)) == wanted


def test_a_name_that_does_not_resolve() -> None:
    assert facts(put("http://nohost.invalid/")) == ("transient", "no", "DNS")


def test_a_tls_refusal_is_permanent() -> None:
    with faults.serve(faults.plain_text) as server:
        assert facts(put(server.url.replace("http:", "https:"))) == ("permanent", "no", "TLS")


def test_what_the_client_refuses_is_permanent_and_was_not_sent() -> None:
    with client("dynamodb", "http://127.0.0.1:1/") as dynamodb:
        error = caught(lambda: dynamodb.put_item(TableName="t", Item=7))
    assert facts(error) == ("permanent", "no", "EXC_ParamValidationError")
    assert facts(botocore.exceptions.NoCredentialsError()) == ("permanent", "no", "EXC_NoCredentialsError")
    assert facts(botocore.exceptions.NoRegionError()) == ("permanent", "no", "EXC_NoRegionError")


ODD = [{}, {"Error": None}, {"Error": {"Code": 7}}, {"Error": {"Code": "x y\nz"}}, None, "text"]


@pytest.mark.parametrize("response", ODD, ids=repr)
def test_an_answer_of_an_odd_shape_is_permanent(response: object) -> None:
    error = botocore.exceptions.ClientError({}, "PutItem")
    error.response = response  # type: ignore[assignment]
    found = classify(error, EPOCH)
    assert (found.kind, found.sent) == ("permanent", "maybe")
    assert "\n" not in found.code
