"""Every HTTP client against every transport fault: the same fault gives the same failure."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trustme
import urllib3

from oncemore.classifiers.classify import classify, classify_status
from tests.classifiers.clients import CLIENTS, PATIENCE, RETURNING, SHORT, caught, with_urllib3
from tests.servers import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.policy.model import Failure

#: Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
EPOCH = 784111777.0


class Fault(NamedTuple):
    """A fault: how to provoke it, and its expected code."""

    make: Callable[[], contextlib.AbstractContextManager[faults.Server]]
    kind: str
    sent: str
    code: str
    scheme: str = "http"


def served(behaviour: faults.Behaviour) -> Callable[[], contextlib.AbstractContextManager[faults.Server]]:
    return lambda: faults.serve(behaviour)


def greets_and_leaves(conn: object, server: faults.Server) -> None:
    """Hang up in the middle of the TLS handshake."""
    server.requests.append(conn.recv(65536))  # type: ignore[attr-defined]


@contextlib.contextmanager
def unknown_name() -> Iterator[faults.Server]:
    class Nowhere(faults.Server):
        url = "http://nohost.invalid/"

    yield Nowhere(80)


@contextlib.contextmanager
def untrusted() -> Iterator[faults.Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(faults.HOST).configure_cert(context)
    with faults.serve(faults.answers(200), tls=context) as server:
        yield server


FAULTS = {
    "refused": Fault(faults.refusing, "transient", "no", "CONNECTION_REFUSED"),
    "unanswered": Fault(faults.unanswered, "transient", "no", "TIMEOUT_CONNECT"),
    "unknown name": Fault(unknown_name, "transient", "no", "DNS"),
    "plain text for TLS": Fault(served(faults.plain_text), "permanent", "no", "TLS", "https"),
    "untrusted certificate": Fault(untrusted, "permanent", "no", "TLS", "https"),
    "leaves the handshake": Fault(served(greets_and_leaves), "transient", "no", "CONNECTION_CLOSED", "https"),
    "closes": Fault(served(faults.closes), "transient", "maybe", "CONNECTION_CLOSED"),
    "resets": Fault(served(faults.resets), "transient", "maybe", "CONNECTION_RESET"),
    "stalls": Fault(served(faults.stalls), "transient", "maybe", "TIMEOUT_READ"),
    "cuts the body": Fault(served(faults.cuts), "transient", "maybe", "BODY_CUT"),
    "cuts a chunk": Fault(served(faults.cuts_chunks), "transient", "maybe", "BODY_CUT"),
    "stalls in the body": Fault(served(faults.stalls_in_body), "transient", "maybe", "TIMEOUT_READ"),
    "resets in the body": Fault(served(faults.resets_in_body), "transient", "maybe", "CONNECTION_RESET"),
    "talks nonsense": Fault(served(faults.talks_nonsense), "transient", "maybe", "PROTOCOL"),
}

#: Where nothing in the client's error tells what its neighbours tell.
OTHER_CODES = {
    ("aiohttp", "leaves the handshake"): "CONNECTION_RESET",
    ("aiohttp", "resets in the body"): "BODY_CUT",
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_client_gives_the_failure_of_every_fault(client: str, fault: str) -> None:
    wanted = FAULTS[fault]
    with wanted.make() as server:
        url = server.url.replace("http:", f"{wanted.scheme}:")
        error = caught(CLIENTS[client], url, SHORT if wanted.code.startswith("TIMEOUT") else PATIENCE)
        found = classify(error, EPOCH)
    code = OTHER_CODES.get((client, fault), wanted.code)
    assert (found.kind, found.sent, found.code, found.retry_after) == (wanted.kind, wanted.sent, code, None)
    assert ":" in found.rule
    assert not found.rule.startswith(("default:", "cause:"))


def answered(client: str, server: faults.Server) -> Failure:
    """Classify an answer as the client hands it over: raised, or returned."""
    if client not in RETURNING:
        error = caught(CLIENTS[client], server.url)
        found = classify(error, EPOCH)
        if hasattr(error, "close"):  # urllib's HTTPError is the open answer too
            error.close()
        return found
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("POST", server.url, body=b"x")
    found_or_none = classify_status(answer.status, answer.headers, EPOCH)
    assert found_or_none is not None
    return found_or_none


ANSWERS = {
    "429, seconds": (429, {"Retry-After": "7"}, ("throttled", "no", 7.0)),
    "429, date": (429, {"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"}, ("throttled", "no", 60.0)),
    "429, past date": (429, {"Retry-After": "Sun Nov  6 08:00:00 1994"}, ("throttled", "no", 0.0)),
    "429, RateLimit": (429, {"RateLimit": '"day";r=0;t=30'}, ("throttled", "no", 30.0)),
    "429, bare": (429, {}, ("throttled", "no", None)),
    "503, seconds": (503, {"Retry-After": "120"}, ("throttled", "maybe", 120.0)),
    "503, date": (503, {"Retry-After": "Sunday, 06-Nov-94 08:51:17 GMT"}, ("throttled", "maybe", 100.0)),
    "503, nonsense": (503, {"Retry-After": "soon"}, ("transient", "maybe", None)),
    "503, bare": (503, {}, ("transient", "maybe", None)),
    "500": (500, {}, ("transient", "maybe", None)),
    "501": (501, {}, ("permanent", "no", None)),
    "408": (408, {}, ("transient", "maybe", None)),
    "425": (425, {}, ("transient", "no", None)),
    "409": (409, {}, ("conflict", "no", None)),
    "404": (404, {"Retry-After": "7"}, ("permanent", "no", None)),
}

ONCE_EACH = [client for client in CLIENTS if client != "http.client"]  # it would repeat urllib3's


@pytest.mark.parametrize("client", ONCE_EACH)
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_client_gives_the_failure_of_every_answer(client: str, answer: str) -> None:
    status, headers, (kind, sent, wait) = ANSWERS[answer]
    with faults.serve(faults.answers(status, headers)) as server:
        found = answered(client, server)
    assert found == (kind, sent, wait, f"HTTP_{status}", "http:status")


@pytest.mark.req("CLASS-15")
@pytest.mark.parametrize("client", ONCE_EACH)
def test_two_answers_of_503_are_listed_as_two_times_http_503(client: str) -> None:
    with faults.serve(faults.answers(503)) as server:
        errors = [answered(client, server).code for _ in range(2)]
    assert errors == ["HTTP_503", "HTTP_503"]
    assert len(server.requests) == 2


@pytest.mark.parametrize("client", ["httpx", "requests", "aiohttp", "urllib"])
def test_a_users_subclass_of_a_clients_error_means_what_its_base_means(client: str) -> None:
    with faults.refusing() as server:
        error = caught(CLIENTS[client], server.url)
    mine = type("MyError", (type(error),), {"__module__": "my.package"})
    copy = mine.__new__(mine)
    copy.args, copy.__cause__ = error.args, error.__cause__
    copy.__dict__.update(vars(error))
    found = classify(copy, EPOCH)
    assert (found.kind, found.sent, found.code) == ("transient", "no", "CONNECTION_REFUSED")


def test_a_request_made_while_handling_a_refusal_does_not_inherit_not_sent() -> None:
    with faults.serve(faults.closes) as second:
        for client, post in CLIENTS.items():
            try:
                raise ConnectionRefusedError(111, "the first server refuses")
            except ConnectionRefusedError:
                error = caught(post, second.url)
            found = classify(error, EPOCH)
            assert (found.sent, found.code) == ("maybe", "CONNECTION_CLOSED"), client


def test_urllib3_that_retried_by_itself_is_understood_by_its_last_failure() -> None:
    def keeps_trying(url: str, times: urllib3.Retry) -> None:
        with urllib3.PoolManager(retries=times) as pool:
            pool.request("GET", url)

    with faults.refusing() as server:
        error = caught(keeps_trying, server.url, urllib3.Retry(1, backoff_factor=0))
        assert isinstance(error, urllib3.exceptions.MaxRetryError)
        found = classify(error, EPOCH)
        assert (found.kind, found.sent, found.code) == ("transient", "no", "CONNECTION_REFUSED")
    with faults.serve(faults.answers(503)) as server:
        error = caught(keeps_trying, server.url, urllib3.Retry(1, status_forcelist=[503], backoff_factor=0))
        found = classify(error, EPOCH)
        assert (found.kind, found.sent, found.code) == ("transient", "maybe", "HTTP_503")
        assert len(server.requests) == 2


def test_urllib3_returns_a_bad_status_instead_of_raising_it() -> None:
    with faults.serve(faults.answers(503)) as server:
        with_urllib3(server.url)
    assert classify_status(200, {}, EPOCH) is None
    assert classify_status(302, None, EPOCH) is None
