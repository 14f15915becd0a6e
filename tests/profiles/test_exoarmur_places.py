"""Where idempotent results are kept, and what memory does at its limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.config import names_a_store
from oncemore.errors import Error
from oncemore.profiles import exoarmur
from oncemore.profiles.exoarmur import IdempotencyManager, RetryManager
from tests.engine.colours import Script
from tests.profiles.test_exoarmur_idempotency import write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONCEMORE_STORE", raising=False)


def test_a_full_memory_refuses_new_keys_instead_of_forgetting_old_ones() -> None:
    manager = RetryManager(IdempotencyManager(most=2))
    assert [write(manager, Script(number), str(number)) for number in (1, 2)] == [1, 2]
    script = Script(3)
    with pytest.raises(Error, match="2 idempotency records are kept, which is the most"):
        write(manager, script, "3")
    with pytest.raises(Error, match="2 idempotency records are kept"):
        asyncio.run(manager.idempotency_manager.record_result("3", 3))
    assert script.calls == 0
    assert write(manager, Script(), "1") == 1
    asyncio.run(manager.idempotency_manager.clear_idempotency("1"))
    assert write(manager, script, "3") == 3


def test_without_a_word_results_are_in_memory_and_end_with_the_process(tmp_path: Path) -> None:
    manager = IdempotencyManager()
    assert manager.durable is False
    asyncio.run(manager.record_result("k", 1))
    assert list(tmp_path.iterdir()) == []


def test_inside_an_engine_they_are_in_its_log(tmp_path: Path) -> None:
    manager = IdempotencyManager()
    with oncemore.open("log.db"):
        assert manager.durable is True
        asyncio.run(manager.record_result("k", 1))
    assert manager.durable is False
    assert asyncio.run(manager.check_idempotency("k")) is None
    with oncemore.open("memory:"):
        assert manager.durable is False, "a log in memory ends with the process as well"
    for store in ("sqlite:///log.db", tmp_path / "log.db", lambda: oncemore.open("log.db")):
        assert asyncio.run(IdempotencyManager(store).check_idempotency("k")) == 1


def test_settings_that_name_a_store_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_a_store() is False
    (tmp_path / "oncemore.toml").write_text("lease_s = 30\n")
    assert IdempotencyManager().durable is False
    (tmp_path / "oncemore.toml").write_text("store = 'state.db'\n")
    assert IdempotencyManager().durable is True
    (tmp_path / "oncemore.toml").unlink()
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "other.db"))
    assert IdempotencyManager().durable is True


def test_the_manager_of_the_process_is_durable_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exoarmur, "_shared", [])
    manager = exoarmur.get_retry_manager()
    assert manager.idempotency_manager.durable is True
    with oncemore.open("log.db"):
        assert write(manager, Script("value")) == "value"
    assert (tmp_path / "log.db").is_file()
    assert not (tmp_path / ".oncemore").exists()
