"""Every store keeps the contract that ships with the package."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore.store.base import Store
from oncemore.store.memory import MemoryStore
from oncemore.store.sqlite import SqliteStore
from oncemore.testing import contract


@pytest.mark.parametrize("check", contract.CHECKS, ids=contract.name)
def test_the_store_in_memory_keeps_the_contract(check: Callable[[Callable[[], Store]], None]) -> None:
    store = MemoryStore()
    check(lambda: store)


@pytest.mark.parametrize("check", contract.CHECKS, ids=contract.name)
def test_the_store_in_a_file_keeps_the_contract(
    check: Callable[[Callable[[], Store]], None], tmp_path: Path
) -> None:
    opened: list[SqliteStore] = []

    def open_store() -> Store:
        opened.append(SqliteStore(tmp_path / "log.db"))
        return opened[-1]

    check(open_store)
    for store in opened:
        store.close()
