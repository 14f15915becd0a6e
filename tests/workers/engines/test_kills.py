"""Processes of an executor are killed by chance, and what they were to do is done once."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.workers.engines import work
from tests.workers.engines.test_executors import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = bool(os.environ.get("ONCEMORE_TORTURE"))
ITEMS, ROUNDS, MOST_KILLED = (60, 10, 12) if LONG else (16, 1, 3)


def killed(step: Any, items: list[Any], pick: random.Random, effects: Callable[[], int]) -> Any:
    """Carry out a job while processes of its pool are killed; those of its replacements too.

    The next one is killed some time after something was done again: who kills faster than a process can start
    has nobody left to show anything by.
    """
    over, deaths = threading.Event(), []

    def kill() -> None:
        seen = 0
        while len(deaths) < MOST_KILLED and not over.wait(0.01):
            if effects() > seen and not over.wait(pick.uniform(0.0, 0.1)):
                deaths.extend(work.kill_some(_children(), 1, pick, (0, 0)))
                seen = effects()

    with processes(3) as pool:
        pool.submit(os.getpid).result(60)
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        try:
            return step.map(items, unpack="args", executor=pool), len(deaths)
        finally:
            over.set()
            killer.join(10)


def _children() -> list[int]:
    """The processes of this process's pools: children of its fork server."""
    from multiprocessing import active_children

    return [child.pid for child in active_children() if child.pid is not None]


def written_in(ledger: str) -> list[int]:
    """The rows of the ledger."""
    with closing(sqlite3.connect(ledger, timeout=30)) as rows:
        return [row[0] for row in rows.execute("SELECT n FROM orders ORDER BY n")]


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_rows_are_there_once_and_payments_at_most_once(tmp_path: Path, round_: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    pick, ledger, path = random.Random(seed), str(tmp_path / "ledger.db"), tmp_path / "payments"
    with closing(sqlite3.connect(ledger)) as rows:
        rows.execute("CREATE TABLE orders(n INTEGER)")
    with oncemore.open(tmp_path / "log.db") as engine:
        booked, deaths = killed(
            work.book, [(n, ledger, 0.05) for n in range(ITEMS)], pick, lambda: len(written_in(ledger))
        )
        assert deaths, "nobody died"
        written = written_in(ledger)
        done = [item.number for item in booked.items if item.outcome == "done"]
        assert len(written) == len(set(written)), "a row was written twice"
        assert set(done) <= set(written)
        left = [item for item in booked.items if item.outcome != "done"]
        assert {item.outcome for item in left} <= {"held"}, left  # killed as often as it may be tried

        paid, deaths = killed(
            work.pay, [(n, str(path), 0.02) for n in range(ITEMS)], pick, lambda: len(work.noted(path))
        )
        assert deaths, "nobody died"
        lines = [int(line) for line in work.noted(path)]
        assert len(lines) == len(set(lines)), "somebody was paid twice"
        assert {item.outcome for item in paid.items} <= {"done", "held"}
        assert {item.number for item in paid.items if item.outcome == "done"} <= set(lines)
        verify_chain(engine.store.read_entries())
