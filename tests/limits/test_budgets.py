"""Retry budgets: what happens when they are empty, and one for all who share a store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.testing import FakeClock


class Down:
    """Fails until it is told otherwise."""

    def __init__(self) -> None:
        self.calls, self.well = 0, False

    def __call__(self) -> str:
        self.calls += 1
        if not self.well:
            raise ConnectionResetError
        return "well"

    async def ask(self) -> str:
        return self()


def fails(work: Any) -> Exception:
    with pytest.raises(ConnectionResetError) as caught:
        asyncio.run(work()) if asyncio.iscoroutinefunction(work) else work()
    return caught.value


def test_an_empty_budget_can_say_when_to_come_back(clock: FakeClock) -> None:
    budget, down = oncemore.Budget(1, at_empty="park"), Down()
    error = fails(oncemore.retrying(down, on="transient", attempts=5, budget=budget))
    assert down.calls == 2
    decision = oncemore.get_decision(error)
    assert decision is not None
    assert (decision.action, decision.situation.hold_reason) == ("defer", "retry_budget_empty")
    assert decision.not_before == pytest.approx(clock.wall() + 30)


def test_an_empty_budget_can_be_waited_for() -> None:
    budget, down = oncemore.Budget(1, per_success=1, at_empty="wait"), Down()
    assert budget.take_tokens(1) is None

    class Helped(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.delays) == 2:  # others come good meanwhile
                budget.earn_tokens()
                down.well = True

    with Helped() as clock:
        assert oncemore.retrying(down, on="transient", budget=budget)() == "well"
    assert (down.calls, len(clock.delays)) == (2, 3)


def test_it_is_waited_for_no_longer_than_the_call_may_take(clock: FakeClock) -> None:
    budget, down = oncemore.Budget(1, per_success=0, at_empty="wait"), Down()
    budget.take_tokens(1)
    error = fails(oncemore.retrying(down, on="transient", attempts=5, total_timeout=100, budget=budget))
    assert down.calls == 1
    assert clock.monotonic() < 100
    assert oncemore.get_decision(error).reason == "retry_budget_empty"  # type: ignore[union-attr]


def test_and_not_for_ever(clock: FakeClock) -> None:
    budget, down = oncemore.Budget(1, per_success=0, at_empty="wait"), Down()
    budget.take_tokens(1)
    fails(oncemore.retrying(down, on="transient", budget=budget))
    assert (down.calls, len(clock.delays)) == (1, 100)


def test_what_at_empty_takes() -> None:
    with pytest.raises(oncemore.UsageError, match="at_empty is 'stop'; the choices are fail, wait, park"):
        oncemore.Budget(at_empty="stop")
    with pytest.raises(oncemore.UsageError, match="the name of a breaker is ''"):
        oncemore.Budget(shared=True)


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_all_who_share_a_store_have_one_budget(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    budgets = [oncemore.Budget(4, per_success=1, name="api", shared=True) for _ in range(2)]
    down = [Down(), Down()]
    works: list[Any] = [
        oncemore.retrying(one if colour == "plain" else one.ask, on="transient", attempts=3, budget=budget)  # type: ignore[arg-type]
        for one, budget in zip(down, budgets, strict=True)
    ]
    fails(works[0]), fails(works[1]), fails(works[0])
    assert [one.calls for one in down] == [4, 3]  # four retries between them
    assert [budget.tokens for budget in budgets] == [0, 0]
    assert repr(budgets[0]) == "Budget(0 of 4 tokens, 1 per success)"
    down[1].well = True
    asyncio.run(works[1]()) if colour == "async" else works[1]()
    assert budgets[0].tokens == 1
    fails(works[0])
    assert down[0].calls == 6


def test_successes_are_written_together(engine: oncemore.Engine, clock: FakeClock) -> None:
    budget, down = oncemore.Budget(10, per_success=0.1, name="api", shared=True), Down()
    work = oncemore.retrying(down, on="transient", attempts=2, budget=budget)
    fails(work)
    down.well = True
    for _ in range(25):
        work()
    head = engine.store.load_head("quota/api")
    assert head is not None
    assert head.version <= 4
    assert budget.tokens == pytest.approx(10)


def test_a_store_that_is_down_leaves_each_process_its_own(
    engine: oncemore.Engine,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget, down = oncemore.Budget(1, name="api", shared=True), Down()

    def gone(*told: object) -> Any:
        raise StoreError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "load_head", gone)
        fails(oncemore.retrying(down, on="transient", attempts=5, budget=budget))
        assert (down.calls, budget.tokens) == (2, 0)
    assert "budget api: the store cannot be reached (gone)" in caplog.text
    assert budget.tokens == 1
