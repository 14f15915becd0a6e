"""The patterns and words of `kfm-rules` match the errors of the real clients."""

from __future__ import annotations

import pytest
from neo4j import exceptions

import oncemore
from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.classifiers.test_stac import answered

REAL = {
    "NEO4J:TransientError.Transaction.DeadlockDetected": lambda: exceptions.Neo4jError._hydrate_neo4j(
        code="Neo.TransientError.Transaction.DeadlockDetected", message="because"
    ),
    "STAC_SLOWDOWN": lambda: answered(503, b"<Error><Code>SlowDown</Code></Error>"),
    "HTTP_429": lambda: answered(429),
    "HTTP_502": lambda: answered(502),
}


def calls(error: BaseException) -> int:
    made = []

    @oncemore.retry(on="transient", policy="kfm-rules")
    def work() -> None:
        made.append(1)
        raise error

    with oncemore.testing.instant_waits():
        assert caught(work) is error
    return len(made)


@pytest.mark.req("CLASS-1")
@pytest.mark.parametrize("code", REAL)
def test_the_real_error_has_the_code_and_is_retried(code: str) -> None:
    error = REAL[code]()
    assert classify(error, 0.0).code == code
    assert calls(error) == 5


def test_an_error_that_the_rules_do_not_name_is_called_once() -> None:
    refused = exceptions.Neo4jError._hydrate_neo4j(code="Neo.ClientError.Statement.SyntaxError", message="m")
    assert calls(refused) == 1
    assert calls(answered(404)) == 1
