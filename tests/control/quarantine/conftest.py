"""Every test of the quarantine has a folder of its own, and an environment that says nothing."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.log.postgres.store import PostgresStore
from oncemore.steps.engine import Engine
from oncemore.testing import FakeClock
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_schemas = count()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("ONCEMORE_") and name != postgres.ADDRESS:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The engine of all steps that a test calls, on each store."""
    if request.param == "postgres":
        address, schema = request.getfixturevalue("server"), f"quarantine_{os.getpid()}_{next(_schemas)}"
        place = oncemore.open("memory:").artifact_store._open_backend
        made = Engine(lambda: PostgresStore(address, schema), "postgresql://", place=place)
    else:
        made = oncemore.open("memory:" if request.param == "memory" else tmp_path / "log.db")
    with made as engine:
        yield engine


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """Time that moves when it is told to."""
    with FakeClock() as clock:
        yield clock
