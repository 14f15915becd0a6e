"""Fixtures: a folder per test, an environment without settings, and a store with runs in every state."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.fixtures import _isolated
from tests.queries.work import run_all_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.log.store import Store


#: The store that was made last, and when; after a while, what waits in it would be overdue.
MADE: list[tuple[Path, float]] = []
FRESH_S = 60.0


@pytest.fixture
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has a fresh run of every step in `tests.queries.work`."""
    if not MADE or time.monotonic() - MADE[-1][1] > FRESH_S:
        folder = tmp_path_factory.mktemp("seen")
        with oncemore.open(folder / "log.db") as engine:
            run_all_steps(engine)
        MADE.append((folder, time.monotonic()))
    return MADE[-1][0]


@pytest.fixture
def path(seen: Path, tmp_path: Path) -> Path:
    """The file of a private copy of that store."""
    shutil.copytree(seen, tmp_path / "seen")
    return tmp_path / "seen" / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """That store, opened for reading."""
    from oncemore.queries.stores import open_read_only

    with open_read_only(str(path)) as opened:
        yield opened


__all__ = ["_isolated"]
