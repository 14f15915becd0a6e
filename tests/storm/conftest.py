"""The warm parent, which is started once, and a new place for each storm."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.storm.crew import Crew, Warm

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture
def crew(warm: Warm) -> Iterator[Crew]:
    """A short path: that of a unix socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        crew = Crew(warm, Path(folder))
        yield crew
        crew.close()
