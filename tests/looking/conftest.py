"""Every test has a folder of its own, an environment that says nothing, and a store that has seen it all."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.looking.work import everything

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.log.store import Store


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("ONCEMORE_"):
            monkeypatch.delenv(name)


#: The store that was made last, and when; after a while, what waits in it would be overdue.
MADE: list[tuple[Path, float]] = []
FRESH_S = 60.0


@pytest.fixture
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in which every step has ended in its own way, a moment ago."""
    if not MADE or time.monotonic() - MADE[-1][1] > FRESH_S:
        folder = tmp_path_factory.mktemp("seen")
        with oncemore.open(folder / "log.db") as engine:
            everything(engine)
        MADE.append((folder, time.monotonic()))
    return MADE[-1][0]


@pytest.fixture
def path(seen: Path, tmp_path: Path) -> Path:
    """The file of a store of one's own that has seen it all."""
    shutil.copytree(seen, tmp_path / "seen")
    return tmp_path / "seen" / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """That store, opened to be looked at."""
    from oncemore.queries.open_engine import looked_at

    with looked_at(str(path)) as opened:
        yield opened
