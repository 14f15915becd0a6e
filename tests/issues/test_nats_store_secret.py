"""The secret of a store in JetStream, and on its way there (issue 15, 1.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.maintenance.copy import move_log
from oncemore.programs.store_secret import load_store_secret
from oncemore.testing import nats
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["_isolated"]


def test_it_is_created_once_and_moves_with_the_log(tmp_path: Path) -> None:
    try:
        with nats.node() as node:
            with oncemore.open(f"{node.url}/made") as one, oncemore.open(f"{node.url}/made") as other:
                assert load_store_secret(one) == load_store_secret(other)
            with oncemore.open(tmp_path / "log.db") as source, oncemore.open(f"{node.url}/moved") as target:
                secret = load_store_secret(source)
                move_log(source, target, reason="several machines")
                assert load_store_secret(target) == secret
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))
