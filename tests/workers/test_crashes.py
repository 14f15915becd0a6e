"""A job whose process dies before or after any of its writes is finished by calling it again."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain


class Crash(BaseException):
    """The process dies here."""


class Dying(MemoryStore):
    """Dies before or after its n-th write, and does nothing more then."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_at: tuple[int, str] | None = None
        self.writes = 0
        self.dead = False

    def append(self, batch: Any) -> Any:
        self.writes += 1
        if self.dead or self.dies_at == (self.writes, "before"):
            self.dead = True
            raise Crash
        ticket = super().append(batch)
        if self.dies_at == (self.writes, "after"):
            self.dead = True
            raise Crash
        return ticket

    def close(self) -> None:
        """Stay: the next process finds what is there."""

    def reborn(self) -> None:
        """Be there for the next process: everybody who was here is gone."""
        self.dead, self.dies_at, self.writes = False, None, 0
        self._live_workers.clear()


def _engine(store: Dying) -> Engine:
    return Engine(lambda: store, "memory:")


def _job(executed: Counter[int]) -> Any:
    @oncemore.step(effect="idempotent", name="fetch")
    def fetch(x: int) -> int:
        executed[x] += 1
        if x == 1 and oncemore.current().number == 1:
            raise ConnectionError("down")
        return x * 10

    return fetch


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_dies_at_any_write_is_finished_by_calling_it_again(when: str) -> None:
    for number in itertools.count(1):
        store, executed = Dying(), Counter[int]()
        fetch = _job(executed)
        store.dies_at = (number, when)
        try:
            with oncemore.testing.instant_waits():
                fetch.bind(_engine(store)).map(range(3), max_concurrency=1)
            break
        except Crash:
            pass
        store.reborn()
        with oncemore.testing.instant_waits(), _engine(store) as engine:
            assert fetch.map(range(3), max_concurrency=1).values == [0, 10, 20]
            assert sum(executed.values()) <= 5, "only what was under way is done again"
            oncemore.Worker(engine, [fetch]).run_until_idle()
            assert {job.state for job in engine.jobs()} <= {"DONE", "LOST"}
            assert sum(job.state == "DONE" for job in engine.jobs()) >= 1
            verify_chain(store.read_entries())
    assert number > 8


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2], ids=["policy", "run"])
def test_work_that_is_handed_in_by_a_process_that_dies_is_there_once_or_not_at_all(
    number: int, when: str
) -> None:
    store, executed = Dying(), Counter[int]()
    fetch = _job(executed)
    store.dies_at = (number, when)
    with pytest.raises(Crash):
        fetch.bind(_engine(store)).submit(5)
    store.reborn()
    with _engine(store) as engine:
        assert (fetch.last_run(5) is None) == ((number, when) != (2, "after"))
        fetch.submit(5)
        assert oncemore.Worker(engine, [fetch]).run_until_idle().done == 1
        assert executed == {5: 1}
