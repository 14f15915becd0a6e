"""Servers and helpers for the tests of the classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers import nats, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients connect directly to the loopback servers, without the proxies of the machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    try:
        with postgres.running(fsync="off", deadlock_timeout="50ms") as url:
            yield url
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A server without JetStream."""
    try:
        with nats.running(jetstream=False) as (url, _):
            yield url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def jetstream_url() -> Iterator[str]:
    try:
        with nats.running(jetstream=True) as (url, _):
            yield url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))
