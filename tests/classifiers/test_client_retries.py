"""The table of clients that retry by themselves is true for the installed versions."""

from __future__ import annotations

import importlib
import inspect
import itertools
from pathlib import Path

import pytest
import redis
import urllib3
from redis.backoff import NoBackoff
from redis.retry import Retry

from oncemore.classifiers.classify import _tables
from tests.classifiers.clients import caught
from tests.servers import faults

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/choose-what-to-retry.md"

#: How often each tries by itself, in the words of the page; `read_default` asks its own code.
SAYS = {
    "anthropic": "2 retries",
    "openai": "2 retries",
    "azure": "10 retries",
    "botocore": "3 attempts",
    "google": "2 minutes",
    "neo4j": "30 s",
    "pystac_client": "5 retries",
    "redis": "10 retries",
    "urllib3": "3 retries",
}


def read_default(module: str) -> float:
    """Return how often, or how long, an installed client tries by itself.

    The clients are imported here, because some of them take seconds to load and every test process collects
    this file.
    """
    match module:
        case "anthropic" | "openai":
            return importlib.import_module(module).DEFAULT_MAX_RETRIES
        case "azure":
            return importlib.import_module("azure.core.pipeline.policies").RetryPolicy().total_retries
        case "botocore":
            return importlib.import_module("botocore.retries.standard").DEFAULT_MAX_ATTEMPTS
        case "google":
            return importlib.import_module("google.api_core.retry").Retry().timeout / 60
        case "neo4j":
            return importlib.import_module("neo4j._conf").SessionConfig.max_transaction_retry_time
        case "pystac_client":
            client = importlib.import_module("pystac_client.stac_api_io").StacApiIO
            return inspect.signature(client).parameters["max_retries"].default
        case "redis":
            return redis.Redis().get_retry().get_retries()
        case "urllib3":
            assert urllib3.Retry.DEFAULT.total is not None
            return urllib3.Retry.DEFAULT.total
    raise LookupError(module)


#: The name in the table on the page, where it is not that of the module.
NAMES = {
    "azure": "azure-core",
    "botocore": "botocore, boto3",
    "google": "google-api-core",
    "pystac_client": "pystac-client",
    "redis": "redis 6 and newer",
}


def read_table() -> dict[str, str]:
    """What each client does by itself, as the page has it."""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    assert any(line.startswith("| client | its default | to try once |") for line in lines)
    assert next(lines) == "| --- | --- | --- |"
    rows = itertools.takewhile(lambda line: line.startswith("| "), lines)
    return {client: does for client, does, _off in (row.strip("| ").split(" | ") for row in rows)}


def test_every_client_with_a_table_of_errors_that_retries_is_listed_once() -> None:
    assert {*SAYS, "grpc"} <= set(_tables)
    assert list(read_table()) == sorted(NAMES.get(module, module) for module in (*SAYS, "grpc"))


@pytest.mark.parametrize("module", SAYS)
def test_the_numbers_are_those_of_the_installed_client(module: str) -> None:
    words = SAYS[module]
    assert f"{read_default(module):g} " in f"{words} "
    assert words in read_table()[NAMES.get(module, module)]


def test_botocore_uses_its_standard_mode_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    import botocore.session

    monkeypatch.delenv("AWS_RETRY_MODE", raising=False)
    assert botocore.session.Session().get_config_variable("retry_mode") == "standard"


def hangs_up(conn: object, server: faults.Server) -> None:
    server.requests.append(conn.recv(1000))  # type: ignore[attr-defined]


def test_redis_repeats_a_write_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.retry, "sleep", lambda _seconds: None)
    with faults.serve(hangs_up) as server:
        caught(redis.Redis(faults.HOST, server.port, protocol=2).incr, "count")
    assert len(server.requests) == 11
    with faults.serve(hangs_up) as server:
        once = redis.Redis(faults.HOST, server.port, protocol=2, retry=Retry(NoBackoff(), 0))
        caught(once.incr, "count")
    assert len(server.requests) == 1


def test_urllib3_repeats_a_get_by_default() -> None:
    with faults.serve(faults.closes) as server, urllib3.PoolManager() as pool:
        caught(pool.request, "GET", server.url)
    assert len(server.requests) == 4
    with faults.serve(faults.closes) as server, urllib3.PoolManager(retries=False) as pool:
        caught(pool.request, "GET", server.url)
    assert len(server.requests) == 1
