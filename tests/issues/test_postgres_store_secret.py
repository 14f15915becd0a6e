"""The secret of a store in PostgreSQL, and on its way there and back (issue 15, 1.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.maintenance.copy import move_log
from oncemore.programs.store_secret import load_store_secret
from tests.fixtures import _isolated
from tests.servers import postgres

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["_isolated"]


def test_it_is_created_once_and_moves_with_the_log(tmp_path: Path) -> None:
    try:
        with postgres.database() as url, oncemore.open(url) as one, oncemore.open(url) as other:
            secret = load_store_secret(one)
            assert load_store_secret(other) == secret
            other.close()
            one.close()
            with oncemore.open(url) as source, oncemore.open(tmp_path / "log.db") as target:
                move_log(source, target, reason="back to one machine")
                assert load_store_secret(target) == secret
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))
