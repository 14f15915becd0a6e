"""Profiles and real responses: the server's own log shows what a policy retries."""

import json
import pickle
import sqlite3
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import oncemore
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.files import policy
from oncemore.policy.model import Failure
from oncemore.policy.verdict import decide_verdict
from oncemore.testing import FakeClock
from tests.servers.faults import answers, closes, refusing, resets, serve, stalls

PROFILES = ("standard", "kfm-rules", "kfm-loop", "lit", "nova-cat", "exoarmur")


def load(url: str, timeout: float = 0.2) -> object:
    try:
        with urlopen(url, timeout=timeout) as answer:  # noqa: S310 - a loopback server of this test
            return json.load(answer)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise


def requests_under_lit(behaviour: object) -> int:
    """Call a real server under the `lit` profile; return how many requests its log shows."""
    with serve(behaviour) as server:  # type: ignore[arg-type]
        with pytest.raises(Exception):  # noqa: B017 - which one is the classifiers' business
            oncemore.retrying(load, on="transient", policy="lit")(server.url)
        return len(server.requests)


@pytest.mark.req("CLASS-4")
def test_lit_repeats_server_errors_and_lost_connections_and_nothing_else(instant_retries: FakeClock) -> None:
    for status in (500, 503, 507):
        assert requests_under_lit(answers(status)) == 2, status
    for status in (400, 404, 408, 422, 429):
        assert requests_under_lit(answers(status)) == 1, status
    assert requests_under_lit(answers(200, body=b"<html>not JSON</html>")) == 1
    for fault in (closes, resets, stalls):
        assert requests_under_lit(fault) == 2, fault
    assert set(instant_retries.delays) == {0.25}


def provoked() -> list[Exception]:
    """Real exceptions of several kinds, each raised by its real source."""
    found: list[Exception] = []
    with refusing() as server, serve(answers(503, {"Retry-After": "7"})) as busy, serve(stalls) as slow:
        for url in (server.url, busy.url, slow.url):
            try:
                load(url)
            except Exception as error:
                found.append(error)
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("SELECT * FROM nothing")
        except sqlite3.Error as error:
            found.append(error)
    return [
        *found,
        KeyError("bug"),
        oncemore.PolicyViolation("CHECKSUM_MISMATCH"),
        oncemore.TransientError("soon"),
    ]


@pytest.mark.req("CLASS-13")
def test_a_recorded_failure_means_the_same_again_and_names_its_rule() -> None:
    for error in provoked():
        fact = oncemore.classify(error, 1000.0)
        assert fact == oncemore.classify(error, 1000.0)
        assert fact.rule
        recorded = json.loads(json.dumps(fact._asdict()))
        again = Failure(**recorded)
        assert again == fact == pickle.loads(pickle.dumps(fact))  # noqa: S301 - our own bytes
        for name in PROFILES:
            under = policy(name)
            first, second = (
                decide_retry(
                    under, Situation(1, one, decide_verdict(one, under, "idempotent"), 1000.0, "seed")
                )
                for one in (fact, again)
            )
            assert first.proof_bytes() == second.proof_bytes()
            assert first.proof()["failure"] == recorded


@pytest.mark.req("CLASS-14")
def test_the_cause_of_a_timeout_decides_about_the_retry_and_is_recorded() -> None:
    causes = {
        "TIMEOUT_CONNECT": (
            Failure("transient", "no", None, "TIMEOUT_CONNECT", "httpx:ConnectTimeout"),
            True,
        ),
        "TIMEOUT_READ": (Failure("transient", "maybe", None, "TIMEOUT_READ", "httpx:ReadTimeout"), True),
        "TIMEOUT_ATTEMPT_LIMIT": (oncemore.classify(oncemore.AttemptTimeout("cut off"), 0.0), True),
        "DEADLINE": (oncemore.classify(oncemore.DeadlineExceeded("too late"), 0.0), False),
        "GOVERNANCE_BLOCKED": (oncemore.classify(oncemore.PolicyViolation("GOVERNANCE_BLOCKED"), 0.0), False),
    }
    for code, (fact, again) in causes.items():
        assert fact.code == code
        for name in PROFILES:
            under = policy(name)
            decision = decide_retry(
                under, Situation(1, fact, decide_verdict(fact, under, "idempotent"), 0.0, "seed")
            )
            assert (decision.action == "retry") is again, (code, name)
            assert f'"code":"{code}"'.encode() in decision.proof_bytes()


def test_a_read_timeout_is_distinguished_from_a_refused_connection() -> None:
    codes = {oncemore.classify(error, 0.0).code for error in provoked()}
    assert {"CONNECTION_REFUSED", "HTTP_503", "TIMEOUT_READ"} <= codes
