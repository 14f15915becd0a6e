"""Every test starts in its own folder, without settings and without loaded policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.governance.checkpoint_copies import FolderPlace
from oncemore.governance.checkpoints import LedgerSigner
from oncemore.governance.keys import generate_key
from oncemore.policy import files
from tests.fixtures import _isolated, clock, engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["_isolated", "clock", "engine"]


@pytest.fixture(autouse=True)
def _no_loaded_policies() -> Iterator[None]:
    files.forget()
    yield
    files.forget()


@pytest.fixture
def signer(tmp_path: Path) -> LedgerSigner:
    """A signer with a new key, which copies checkpoints to a folder."""
    return LedgerSigner(generate_key(), FolderPlace(tmp_path / "copies"))
