"""Fixtures: an empty working directory, and a store with a small pipeline of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.testing import instant_waits
from tests.fixtures import _isolated
from tests.lineage.pipeline import run_pipeline
from tests.stores import jetstream_server, mysql_database, postgres_database, store_url

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.lineage.history import RunHistory


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of a store with the runs of `tests.lineage.pipeline`."""
    path = tmp_path / "log.db"
    with oncemore.open(path) as engine, instant_waits():
        run_pipeline(engine)
    return path


@pytest.fixture
def histories(log: Path) -> list[RunHistory]:
    """The runs of that store, as the exports get them."""
    from oncemore.queries.run_histories import HistoryFilter, read_histories
    from oncemore.queries.stores import open_read_only

    with open_read_only(str(log)) as store:
        return list(read_histories(store, HistoryFilter()))


__all__ = ["_isolated", "jetstream_server", "mysql_database", "postgres_database", "store_url"]
