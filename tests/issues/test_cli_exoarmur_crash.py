"""Issue 15, 5: a process that dies in the only attempt of a category leaves its key to a person."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.profiles.exoarmur import IdempotencyManager, RetryManager

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import asyncio, os, signal, sys
import oncemore
from oncemore.profiles.exoarmur import IdempotencyManager, RetryManager

async def die():
    os.kill(os.getpid(), signal.SIGKILL)

with oncemore.open(sys.argv[1]) as engine:
    manager = RetryManager(IdempotencyManager(engine))
    asyncio.run(manager.execute_with_retry(sys.argv[2], "Expire hosts", die, idempotency_key="k-1"))
"""


@pytest.mark.parametrize("category", ["EXECUTION_EXPIRATION", "REPLAY_PROCESSING"])
@pytest.mark.parametrize("decision", ["rerun", "reject"])
def test_a_crash_in_the_only_attempt_is_held_for_a_person(
    tmp_path: Path, category: str, decision: str
) -> None:
    store, done = str(tmp_path / "log.db"), []
    dead = subprocess.run(
        [sys.executable, "-c", PROGRAM, store, category], check=False, capture_output=True, timeout=60
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr

    async def expire() -> str:
        done.append(1)
        return "expired"

    def call(manager: RetryManager) -> Any:
        return asyncio.run(
            manager.execute_with_retry(category, "Expire hosts", expire, idempotency_key="k-1")
        )

    with oncemore.open(store) as engine:
        manager = RetryManager(IdempotencyManager(engine))
        for _ in range(2):
            with pytest.raises(oncemore.Quarantined, match="poison"):
                call(manager)
        assert [event.to_dict()["reason"] for event in manager.audit] == ["quarantined"] * 2
        (item,) = engine.quarantine.list(reason="poison")
        assert done == []
    words = ["quarantine", decision, item.id, "--by", "operator", "--reason", "looked", "--store", store]
    assert cli.run_command(words) == 0
    with oncemore.open(store) as engine:
        assert call(RetryManager(IdempotencyManager(engine))) == "expired"
        assert call(RetryManager(IdempotencyManager(engine))) == "expired"
    assert done == [1]
