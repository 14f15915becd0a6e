"""Parked runs cost rows only: what is due is found by an index, however much else waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, EntryWrite, HeadIndex, HeadQuery
from oncemore.workers.takeover import FAR_FUTURE

if TYPE_CHECKING:
    from pathlib import Path


def park(store: Any, begin: int, end: int, step: str) -> None:
    """Have many runs wait, all for the same moment: the worst there is for an order by time."""
    writes = tuple(
        EntryWrite(
            f"run/{step}{n:09}", 0, b"h", b"{}", b"x" * 32, b"[1]", HeadIndex("run", "PENDING", 1e9, step)
        )
        for n in range(begin, end)
    )
    store.append(Batch(writes, {}, False)).wait()


def steps_taken(store: SqliteStore, monkeypatch: pytest.MonkeyPatch, query: HeadQuery) -> int:
    """Return how many instructions of its machine SQLite needs for a query."""
    from oncemore.log.sqlite import reader as sqlite

    taken, real = [0], sqlite.fetch_rows

    def counted(source: Any, sql: str, values: tuple[Any, ...] = ()) -> Any:
        connection = source if isinstance(source, apsw.Connection) else source.connection

        def tick() -> bool:
            taken[0] += 1
            return False

        connection.set_progress_handler(tick, 10)
        try:
            return real(source, sql, values)
        finally:
            connection.set_progress_handler(None)

    monkeypatch.setattr(sqlite, "fetch_rows", counted)
    list(store.list_heads(query))
    monkeypatch.undo()
    return taken[0] * 10


def test_the_plan_of_a_look_uses_the_index_and_sorts_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    seen: list[str] = []
    real = store.query_rows

    def explained(sql: str, values: Any = ()) -> Any:
        seen.extend(row[3] for row in real(f"EXPLAIN QUERY PLAN {sql}", values))
        return real(sql, values)

    store.query_rows = explained  # type: ignore[method-assign]
    list(store.list_heads(HeadQuery("run", step="poll", due_by=FAR_FUTURE, limit=16)))
    assert len(seen) == 1, "nothing is sorted"
    assert seen[0].startswith("SEARCH head USING INDEX head_step (kind=? AND step=? AND due")
    seen.clear()
    list(store.list_heads(HeadQuery("worker", due_by=FAR_FUTURE, limit=16)))
    assert seen[0].startswith("SEARCH head USING INDEX head_due (kind=? AND due")
    store.close()


def test_a_look_costs_the_same_with_twenty_thousand_parked_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "log.db")
    queries = [HeadQuery("run", step=name, due_by=FAR_FUTURE, limit=16) for name in ("crowd", "few")]
    park(store, 0, 20, "crowd")
    park(store, 0, 20, "few")
    before = [steps_taken(store, monkeypatch, query) for query in queries]
    for begin in range(20, 20_000, 5000):
        park(store, begin, begin + 5000, "crowd")
    after = [steps_taken(store, monkeypatch, query) for query in queries]
    assert max(before) > 100
    assert all(now <= 1.5 * then + 100 for then, now in zip(before, after, strict=True)), (before, after)
    store.close()


@pytest.mark.timeout(120)
def test_an_idle_worker_looks_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = oncemore.step(effect="idempotent", name="one")(lambda x: x)
    with oncemore.open(tmp_path / "log.db") as engine:
        one.submit(1)
        looks = [0]
        worker = oncemore.Worker(engine, [one], poll_s=0.5)
        real = worker._list_turns

        def look() -> None:
            looks[0] += 1
            real()

        monkeypatch.setattr(worker, "_list_turns", look)
        with worker:
            one.last_run(1).wait(10)  # type: ignore[union-attr]
            import time

            time.sleep(0.3)
            before = looks[0]
            time.sleep(1.2)
            assert looks[0] - before <= 4
