"""Every test has a folder of its own, an environment that says nothing, and a store that has seen it all."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.looking.work import everything

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.store.base import Store


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("ONCEMORE_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in which every step has ended in its own way."""
    folder = tmp_path_factory.mktemp("seen")
    engine = oncemore.open(folder / "log.db")
    everything(engine)
    engine.close()
    return folder


@pytest.fixture
def path(seen: Path, tmp_path: Path) -> Path:
    """The file of a store of one's own that has seen it all."""
    shutil.copytree(seen, tmp_path / "seen")
    return tmp_path / "seen" / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """That store, opened to be looked at."""
    from oncemore.desk.service.stores import looked_at

    with looked_at(str(path)) as opened:
        yield opened
