"""Steps inside of a workflow: deferred, held, failed, in parallel; and workflows inside of workflows."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.workflows.journal import NEVER
from tests.crash.harness import SharedStore, open_engine_on

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

SLOW = oncemore.Policy(
    "slow", max_attempts=3, schedule=Schedule("fixed", delays=(600.0, 620.0)), jitter=Jitter("none")
)


def work(engine: oncemore.Engine, *steps: Any) -> Any:
    """Let a new worker run all due work."""
    return oncemore.Worker(engine, steps).run_until_idle()


def flaky(failures: int, calls: list[int]) -> Any:
    """Return a step that fails so many times, ten minutes apart."""

    @oncemore.step(effect="idempotent", policy=SLOW)
    def fetch(x: int) -> int:
        calls.append(x)
        if len(calls) <= failures:
            raise ConnectionError("down")
        return 10 * x

    return fetch


def test_a_workflow_waits_for_a_step_that_is_due_later_past_except_exception(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    calls: list[int] = []
    fetch, left = flaky(2, calls), list[str]()

    @oncemore.workflow
    def outer(x: int) -> Any:
        try:
            return fetch(x)
        except Exception:
            left.append("a wait is taken for a failure")
            return "gave up"
        finally:
            left.append("finally")

    outer.submit(4)
    for expected in (1, 2):
        work(any_engine, outer)
        assert len(calls) == expected
        run = outer.last_run(4)
        assert run is not None
        assert (run.status, run.state.attempt_count) == ("PENDING", 0)
        assert run.reason.startswith(f"waiting for {fetch.name} (key {fetch.key(4)[:12]}")
        assert 500 < run.not_before - any_engine.now() <= 620
        clock.advance(625)
    work(any_engine, outer)
    assert outer(4) == 40
    assert left == ["finally"] * 3


def test_a_final_failure_of_a_step_can_be_caught_and_fails_the_workflow_otherwise(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent")
    def pay(x: int) -> int:
        raise oncemore.PermanentError("no money")

    @oncemore.step(effect="idempotent")
    def refund(x: int) -> str:
        return f"refunded {x}"

    @oncemore.workflow
    def careful(x: int) -> str:
        try:
            return str(pay(x))
        except oncemore.StepFailed:
            return refund(x)

    @oncemore.workflow
    def careless(x: int) -> int:
        return pay(x)

    assert careful(1) == "refunded 1"
    with pytest.raises(oncemore.PermanentFailure, match="no money") as failed:
        careless(2)
    assert isinstance(failed.value.__cause__, oncemore.StepFailed)
    run = careless.last_run(2)
    assert run is not None
    assert run.status == "HARD_FAIL"


def test_a_held_step_parks_the_workflow_which_looks_again_less_and_less_often(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="review")
    def review(x: int) -> int:
        if oncemore.current().number == 1:
            raise oncemore.NeedsReview("DOUBT")
        return x

    @oncemore.workflow(name="outer")
    def outer(x: int) -> int:
        return review(x)

    outer.submit(1)
    waits = []
    for _ in range(8):
        work(any_engine, outer)
        run = outer.last_run(1)
        assert run is not None
        assert run.reason == f"waiting for review (key {review.key(1)[:12]})"
        waits.append(run.not_before - any_engine.now())
        clock.advance(waits[-1] + 1)
    assert waits == pytest.approx([60, 120, 240, 480, 960, 1920, 3600, 3600], abs=5)
    work(any_engine, outer)
    item = any_engine.quarantine.list()[0]
    any_engine.quarantine.release(item, by="operator", reason="seen")
    # The worker that ends the inner run wakes the outer one: no wait for the next look.
    work(any_engine, review)
    woken = outer.last_run(1)
    assert woken is not None
    assert woken.not_before <= any_engine.now()
    assert woken.get_value("nothing") is None
    assert f"review (key {review.key(1)[:12]}) has ended; goes on" in woken.explain()
    work(any_engine, outer)
    assert outer(1) == 1


def test_steps_that_may_not_begin_park_the_workflow(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", requires_approval=True)
    def approved(x: int) -> int:
        return x

    @oncemore.step(effect="once", name="uncertain")
    def uncertain(x: int) -> int:
        raise ConnectionError("cut off")

    @oncemore.step(effect="idempotent", name="stopped")
    def stopped(x: int) -> int:
        return x

    @oncemore.workflow
    def outer(kind: str) -> int:
        return {"approval": approved, "unknown": uncertain, "switch": stopped}[kind](1)

    engine.switches.on(step="stopped", reason="not now")
    for kind in ("approval", "unknown", "switch"):
        with pytest.raises(oncemore.Deferred, match="waiting for"):
            outer.bind(engine)(kind)
        run = outer.last_run(kind)
        assert run is not None
        assert (run.status, run.held_for) == ("PENDING", "")
        clock.advance(100)
    approved.approve(1, reason="seen", by="operator")
    assert outer("approval") == 1
    uncertain.settle(oncemore.applied(5), 1, reason="looked")
    assert outer("unknown") == 5
    engine.switches.off(step="stopped", reason="now")
    assert outer("switch") == 1


def test_a_step_in_progress_elsewhere_and_an_open_breaker_park_the_workflow(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=300, shared=True)
    calls: list[int] = []

    @oncemore.step(effect="idempotent", breaker=breaker, policy=SLOW)
    def pay(x: int) -> int:
        calls.append(x)
        if len(calls) == 1:
            raise ConnectionError("down")
        return x

    entered, leave = threading.Event(), threading.Event()

    @oncemore.step(effect="idempotent", if_running="raise")
    def busy(x: int) -> int:
        entered.set()
        leave.wait(20)
        return x

    @oncemore.workflow
    def outer(kind: str) -> int:
        return pay(2) if kind == "breaker" else busy(1)

    with pytest.raises(oncemore.Deferred):
        pay(1)
    with pytest.raises(oncemore.Deferred, match="waiting for"):
        outer("breaker")
    clock.advance(400)
    assert outer("breaker") == 2
    other = threading.Thread(target=lambda: busy.bind(engine)(1))
    other.start()
    assert entered.wait(20)
    outer.submit("busy")
    work(engine, outer)
    run = outer.last_run("busy")
    assert run is not None
    assert run.reason.startswith("waiting for")
    leave.set()
    other.join(20)
    clock.advance(5)
    assert outer("busy") == 1


def test_errors_that_only_ask_for_time_park_the_workflow_also_from_a_thread_without_its_context(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    calls: list[int] = []
    fetch = flaky(1, calls)

    @oncemore.workflow
    def outer(x: int) -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(fetch.bind(engine), x).result()

    with pytest.raises(oncemore.Deferred, match="waiting for"):
        outer(2)
    clock.advance(625)
    assert outer(2) == 20


def test_parks_in_a_group_of_errors_and_in_threads_with_the_context(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    calls: list[int] = []
    fetch = flaky(1, calls)

    @oncemore.step(effect="idempotent")
    def slow(x: int) -> int:
        threading.Event().wait(0.1)
        return x

    @oncemore.workflow
    def groups(x: int) -> int:
        try:
            return fetch.bind(engine).run(x).value
        except oncemore.UsageError as error:
            raise ExceptionGroup("two", [oncemore.Deferred("later", engine.now() + 100), error]) from None

    @oncemore.workflow
    def fails_in_a_group(x: int) -> int:
        raise ExceptionGroup("one", [ValueError("no")])

    @oncemore.workflow
    def threads(x: int) -> Any:
        # A thread that has the context of the workflow is still calling a step when the workflow parks.
        thread = threading.Thread(target=copy_context().run, args=(slow, x))
        thread.start()
        while slow.last_run(x) is None:
            threading.Event().wait(0.001)
        return oncemore.wait_for("go")

    with pytest.raises(oncemore.Deferred, match="waiting for"):
        groups(1)
    clock.advance(625)
    assert groups(1) == 10
    with pytest.raises(oncemore.StepFailed, match="no"):
        fails_in_a_group(1)
    with pytest.raises(oncemore.Deferred):
        threads(5)
    run = slow.last_run(5)
    assert run is not None
    assert run.status == "COMPLETE", "the workflow has waited for its other calls"


def test_a_resource_that_an_operator_holds_parks_the_workflow(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.workflow
    def outer(outcome: str, until: float) -> None:
        raise oncemore.CoolingDown("cooling", outcome, "resource", until)

    for outcome, until in (("SKIPPED_QUARANTINED", 0.0), ("SKIPPED_BACKOFF", engine.now() + 1000)):
        with pytest.raises(oncemore.Deferred, match="waiting for"):
            outer.bind(engine).run(outcome, until)
            outer(outcome, until)
    with pytest.raises(oncemore.StepFailed):
        outer("SKIPPED_TERMINAL", 0.0)


def test_a_store_that_fails_for_a_moment_does_not_fail_the_workflow(clock: FakeClock) -> None:
    class FailingStore(SharedStore):
        is_failing = False

        def append(self, batch: Any) -> Any:
            if self.is_failing and batch.writes[0].entity == f"run/{inner.key(1)}":
                raise oncemore.StoreError("full")
            return super().append(batch)

    store = FailingStore()

    @oncemore.step(effect="pure", name="inner")
    def inner(x: int) -> int:
        return x

    @oncemore.workflow(name="outer")
    def outer(x: int) -> int:
        return inner(x)

    with open_engine_on(store) as engine:
        outer.submit(1)
        store.is_failing = True
        with pytest.raises(oncemore.Deferred, match="waiting for inner"):
            outer.bind(engine)._call_sync((1,), {}, None, _impatient(outer.bind(engine)))
        store.is_failing = False
        clock.advance(5)
        assert outer(1) == 1


def _impatient(workflow: Any) -> Any:
    """Return the call of a workflow by a caller that does not wait."""
    call = workflow._prepare_call((1,), {})
    call.plan = call.plan.copy_with(inline_wait_s=0.0)
    return call


def test_a_workflow_that_swallows_its_wait_waits_all_the_same(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    calls: list[int] = []
    fetch = flaky(1, calls)
    other = flaky(0, list[int]())

    @oncemore.workflow
    def outer(x: int) -> Any:
        try:
            return fetch(x)
        except BaseException:
            return other(7)

    with pytest.raises(oncemore.Deferred):
        outer(1)
    assert other.last_run(7) is None, "nothing more happens in an execution that has to wait"
    clock.advance(625)
    assert outer(1) == 10


# In parallel ------------------------------------------------------------------------------------------


def test_gather_runs_steps_in_parallel_and_waits_for_all_of_them(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    began: list[int] = []

    @oncemore.step(effect="idempotent", policy=SLOW)
    async def fetch(x: int) -> int:
        began.append(x)
        # The second one is still under way when the first one has failed.
        await asyncio.sleep(0.1 if x == 2 else 0.0)
        if x == 1 and began.count(1) == 1:
            raise ConnectionError("down")
        return 10 * x

    @oncemore.workflow
    async def outer(how: str) -> Any:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fetch(x)) for x in (1, 2)]
            return [task.result() for task in tasks]
        if how == "results":
            return await asyncio.gather(fetch(1), fetch(2), return_exceptions=True)
        return list(await asyncio.gather(fetch(1), fetch(2)))

    async def use(how: str) -> None:
        with pytest.raises(oncemore.Deferred):
            await outer(how)

    asyncio.run(use("gather"))
    assert sorted(began) == [1, 2]
    second = fetch.last_run(2)
    assert second is not None
    assert second.status == "COMPLETE", "the workflow has waited for its other calls"
    clock.advance(625)
    assert asyncio.run(outer("gather")) == [10, 20]
    assert sorted(began) == [1, 1, 2]
    assert asyncio.run(outer("group")) == [10, 20]
    assert asyncio.run(outer("results")) == [10, 20]


@pytest.mark.parametrize("how", ["group", "results"])
def test_task_groups_and_collected_results_park_the_workflow_too(
    engine: oncemore.Engine, clock: FakeClock, how: str
) -> None:
    began: list[int] = []

    @oncemore.step(effect="idempotent", policy=SLOW)
    async def fetch(x: int) -> int:
        began.append(x)
        if began.count(x) == 1:
            raise ConnectionError("down")
        return 10 * x

    @oncemore.workflow
    async def outer() -> Any:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fetch(x)) for x in (1, 2)]
            return [task.result() for task in tasks]
        return await asyncio.gather(fetch(1), fetch(2), return_exceptions=True)

    for _ in range(2):
        try:
            asyncio.run(outer())
        except oncemore.Deferred:
            clock.advance(625)
    assert asyncio.run(outer()) == [10, 20]


def test_map_runs_steps_in_parallel_and_the_workflow_waits_for_late_items(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    calls: list[int] = []

    @oncemore.step(effect="idempotent", policy=SLOW)
    def fetch(x: int) -> int:
        calls.append(x)
        if x == 3 and calls.count(3) == 1:
            raise ConnectionError("down")
        if x == 4 and calls.count(4) == 1:
            raise oncemore.NeedsReview("DOUBT")
        return 10 * x

    @oncemore.workflow
    def outer(count: int) -> list[int]:
        return fetch.map(range(count)).values

    outer.submit(4)
    work(any_engine, outer)
    assert sorted(calls) == [0, 1, 2, 3]
    run = outer.last_run(4)
    assert run is not None
    assert run.reason == f"waiting for {fetch.name} (key {fetch.key(3)[:12]})"
    clock.advance(625)
    work(any_engine, outer)
    assert outer(4) == [0, 10, 20, 30]
    with pytest.raises(oncemore.Deferred):
        outer(5)
    held = outer.last_run(5)
    assert held is not None
    assert 0 < held.not_before - any_engine.now() <= 120


def test_an_async_map_inside_of_a_workflow(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="pure")
    async def double(x: int) -> int:
        return 2 * x

    @oncemore.workflow
    async def outer(count: int) -> list[int]:
        return (await double.map(range(count))).values

    assert asyncio.run(outer(3)) == [0, 2, 4]


# Workflows inside of workflows ------------------------------------------------------------------------


def test_a_parent_waits_for_its_child_and_goes_on_when_the_child_has_ended(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.workflow(name="child")
    def child(x: int) -> Any:
        oncemore.sleep(3600)
        return x, oncemore.wait_for("go")

    @oncemore.workflow(name="parent")
    def parent(x: int) -> Any:
        return "parent", *child(x)

    run = parent.submit(1)
    work(any_engine, parent, child)
    inner = child.last_run(1)
    assert inner is not None
    parked = parent.last_run(1)
    assert parked is not None
    assert parked.reason == f"waiting for child (key {inner.key[:12]})"
    assert parked.not_before == inner.not_before
    clock.advance(3601)
    work(any_engine, parent, child)
    parked = parent.last_run(1)
    assert parked is not None
    assert parked.not_before < NEVER, "it looks again by itself"
    inner.signal("go", "on")
    work(any_engine, parent, child)
    assert parent(1) == ("parent", 1, "on")
    opening = next(iter(child.last_run(1).records()))  # type: ignore[union-attr]
    assert opening["node_id"] == "child"
    assert run.key in str(next(iter(any_engine.store.read_entries(f"run/{inner.key}"))).body)


def test_an_inner_run_names_its_parent(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure")
    def inner(x: int) -> int:
        return x

    @oncemore.workflow
    def outer(x: int) -> int:
        return inner(x) + len(oncemore.current().key)

    assert outer(1) == 65
    opening = next(iter(engine.store.read_entries(f"run/{inner.key(1)}")))
    assert opening.body is not None
    assert f'"parent":"{outer.key(1)}"' in opening.body.decode()


def test_methods_and_bound_workflows_stay_workflows(engine: oncemore.Engine) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @oncemore.workflow(ignore="self", version="2")
        def sell(self, order: int) -> str:
            return f"{self.name} {order}"

    assert isinstance(Shop.sell, oncemore.Workflow)
    assert Shop("a").sell(1) == "a 1"
    assert repr(Shop.sell.bind(engine)).startswith("<oncemore.Workflow ")
