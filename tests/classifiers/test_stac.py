"""Errors of pystac-client, against a loopback provider."""

from __future__ import annotations

import pystac_client
import pytest
from pystac_client.exceptions import APIError, ParametersError
from pystac_client.stac_api_io import StacApiIO

from oncemore.classifiers.classify import classify
from oncemore.policy.verdict import matches_class
from tests.classifiers.clients import PATIENCE, SHORT, caught
from tests.servers import faults


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


def read(url: str, patience: float = PATIENCE) -> None:
    pystac_client.Client.open(url, stac_io=StacApiIO(max_retries=None), timeout=patience)


def answered(status: int, body: bytes = b"{}", headers: dict[str, str] | None = None) -> BaseException:
    with faults.serve(faults.answers(status, headers, body)) as server:
        error = caught(read, server.url)
    assert len(server.requests) == 1, "pystac-client must not have retried by itself"
    assert isinstance(error, APIError)
    return error


STATUSES = {
    400: ("permanent", "no"),
    404: ("permanent", "no"),
    408: ("transient", "maybe"),
    429: ("throttled", "no"),
    500: ("transient", "maybe"),
    502: ("transient", "maybe"),
    503: ("transient", "maybe"),
    504: ("transient", "maybe"),
}


@pytest.mark.parametrize("status", STATUSES)
def test_the_status_decides_and_the_headers_are_lost(status: int) -> None:
    found = classify(answered(status, headers={"Retry-After": "7"}), 0.0)
    assert found == (*STATUSES[status], None, f"HTTP_{status}", "http:status")


SLOW = {
    "as an object store says it": b"<Error><Code>SlowDown</Code><Message>Reduce</Message></Error>",
    "as an API says it": b'{"code": "SlowDown", "description": "Please reduce your request rate"}',
}


@pytest.mark.parametrize("words", SLOW)
@pytest.mark.parametrize("status", [400, 503])
def test_a_provider_that_says_slow_down_throttles(words: str, status: int) -> None:
    found = classify(answered(status, SLOW[words]), 0.0)
    assert found == ("throttled", "no", None, "STAC_SLOWDOWN", "pystac_client:APIError")
    assert matches_class(found, ["STAC_SLOWDOWN"])


def test_transport_errors_are_found_in_the_handled_exception() -> None:
    with faults.refusing() as server:
        error = caught(read, server.url)
    assert isinstance(error, APIError)
    assert not hasattr(error, "status_code")
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")
    with faults.serve(faults.closes) as server:
        assert facts(caught(read, server.url)) == ("transient", "maybe", "CONNECTION_CLOSED")
    with faults.serve(faults.stalls) as server:
        assert facts(caught(read, server.url, SHORT)) == ("transient", "maybe", "TIMEOUT_READ")
    assert facts(caught(read, "http://nohost.invalid/")) == ("transient", "no", "DNS")
    with faults.serve(faults.plain_text) as server:
        error = caught(read, server.url.replace("http:", "https:"))
    assert facts(error)[::2] == ("permanent", "TLS")


def test_a_clients_own_retries_are_classified_by_the_last_failure() -> None:
    def read_twice(url: str) -> None:
        pystac_client.Client.open(url, stac_io=StacApiIO(max_retries=1), timeout=PATIENCE)

    with faults.refusing() as server:
        assert facts(caught(read_twice, server.url)) == ("transient", "no", "CONNECTION_REFUSED")


def test_an_answer_that_is_not_a_text_is_permanent() -> None:
    assert facts(answered(200, b"\xff\xfe"))[0] == "permanent"


def test_an_unrelated_handled_error_is_not_the_reason() -> None:
    def act() -> None:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except ConnectionRefusedError:
            StacApiIO().write_text_to_href("http://127.0.0.1/x", "text")

    error = caught(act)
    assert isinstance(error.__context__, ConnectionRefusedError)
    assert classify(error, 0.0).rule == "default:unmatched"


def test_wrong_parameters_are_permanent_and_were_not_sent() -> None:
    assert facts(ParametersError("x")) == ("permanent", "no", "EXC_ParametersError")
