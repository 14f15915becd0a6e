"""The places of idempotent results, and the limit of memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.config import is_store_configured
from oncemore.errors import Error
from oncemore.profiles import exoarmur
from oncemore.profiles.exoarmur import IdempotencyManager, RetryManager
from tests.profiles.test_exoarmur_idempotency import write
from tests.retries.colours import Script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONCEMORE_STORE", raising=False)


def test_a_full_memory_refuses_new_keys_and_keeps_old_records() -> None:
    manager = RetryManager(IdempotencyManager(max_records=2))
    assert [write(manager, Script(number), str(number)) for number in (1, 2)] == [1, 2]
    script = Script(3)
    with pytest.raises(Error, match="all 2 idempotency records in memory are in use"):
        write(manager, script, "3")
    with pytest.raises(Error, match="all 2 idempotency records in memory are in use"):
        asyncio.run(manager.idempotency_manager.record_result("3", 3))
    assert script.calls == 0
    assert write(manager, Script(), "1") == 1
    asyncio.run(manager.idempotency_manager.clear_idempotency("1"))
    assert write(manager, script, "3") == 3


def test_without_a_store_results_are_in_memory(tmp_path: Path) -> None:
    manager = IdempotencyManager()
    assert manager.is_durable is False
    asyncio.run(manager.record_result("k", 1))
    assert list(tmp_path.iterdir()) == []


def test_inside_an_engine_results_are_in_its_log(tmp_path: Path) -> None:
    manager = IdempotencyManager()
    with oncemore.open("log.db"):
        assert manager.is_durable is True
        asyncio.run(manager.record_result("k", 1))
    assert manager.is_durable is False
    assert asyncio.run(manager.check_idempotency("k")) is None
    with oncemore.open("memory:"):
        assert manager.is_durable is False, "a log in memory ends with the process as well"
    for store in ("sqlite:///log.db", tmp_path / "log.db", lambda: oncemore.open("log.db")):
        assert asyncio.run(IdempotencyManager(store).check_idempotency("k")) == 1


def test_a_store_in_the_settings_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_store_configured() is False
    (tmp_path / "oncemore.toml").write_text("lease_s = 30\n")
    assert IdempotencyManager().is_durable is False
    (tmp_path / "oncemore.toml").write_text("store = 'state.db'\n")
    assert IdempotencyManager().is_durable is True
    (tmp_path / "oncemore.toml").unlink()
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "other.db"))
    assert IdempotencyManager().is_durable is True


def test_the_manager_of_the_process_is_durable_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.profiles.exoarmur.manager._shared_manager", [])
    manager = exoarmur.get_retry_manager()
    assert manager.idempotency_manager.is_durable is True
    with oncemore.open("log.db"):
        assert write(manager, Script("value")) == "value"
    assert (tmp_path / "log.db").is_file()
    assert not (tmp_path / ".oncemore").exists()
