"""Every test here has an isolated environment; a ledger has a key and a folder as its second place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.governance.checkpoint_copies import FolderPlace
from oncemore.governance.checkpoints import LedgerSigner
from oncemore.governance.keys import generate_key
from tests.fixtures import _isolated, clock, engine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["_isolated", "clock", "engine"]


@pytest.fixture
def signer(tmp_path: Path) -> LedgerSigner:
    """A signer with a new key, which copies checkpoints to a folder."""
    return LedgerSigner(generate_key(), FolderPlace(tmp_path / "copies"))
