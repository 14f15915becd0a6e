"""One fixture for all stores: `store_url`, `open_store` and `store` run a test once for each kind of store.

A test that is meant for some of them says so:

    @pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)

The servers of PostgreSQL, MariaDB and NATS are started when a test of a module first needs them; without
one, its tests are skipped.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.servers import mariadb, nats, postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.log.store import Store

#: The kinds of stores, as parameters of `store_url`.
KINDS = ("memory", "sqlite", "postgres", "mysql", "nats")
#: Numbers of schemas and namespaces: each test has an empty store of its own.
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def postgres_database() -> Iterator[str]:
    """The address of a new database in PostgreSQL."""
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def mysql_database() -> Iterator[str]:
    """The address of a new database in MariaDB."""
    try:
        with mariadb.database() as address:
            yield address
    except mariadb.NoMariadb as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def jetstream_server() -> Iterator[str]:
    """The address of a NATS server with JetStream."""
    try:
        with nats.running(jetstream=True) as (address, _):
            yield address
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each kind, as `oncemore.open` takes it."""
    name = f"store_{next(_numbers)}"
    if request.param == "postgres":
        return f"{request.getfixturevalue('postgres_database')}?schema={name}"
    if request.param == "mysql":
        return f"{request.getfixturevalue('mysql_database')}?prefix={name}"
    if request.param == "nats":
        return f"{request.getfixturevalue('jetstream_server')}/{name}"
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def open_store(store_url: str) -> Iterator[Callable[[], Store]]:
    """A function that opens the store of the test, each time it is called; all are closed at the end."""
    opened: list[Store] = []

    def open_again() -> Store:
        # Imported here: the tests that open no store of a kind do not load its client.
        if store_url.startswith("postgresql:"):
            from oncemore.log.postgres.store import PostgresStore

            opened.append(PostgresStore(store_url))
        elif store_url.startswith("mysql:"):
            from oncemore.log.mysql.store import MysqlStore

            opened.append(MysqlStore(store_url))
        elif store_url.startswith("nats:"):
            from oncemore.log.nats.store import NatsStore

            opened.append(NatsStore(store_url))
        elif store_url.startswith("sqlite:"):
            from oncemore.log.sqlite.store import SqliteStore

            opened.append(SqliteStore(store_url.removeprefix("sqlite:///")))
        elif not opened:  # a store in memory is lost when it is closed: there is one
            from oncemore.log.memory import MemoryStore

            opened.append(MemoryStore())
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Store:
    """An empty store of each kind."""
    return open_store()
