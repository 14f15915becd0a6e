"""A store that looks late: the claim stands, what it relied on has moved, and nothing begins by it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import Cancelled, NotPermitted, StepFailed, StoreError
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.steps.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

calls: list[Any] = []


class Late(MemoryStore):
    """Looks late, and lets a test do something just before or after a claim is stored."""

    def __init__(self) -> None:
        super().__init__(checks_guards_late=True)
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[Batch], object]] = []
        self.late: list[bool] = []

    def append(self, batch: Batch) -> CompletedTicket:
        claims = batch.writes[0].entity.startswith("run/") and batch.writes[0].by.state == "RUNNING"
        if not claims:
            return super().append(batch)
        self.late.append(batch.late)
        while self.before:
            self.before.pop()()
        answer = super().append(batch)
        while self.after:
            self.after.pop()(batch)
        return answer


@pytest.fixture
def store() -> Late:
    calls.clear()
    return Late()


@pytest.fixture
def engine(store: Late) -> Iterator[Engine]:
    with Engine(lambda: store, "memory:late") as made:
        made.leases.current_identity()
        yield made


@oncemore.step(effect="idempotent", name="late.work")
def work(n: int) -> int:
    calls.append((n, oncemore.current().number))
    return n


@oncemore.step(effect="once", name="late.task")
async def task(n: int) -> int:
    calls.append((n, oncemore.current().number))
    return n


def call(engine: Engine, kind: str, n: int) -> Any:
    if kind == "blocking":
        return work.bind(engine)(n)
    return asyncio.run(task.bind(engine)(n))  # type: ignore[arg-type]


def last(engine: Engine, kind: str, n: int) -> Any:
    run = (work if kind == "blocking" else task).bind(engine).last_run(n)
    assert run is not None
    return run


@pytest.mark.req("AUTO-7")
@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_switch_thrown_between_the_look_and_the_claim_stops_the_attempt(
    engine: Engine, store: Late, kind: str
) -> None:
    assert call(engine, kind, 1) == 1
    store.before.append(lambda: engine.switches.on(reason="stop"))
    with pytest.raises(NotPermitted, match="stop"):
        call(engine, kind, 2)
    assert calls == [(1, 1)], "the claim stands in the log, and nothing began by it"
    run = last(engine, kind, 2)
    assert (run.status, run.reason, len(run.attempts)) == ("SOFT_FAIL", "released", 1)
    assert store.late == [True, True]
    engine.switches.off(reason="go on")
    assert call(engine, kind, 2) == 2
    assert calls == [(1, 1), (2, 2)], "numbers are not used twice"
    assert last(engine, kind, 2).status == "COMPLETE"


def test_a_switch_that_was_thrown_and_released_does_not_stop_it(engine: Engine, store: Late) -> None:
    work.bind(engine)(1)
    store.before.append(lambda: engine.switches.on(reason="stop"))
    store.before.insert(0, lambda: engine.switches.off(reason="go on"))
    assert work.bind(engine)(2) == 2
    assert calls == [(1, 1), (2, 2)], "it was given back once, and claimed again"


def test_a_claim_that_is_void_costs_no_attempt(engine: Engine, store: Late) -> None:
    @oncemore.step(effect="idempotent", name="late.single", policy=oncemore.Policy(max_attempts=1))
    def single() -> str:
        return "done"

    store.before.append(lambda: engine.switches.on(reason="stop"))
    with pytest.raises(NotPermitted):
        single.bind(engine)()
    engine.switches.off(reason="go on")
    assert single.bind(engine)() == "done"


def test_who_cancels_while_a_void_claim_is_given_back_is_heard(engine: Engine, store: Late) -> None:
    def stop() -> None:
        engine.switches.on(reason="stop")
        store.after.append(lambda batch: work.bind(engine).cancel(3, reason="not needed"))

    store.before.append(stop)
    with pytest.raises(StepFailed) as refused:
        work.bind(engine)(3)
    assert calls == []
    assert isinstance(refused.value, Cancelled)
    assert last(engine, "blocking", 3).status == "HARD_FAIL"


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_claim_whose_answer_was_lost_is_given_back_and_made_again(
    engine: Engine, store: Late, kind: str
) -> None:
    """Whether its guards had moved nobody can say any more; what is not known means no."""

    def lose(batch: Batch) -> None:
        raise StoreError("the answer is lost")

    store.after.append(lose)
    assert call(engine, kind, 5) == 5
    assert calls == [(5, 2)]
    run = last(engine, kind, 5)
    assert [attempt.number for attempt in run.attempts] == [1, 2]


def test_what_needs_an_approval_is_guarded_in_the_same_move(engine: Engine, store: Late) -> None:
    """Its approval is for so many attempts: none is used up by a claim that is void."""

    @oncemore.step(effect="once", name="late.wipe", requires_approval=True)
    def wipe() -> str:
        return "wiped"

    with pytest.raises(NotPermitted):
        wipe.bind(engine)()
    run = wipe.bind(engine).last_run()
    assert run is not None
    engine.approvals.approve(run, reason="seen")
    store.before.append(lambda: engine.switches.on(reason="stop"))
    with pytest.raises(NotPermitted):
        wipe.bind(engine)()
    engine.switches.off(reason="go on")
    assert wipe.bind(engine)() == "wiped"
    assert store.late == [False, False]


def test_what_may_not_be_late_is_refused_as_ever() -> None:
    store = Late()
    with Engine(lambda: store, "memory:late") as engine:
        engine.switches.on(reason="x")
        version = store.load_head(SWITCHES_ENTITY).version  # type: ignore[union-attr]
        write = Batch((_write("run/a"),), {SWITCHES_ENTITY: version + 1})
        assert isinstance(store.append(write).wait(), Conflict)
        assert store.load_head("run/a") is None
        answer = store.append(write._replace(late=True)).wait()
        assert isinstance(answer, Conflict)
        assert (answer.entity, len(answer.stored_seqs)) == (SWITCHES_ENTITY, 1)
        assert store.load_head("run/a") is not None
        assert isinstance(
            store.append(Batch((_write("run/b"),), {SWITCHES_ENTITY: version}, late=True)).wait(), Stored
        )


def _write(entity: str) -> Any:
    from oncemore.testing.store_contract import make_write

    return make_write(entity, None)
