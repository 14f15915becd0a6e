"""Workers on a real PostgreSQL server: the same order, the same claims, leases by the server's clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import load_head
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.store import HeadQuery
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.decorator import known_step
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import RunAttempt
from oncemore.workers.takeover import FAR_FUTURE
from oncemore.workers.worker_report import WorkerStats
from tests.servers import postgres
from tests.workers.test_scale import park

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing import FakeClock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


class Unsure(PostgresStore):
    """Cannot tell whether a worker's process is dead: only its lease says so."""

    def is_worker_gone(self, worker: str) -> bool:
        """Know nothing."""
        return False


done: list[Any] = []


def step(name: str, **told: Any) -> Any:
    def work(x: int) -> int:
        done.append((name, x))
        return x

    return oncemore.step(**{"effect": "idempotent", "name": name, **told})(work)


def test_workers_on_postgresql_do_everything_once_and_in_order(url: str, clock: FakeClock) -> None:
    done.clear()
    low, high = step("low", priority="P2"), step("high", priority="P0")
    with Engine(lambda: PostgresStore(url, "workers_many"), "postgresql://") as engine:
        for n in range(4):
            low.submit(n)
            high.submit(n)
        oncemore.Worker(engine, [low, high], concurrency=1).run_until_idle()
        assert done == [("high", n) for n in range(4)] + [("low", n) for n in range(4)]
        for n in range(10, 50):
            low.submit(n)
        crowd = [oncemore.Worker(engine, [low, high], concurrency=2) for _ in range(3)]
        threads = [threading.Thread(target=worker.run_until_idle) for worker in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(done[8:]) == [("low", n) for n in range(10, 50)]
        assert sum(worker.stats.done for worker in crowd) == 40
        low.submit(99, at=engine.now() + 100)
        assert low.cancel(99, reason="no").reason == "cancelled"
        assert low.map(range(100, 110)).values == list(range(100, 110))
        verify_chain(engine.store.read_entries())


def test_what_a_silent_worker_had_is_taken_over_when_its_lease_is_over_and_not_before(
    url: str, clock: FakeClock
) -> None:
    done.clear()
    one = step("one")
    silent, other = (Engine(lambda: Unsure(url, "workers_lease"), "postgresql://") for _ in range(2))
    with other:
        run = one.submit(1)
        call, script, _ = known_step(one).resume_run(silent, load_head(silent.store, f"run/{run.key}"))
        op = next(script)
        while type(op) is not RunAttempt:
            op = script.send(CALL_OPERATIONS.blocking[type(op)](call, op))
        assert silent.leases.heartbeat is not None
        silent.leases.heartbeat.stop_heartbeat()
        clock.advance(silent.lease_s - 10.0)
        assert oncemore.Worker(other, [one]).run_until_idle() == WorkerStats()
        clock.advance(20.0)
        assert oncemore.Worker(other, [one]).run_until_idle() == WorkerStats(done=1)
        script.close()
    silent.close()


def test_the_plan_of_a_look_uses_the_index(url: str) -> None:
    with Engine(lambda: PostgresStore(url, "workers_plan"), "postgresql://") as engine:
        store: Any = engine.store
        for begin in range(0, 20_000, 2000):
            park(store, begin, begin + 2000, "crowd")
        park(store, 0, 20, "few")
        seen: list[str] = []
        real = store.query_rows

        def explained(sql: str, values: Any = ()) -> Any:
            seen.extend(row[0] for row in real(f"explain {sql}", values))
            return real(sql, values)

        store.query_rows = explained
        found = list(store.list_heads(HeadQuery("run", step="few", due_by=FAR_FUTURE, limit=16)))
        store.query_rows = real
    assert len(found) == 16
    plan = "\n".join(seen)
    assert "Index Scan using head_step" in plan
    assert "Sort" not in plan
