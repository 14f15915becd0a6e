"""A worker that drains leaves nothing due, or says what is left and why (issue 15, 1.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import Policy
from oncemore.control.model import SwitchBoard, turn_switch_on
from oncemore.errors import TransientError
from oncemore.maintenance.copy import move_log
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.workers.worker_report import Leftover, summarize
from tests.fixtures import _isolated, clock, engine

if TYPE_CHECKING:
    from oncemore import Engine
    from oncemore.testing import FakeClock

__all__ = ["_isolated", "clock", "engine"]

QUICK = Policy("quick", schedule=Schedule("exponential", base=0.02), jitter=Jitter("full"))


def step(name: str = "shop.pay", **options: Any) -> Any:
    def work(x: int) -> int:
        return x

    return oncemore.step(**{"effect": "idempotent", "name": name, **options})(work)


def test_what_becomes_due_within_the_wait_limit_is_done(engine: Engine) -> None:
    quick = step(rate="50/s")
    for n in range(20):
        quick.submit(n)
    worker = oncemore.Worker(engine, [quick])
    assert worker.run_until_idle(wait_s=30).done == 20
    assert worker.leftovers(wait_s=30) == ()


def test_a_run_that_fails_is_tried_again_within_the_wait_limit(engine: Engine) -> None:
    calls: list[int] = []

    @oncemore.step(effect="idempotent", name="flaky", policy=QUICK)
    def flaky(x: int) -> int:
        calls.append(x)
        if len(calls) < 3:
            raise TransientError("again")
        return x

    flaky.submit(1)
    worker = oncemore.Worker(engine, [flaky])
    assert worker.run_until_idle(wait_s=30).done == 1
    assert calls == [1, 1, 1]


def test_what_is_due_later_is_left_and_told(engine: Engine) -> None:
    later = step()
    later.submit(1, at=engine.now() + 1000)
    worker = oncemore.Worker(engine, [later])
    assert worker.run_until_idle(wait_s=1).done == 0
    (left,) = worker.leftovers(wait_s=1)
    assert (left.step, left.runs, left.is_due) == ("shop.pay", 1, False)
    assert "due later, the first at " in left.why
    assert summarize([left]) == f"1 of shop.pay ({left.why})"


@pytest.mark.parametrize("switched", ["shop.pay", ""])
def test_what_a_switch_stops_is_left_with_its_reason(engine: Engine, switched: str) -> None:
    stopped, other = step(), step("shop.mail")
    stopped.submit(1)
    other.submit(1)
    engine.switches.on(step=switched, reason="the bank is down", by="operator")
    worker = oncemore.Worker(engine, [stopped, other])
    worker.run_until_idle(wait_s=5)
    left = worker.leftovers(wait_s=5)
    assert [one.step for one in left] == (["shop.pay"] if switched else ["shop.mail", "shop.pay"])
    assert all(one.is_due and "(operator: the bank is down)" in one.why for one in left)
    assert left[0].why.startswith(
        f"the switch {'step:shop.pay' if switched else 'all_execution'} is on since "
    )


def test_a_switch_of_a_tenant_leaves_that_tenants_runs(engine: Engine) -> None:
    quick = step()
    for tenant in ("t-1", "t-2"):
        with oncemore.context(tenant=tenant):
            quick.submit(1)
    engine.switches.on(tenant="t-1", reason="unpaid")
    worker = oncemore.Worker(engine, [quick])
    assert worker.run_until_idle(wait_s=5).done == 1
    (left,) = worker.leftovers(wait_s=5)
    assert (left.runs, left.why.startswith("the switch tenant:t-1 is on since ")) == (1, True)


class Elsewhere:
    """Another system that keeps switches."""

    is_down = False

    def load_switches(self, steps: tuple[str, ...], tenant: str) -> SwitchBoard:
        """Stop everything, or fail."""
        if self.is_down:
            raise ConnectionError("no answer")
        return turn_switch_on(SwitchBoard(), "all_execution", {"by": "somebody"})

    def load_approval(self, key: str) -> None:
        """Know of none."""

    def close(self) -> None:
        """Have nothing to let go of."""


@pytest.mark.parametrize(
    ("is_down", "why"),
    [
        (False, "a switch that another system keeps is on"),
        (True, "whether a switch is on could not be read"),
    ],
)
def test_what_another_system_stops_is_left_with_its_reason(engine: Engine, is_down: bool, why: str) -> None:
    engine.permissions.external = elsewhere = Elsewhere()
    elsewhere.is_down = is_down
    quick = step()
    quick.submit(1)
    worker = oncemore.Worker(engine, [quick])
    worker.run_until_idle(wait_s=1)
    assert worker.leftovers() == (Leftover("shop.pay", 1, why),)


def test_what_cannot_run_here_and_what_it_was_stopped_before_is_left(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="shop.pay")
    def older(x: int, y: int) -> int:
        return x + y

    newer = step()
    older.submit(1, 2)
    worker = oncemore.Worker(engine, [newer])
    assert worker.run_until_idle(wait_s=1).refused == 1
    newer.submit(3)
    left = worker.leftovers()
    assert {one.why for one in left} == {"it cannot run here; a warning above says why", "it was not begun"}
    assert summarize(left).startswith("1 of shop.pay (it ")


def test_of_a_log_that_has_moved_everything_is_left(engine: Engine) -> None:
    quick = step()
    quick.submit(1)
    with oncemore.open("moved.db") as target:
        move_log(engine, target, reason="a larger disk")
        worker = oncemore.Worker(engine, [quick])
        worker.run_until_idle(wait_s=1)
        assert worker.leftovers() == (Leftover("shop.pay", 1, f"the log has moved to {target.url}"),)


def test_a_wait_limit_that_makes_no_sense_is_refused(engine: Engine) -> None:
    worker = oncemore.Worker(engine, [step()])
    with pytest.raises(oncemore.UsageError, match="wait_s is -1"):
        worker.run_until_idle(wait_s=-1)


def test_time_that_a_fake_clock_skips_counts_for_the_limit(engine: Engine, clock: FakeClock) -> None:
    later = step()
    later.submit(1, at=engine.now() + 100)
    worker = oncemore.Worker(engine, [later])
    clock.advance(101)
    assert worker.run_until_idle().done == 1
