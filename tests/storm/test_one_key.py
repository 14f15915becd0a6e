"""However many call with one key at once, in threads, tasks or processes: one execution, one result."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from tests.storm import storm
from tests.storm.work import MOST_ATTEMPTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.storm.crew import Crew

EFFECTS = ("pure", "idempotent", "outbox", "once")
MANY = 64


@pytest.mark.parametrize("effect", EFFECTS)
def test_64_threads_on_one_key_make_one_execution(tmp_path: Path, effect: Any) -> None:
    executions: list[str] = []

    @oncemore.step(effect=effect)
    def work(order: str) -> dict[str, Any]:
        executions.append(order)
        time.sleep(0.02)
        return {"order": order, "fence": oncemore.current().fence}

    with oncemore.open(tmp_path / "log.db") as engine:
        for order in ("a", "b", "c", "d", "e"):
            told: list[Any] = []
            line = threading.Barrier(MANY)

            def one(order: str = order, told: list[Any] = told, line: threading.Barrier = line) -> None:
                line.wait()
                told.append(work.bind(engine)(order))

            _all_of([threading.Thread(target=one) for _ in range(MANY)])
            assert told == [{"order": order, "fence": 1}] * MANY
    assert executions == ["a", "b", "c", "d", "e"]


def test_threads_that_are_told_not_to_wait_hear_who_is_at_it(tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    @oncemore.step(effect="once", if_running="raise")
    def work() -> str:
        begun.set()
        assert end.wait(30)
        return "done"

    with oncemore.open(tmp_path / "log.db") as engine:
        first = threading.Thread(target=work.bind(engine))
        first.start()
        assert begun.wait(30)
        for _ in range(10):
            with pytest.raises(oncemore.InProgress) as refused:
                work()
            assert refused.value.worker
            assert refused.value.until > engine.now()
        end.set()
        first.join()
        assert work() == "done"


@pytest.mark.parametrize("effect", EFFECTS)
def test_64_asyncio_tasks_on_one_key_make_one_execution(tmp_path: Path, effect: Any) -> None:
    executions: list[str] = []

    @oncemore.step(effect=effect)
    async def work(order: str) -> dict[str, Any]:
        executions.append(order)
        await asyncio.sleep(0.02)
        return {"order": order, "fence": oncemore.current().fence}

    async def main() -> list[Any]:
        return await asyncio.gather(*[work(order) for order in ("a", "b", "c") for _ in range(MANY)])

    with oncemore.open(tmp_path / "log.db"):
        told = asyncio.run(main())
    assert told == [{"order": order, "fence": 1} for order in ("a", "b", "c") for _ in range(MANY)]
    assert sorted(executions) == ["a", "b", "c"]


@pytest.mark.parametrize("effect", EFFECTS)
def test_64_trio_tasks_on_one_key_make_one_execution(tmp_path: Path, effect: Any) -> None:
    executions: list[str] = []
    told: list[Any] = []

    @oncemore.step(effect=effect)
    async def work(order: str) -> dict[str, Any]:
        executions.append(order)
        await trio.sleep(0.02)
        return {"order": order, "fence": oncemore.current().fence}

    async def one(order: str) -> None:
        told.append(await work(order))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for order in ("a", "b", "c"):
                for _ in range(MANY):
                    nursery.start_soon(one, order)

    with oncemore.open(tmp_path / "log.db"):
        trio.run(main)
    assert sorted(answer["order"] for answer in told) == ["a"] * MANY + ["b"] * MANY + ["c"] * MANY
    assert {answer["fence"] for answer in told} == {1}
    assert sorted(executions) == ["a", "b", "c"]


def test_threads_in_several_event_loops_on_one_key_make_one_execution(tmp_path: Path) -> None:
    executions: list[int] = []
    told: list[Any] = []

    @oncemore.step(effect="idempotent")
    async def work(order: str) -> int:
        executions.append(oncemore.current().number)
        await asyncio.sleep(0.05)
        return 1

    with oncemore.open(tmp_path / "log.db") as engine:

        async def main() -> None:
            told.extend(await asyncio.gather(*[work.bind(engine)("a") for _ in range(16)]))

        _all_of([threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)])
    assert told == [1] * MANY
    assert executions == [1]


@pytest.mark.req("IDEM-11")
@pytest.mark.parametrize("step", ["compute", "charge", "announce", "pay", "wire"])
def test_50_callers_in_4_processes_make_one_call_and_get_the_same(crew: Crew, step: str) -> None:
    at = time.monotonic() + 0.6
    workers = [crew.start("callers", step=step, order="o", threads=n, at=at) for n in (12, 12, 13, 13)]
    for worker in workers:
        assert worker.wait() == 0, crew.complaints()
    values = [ack["value"] for ack in crew.acks()]
    assert values == values[:1] * 50
    assert [effect["attempt"] for effect in crew.effects()] == [1]
    assert not storm.report(crew).violations
    assert not crew.complaints()


@pytest.mark.parametrize("step", ["charge", "pay"])
def test_64_processes_on_one_key_make_one_call_and_get_the_same(crew: Crew, step: str) -> None:
    at = time.monotonic() + 2.0
    workers = [crew.call(step, "o", at=at) for _ in range(MANY)]
    for worker in workers:
        assert worker.wait() == 0, crew.complaints()
    values = [ack["value"] for ack in crew.acks()]
    assert values == values[:1] * MANY
    assert [effect["attempt"] for effect in crew.effects()] == [1]
    report = storm.report(crew)
    print(report)
    assert not report.violations
    assert not crew.complaints()


@pytest.mark.req("LEASE-7")
def test_ten_redeliveries_of_work_that_fails_make_no_more_calls_than_it_may_have(crew: Crew) -> None:
    at = time.monotonic() + 0.6
    workers = [crew.call("charge", "o", fails=99, at=at) for _ in range(5)]
    for worker in workers:
        assert worker.wait() == 0, crew.complaints()
    for _ in range(5):
        assert crew.call("charge", "o", fails=99).wait() == 0
    assert [ack["error"] for ack in crew.acks()] == ["RetriesExhausted"] * 10
    assert [effect["attempt"] for effect in crew.effects()] == list(range(1, MOST_ATTEMPTS + 1))
    assert not storm.report(crew).violations


def _all_of(team: list[threading.Thread]) -> None:
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
