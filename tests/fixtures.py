"""Fixtures of many folders: a working directory, an empty environment, a store and a fake clock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("ONCEMORE_"):
            monkeypatch.delenv(name)


@pytest.fixture(params=["sqlite", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[oncemore.Engine]:
    """The engine of all steps that a test calls."""
    with oncemore.open(tmp_path / "log.db" if request.param == "sqlite" else "memory:") as engine:
        yield engine


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """Waits end at once; `clock.delays` has what was planned."""
    with FakeClock() as clock:
        yield clock
