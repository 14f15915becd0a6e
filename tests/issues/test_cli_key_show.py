"""`oncemore runs key show KEY` lists all idempotency operations of a key (IDEM-19)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import cli
from oncemore.audit import AuditFile
from oncemore.profiles.exoarmur import IdempotencyManager, RetryCategory, RetryManager
from oncemore.testing import FakeClock
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["_isolated"]


async def operate(manager: RetryManager, key: str, correlation_id: str) -> None:
    async def work() -> int:
        return 1

    await manager.execute_with_retry(
        RetryCategory.KV_PUT, "put_switch", work, idempotency_key=key, correlation_id=correlation_id
    )


@pytest.mark.req("IDEM-19")
def test_all_operations_of_a_key_are_listed_in_order_with_times_and_correlation_ids(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "key-of-the-operation"
    with oncemore.open("log.db") as engine, AuditFile("audit.jsonl") as sink:
        manager = RetryManager(IdempotencyManager(engine), on_event=sink)

        async def live() -> None:
            await operate(manager, key, "corr-1")  # recorded
            await operate(manager, key, "corr-2")  # a hit
            await operate(manager, "another-key", "corr-9")
            await manager.idempotency_manager.clear_idempotency(key)
            await operate(manager, key, "corr-3")  # recorded again
            await operate(manager, key, "corr-4")  # a hit

        asyncio.run(live())
        with FakeClock() as clock:
            clock.advance(120)
            engine.prune(older_than=60, reason="kept long enough")
    assert (
        cli.run_command(["runs", "key", "show", key, "--audit", "audit.jsonl", "--store", "log.db", "--json"])
        == 0
    )
    told = json.loads(capfd.readouterr().out)
    assert told["key"] == key
    operations = told["operations"]
    assert [one["action"] for one in operations] == ["record", "hit", "clear", "record", "hit", "expiry"]
    assert [one["correlation_id"] for one in operations] == [
        "corr-1", "corr-2", "corr-1", "corr-3", "corr-4", "corr-3",
    ]  # fmt: skip
    times = [one["at"] for one in operations]
    assert times == sorted(times)
    assert cli.run_command(["runs", "key", "show", key[:12], "--store", "log.db"]) == 0
    out = capfd.readouterr().out
    assert (out.count("record"), out.count("hit"), "corr-3" in out) == (2, 0, True)


def test_a_key_that_is_in_no_log_is_audited_by_its_events(capfd: pytest.CaptureFixture[str]) -> None:
    with oncemore.open("log.db") as engine:
        engine.store.load_head("run/none")
    with AuditFile("audit.jsonl") as sink:
        manager = RetryManager(IdempotencyManager(), on_event=sink)

        async def live() -> None:
            await operate(manager, "a-key", "corr-1")
            await operate(manager, "a-key", "corr-2")

        asyncio.run(live())
    assert (
        cli.run_command(
            ["runs", "key", "show", "a-key", "--audit", "audit.jsonl", "--store", "log.db", "--json"]
        )
        == 0
    )
    found = json.loads(capfd.readouterr().out)["operations"]
    assert [(one["action"], one["source"]) for one in found] == [
        ("record", "audit.jsonl"),
        ("hit", "audit.jsonl"),
    ]
    assert cli.run_command(["runs", "key", "show", "nobody-has-this", "--store", "log.db"]) == 2
    assert "there is no key 'nobody-has-this'" in " ".join(capfd.readouterr().err.split())
