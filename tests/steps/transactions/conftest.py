"""A database of one's own for each test, a store, and a server where one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.servers import postgres
from tests.steps.transactions.databases import KINDS, ON_MYSQL, ON_SQLITE, Database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Each kind of connection in turn."""
    server = ""
    if request.param not in ON_SQLITE:
        server = request.getfixturevalue("mysql_database" if request.param in ON_MYSQL else "server")
    database = Database(request.param, tmp_path, server)
    yield database
    database.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine
