"""Every known client against every fault: its code, and the outcome under every policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.classifiers.classify import _tables, classify
from oncemore.limits.breaker_rules import BreakerRules, counts_as_failure
from oncemore.policy import files
from oncemore.policy.files import loader
from oncemore.policy.files.file_reader import PACKAGED_FILES
from oncemore.policy.verdict import decide_verdict
from tests.classifiers.outages import raise_fault
from tools import outages

if TYPE_CHECKING:
    from oncemore.policy.model import Failure

#: Top-level modules that have rules of their own, and the client of the table that meets them.
MODULES = {
    "aiohttp": "aiohttp", "anthropic": "anthropic", "apsw": "apsw", "asyncpg": "asyncpg",
    "azure": "azure-core", "botocore": "botocore", "builtins": "Python sockets", "google": "google-api-core",
    "grpc": "grpc", "h11": "httpx", "http": "http.client", "httpcore": "httpx", "httpcore2": "httpx2",
    "httpx": "httpx", "httpx2": "httpx2", "jsonschema": "jsonschema-rs", "jsonschema_rs": "jsonschema-rs",
    "msgspec": "msgspec", "nats": "nats-py", "neo4j": "neo4j", "openai": "openai", "psycopg": "psycopg",
    "psycopg_pool": "psycopg", "pydantic": "pydantic", "pydantic_core": "pydantic", "pystac": "pystac",
    "pystac_client": "pystac-client", "redis": "redis", "requests": "requests", "socket": "Python sockets",
    "sqlalchemy": "SQLAlchemy", "sqlite3": "sqlite3", "ssl": "Python sockets", "urllib": "urllib",
    "urllib3": "urllib3",
}  # fmt: skip
#: Rules for something else than a client: streams of event loops, processes, retry libraries, our own errors.
#: The clients of RabbitMQ and Kafka have tests of their own (test_brokers.py) and are not in the table yet.
NO_CLIENTS = {"anyio", "pika", "cimpl", "asyncio", "oncemore", "subprocess", "tenacity", "trio"}

ADDRESSES = [f"{name}/{policy}" for name in PACKAGED_FILES for policy in files.profile(name).policies]


def list_policies(column: str) -> list[str]:
    """Return the addresses that a column of the table stands for."""
    found = []
    for address in outages.COLUMNS[column]:
        head = address.removesuffix("*")
        found += [one for one in ADDRESSES if one.startswith(head)] if address != head else [address]
    return found


def compute_outcome(failure: Failure, address: str) -> str:
    """Return the outcome of a failure by the same pure functions that the engine uses."""
    meant = decide_verdict(failure, files.policy(address), "idempotent")
    if meant == "TERMINAL" and loader.step_settings(address).quarantines:
        meant = "QUARANTINE"
    return {"RETRYABLE": outages.R, "TERMINAL": outages.F, "QUARANTINE": outages.Q}[meant]


def compute_counts(failure: Failure, outcome: str) -> str:
    """Return whether a failure counts for a breaker: when it is retried, and when it is put off."""
    meant = "RETRYABLE" if outcome == outages.R else "TERMINAL"
    now, later = (
        counts_as_failure(BreakerRules(), failure, meant, action, already=False, probe=False)  # type: ignore[arg-type]
        for action in ("retry", "defer")
    )
    return "yes" if now else "deferred" if later else "no"


def test_no_client_and_no_policy_is_missing_from_the_table() -> None:
    assert set(_tables) - {"tests"} - NO_CLIENTS == set(MODULES)
    assert set(MODULES.values()) == set(outages.CLIENTS)
    assert sorted(one for column in outages.COLUMNS for one in list_policies(column)) == sorted(ADDRESSES)


@pytest.mark.parametrize("client", outages.CLIENTS)
def test_a_clients_faults_have_the_codes_and_outcomes_of_the_table(client: str) -> None:
    for fault, code in outages.CLIENTS[client].items():
        failure = classify(raise_fault(client, fault), 0.0)
        assert failure.code == code, fault
        for column in outages.COLUMNS:
            expected, counts = outages.expect_outcome(client, fault, column)
            for address in list_policies(column):
                outcome = compute_outcome(failure, address)
                assert (fault, address, outcome) == (fault, address, expected)
                assert (fault, address, compute_counts(failure, outcome)) == (fault, address, counts)


def test_the_page_is_up_to_date() -> None:
    page = outages.PAGE.read_text(encoding="utf-8")
    assert page == outages.render_page(), "run python tools/outages.py --write"
