"""A job whose process crashes before or after any of its writes is finished by calling it again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.crash.harness import (
    CrashingStore,
    CrashPoint,
    ProcessCrash,
    crash_at_every_write,
    open_engine_on,
)


def _job(executed: Counter[int]) -> Any:
    @oncemore.step(effect="idempotent", name="fetch")
    def fetch(x: int) -> int:
        executed[x] += 1
        if x == 1 and oncemore.current().number == 1:
            raise ConnectionError("down")
        return x * 10

    return fetch


def test_a_job_that_crashes_at_any_write_is_finished_by_calling_it_again() -> None:
    executed: Counter[int] = Counter()
    fetch = _job(executed)

    def start() -> CrashingStore:
        executed.clear()
        return CrashingStore()

    def run(store: CrashingStore) -> None:
        with oncemore.testing.instant_waits():
            fetch.bind(open_engine_on(store)).map(range(3), max_concurrency=1)

    crashes = 0
    for store in crash_at_every_write(start, run):
        crashes += 1
        with oncemore.testing.instant_waits(), open_engine_on(store) as engine:
            assert fetch.map(range(3), max_concurrency=1).values == [0, 10, 20]
            assert sum(executed.values()) <= 5, "only attempts that were under way are repeated"
            oncemore.Worker(engine, [fetch]).run_until_idle()
            assert {job.state for job in engine.jobs()} <= {"DONE", "LOST"}
            assert sum(job.state == "DONE" for job in engine.jobs()) >= 1
            verify_chain(store.read_entries())
    assert crashes > 16


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2], ids=["policy", "run"])
def test_a_run_submitted_by_a_process_that_crashes_is_stored_once_or_not_at_all(
    number: int, when: Any
) -> None:
    store, executed = CrashingStore(), Counter[int]()
    fetch = _job(executed)
    with pytest.raises(ProcessCrash):
        store.run(lambda store: fetch.bind(open_engine_on(store)).submit(5), CrashPoint(number, when))
    with open_engine_on(store) as engine:
        assert (fetch.last_run(5) is None) == ((number, when) != (2, "after"))
        fetch.submit(5)
        assert oncemore.Worker(engine, [fetch]).run_until_idle().done == 1
        assert executed == {5: 1}
