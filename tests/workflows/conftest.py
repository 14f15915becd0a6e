"""Every test here has a folder and an environment of its own; `any_engine` runs it on every kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.fixtures import _isolated, clock, engine
from tests.stores import jetstream_server, mysql_database, postgres_database, store_url

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "_isolated",
    "clock",
    "engine",
    "jetstream_server",
    "mysql_database",
    "postgres_database",
    "store_url",
]


@pytest.fixture
def any_engine(store_url: str) -> Iterator[oncemore.Engine]:
    """An engine on an empty store of each kind."""
    with oncemore.open(store_url) as engine:
        yield engine
