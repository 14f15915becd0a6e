"""Sleeps, waits and signals of a workflow, on every kind of store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.store import HeadQuery
from oncemore.steps.history import verify_chain
from oncemore.workflows.journal import NEVER
from oncemore.workflows.signals import send_signal, wake_parent
from tests.crash.harness import SharedStore, open_engine_on
from tests.timing import wait_until

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

DAY_S = 86_400.0


@pytest.fixture
def done() -> list[Any]:
    """The effects of the steps of a test, in order."""
    return []


@pytest.fixture
def record(done: list[Any]) -> Any:
    @oncemore.step(effect="idempotent", name="record")
    def record(what: Any) -> Any:
        done.append(what)
        return what

    return record


def work(engine: oncemore.Engine, *workflows: Any) -> Any:
    """Let a new worker run all due work."""
    return oncemore.Worker(engine, workflows).run_until_idle()


def test_a_workflow_sleeps_for_months_and_costs_a_row_and_no_thread(
    any_engine: oncemore.Engine, clock: FakeClock, record: Any, done: list[Any]
) -> None:
    @oncemore.workflow
    def remind(customer: int) -> str:
        record(("welcome", customer))
        oncemore.sleep(timedelta(days=90))
        record(("renew", customer))
        return f"customer {customer}"

    for customer in range(5):
        remind.submit(customer)
    work(any_engine, remind)
    assert [what for what, _ in done] == ["welcome"] * 5
    sleeping = [
        head
        for head in any_engine.store.list_heads(HeadQuery("run", step=remind.name, limit=100))
        if head.by.state == "PENDING"
    ]
    assert len(sleeping) == 5, "one row for each"
    # The pool of the worker that has gone, whose threads end in a moment, had five of them.
    wait_until(lambda: not [thread for thread in threading.enumerate() if "oncemore-worker" in thread.name])
    run = remind.last_run(3)
    assert run is not None
    assert (run.status, run.reason, run.held_for) == ("PENDING", "sleeping", "")
    assert run.not_before == pytest.approx(any_engine.now() + 90 * DAY_S, abs=60)
    clock.advance(89 * DAY_S)
    work(any_engine, remind)
    assert len(done) == 5, "one day too early"
    clock.advance(1 * DAY_S + 60)
    work(any_engine, remind)
    assert [what for what, _ in done] == ["welcome"] * 5 + ["renew"] * 5
    assert remind(3) == "customer 3"
    verify_chain(any_engine.store.read_entries())


def test_a_direct_call_sits_out_a_short_sleep_and_is_deferred_by_a_long_one(
    engine: oncemore.Engine, clock: FakeClock, record: Any, done: list[Any]
) -> None:
    @oncemore.workflow
    def poll(seconds: float) -> int:
        for number in range(3):
            record(number)
            oncemore.sleep(seconds)
        return len(done)

    assert poll(2.0) == 3
    assert clock.delays == pytest.approx([2.0, 2.0, 2.0], abs=0.5)
    with pytest.raises(oncemore.Deferred, match="sleeping") as deferred:
        poll(3600)
    assert deferred.value.until > engine.now() + 3500
    run = poll.last_run(3600)
    assert run is not None
    assert run.state.attempt_count == 0, "a wait costs no attempt"
    clock.advance(3601)
    with pytest.raises(oncemore.Deferred):
        poll(3600)


def test_an_async_workflow_awaits_its_waits(engine: oncemore.Engine, clock: FakeClock) -> None:
    import asyncio

    @oncemore.step(effect="pure")
    async def double(x: int) -> int:
        return 2 * x

    @oncemore.workflow
    async def collect(x: int) -> Any:
        doubled = await double(x)
        await oncemore.sleep(timedelta(hours=1))
        await oncemore.set_value("doubled", doubled)
        return doubled, await oncemore.wait_for("word", timeout=timedelta(days=1))

    async def use() -> None:
        run = await collect.submit(4)
        worker = oncemore.Worker(engine, [collect])
        await asyncio.to_thread(worker.run_until_idle)
        assert run.get_value("doubled") is None
        clock.advance(3601)
        await asyncio.to_thread(worker.run_until_idle)
        assert run.get_value("doubled") == 8
        run.signal("word", "yes")
        await asyncio.to_thread(worker.run_until_idle)
        assert await collect(4) == (8, "yes")

    asyncio.run(use())


# Signals ----------------------------------------------------------------------------------------------


@pytest.fixture
def approval(record: Any) -> Any:
    @oncemore.workflow(name="approval")
    def approval(order: int) -> Any:
        record(("asked", order))
        word = oncemore.wait_for("approved", timeout=timedelta(days=7))
        return record(("shipped", order, word))[2]

    return approval


def test_a_signal_is_taken_before_the_wait_while_parked_and_once(
    any_engine: oncemore.Engine, clock: FakeClock, approval: Any, done: list[Any]
) -> None:
    early = approval.submit(1)
    assert early.signal("approved", {"by": "operator"}), "before it has begun"
    parked = approval.submit(2)
    work(any_engine, approval)
    assert approval(1) == {"by": "operator"}
    assert approval.last_run(2).reason == "waiting for signal 'approved'"
    assert parked.signal("other") is True, "a signal that nothing waits for"
    work(any_engine, approval)
    assert approval.last_run(2).status == "PENDING"
    assert parked.signal("approved", 1, signal_id="click-7") is True
    assert parked.signal("approved", 2, signal_id="click-7") is False, "sent twice"
    assert approval.last_run(2).not_before <= any_engine.now(), "due in the same entry"
    work(any_engine, approval)
    assert approval(2) == 1
    assert done.count(("shipped", 2, 1)) == 1
    assert parked.signal("approved", 2, signal_id="click-7") is False, "delivered again after the end"
    with pytest.raises(oncemore.UsageError, match=r"approval: key .* has ended as COMPLETE"):
        parked.signal("approved")
    verify_chain(any_engine.store.read_entries())


def test_a_signal_that_comes_while_the_workflow_runs_is_not_lost(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    runs: list[Any] = []

    @oncemore.workflow
    def waits(x: int) -> Any:
        # After the journal was read, and before the wait.
        oncemore.set_value("here", True)
        if runs:
            runs.pop().signal("go", "first")
        # The head has moved since the journal was read.
        oncemore.set_value("here", False)
        oncemore.sleep(0)
        return oncemore.wait_for("go"), oncemore.wait_for("go", timeout=5, default="none")

    runs.append(waits.submit(1))
    assert waits(1) == ("first", "none")


def test_a_signal_that_comes_between_the_decision_to_wait_and_the_wait_is_not_lost(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    runs: list[Any] = []

    @oncemore.workflow
    def waits() -> Any:
        try:
            return oncemore.wait_for("go")
        finally:
            # The function is being left because there is no signal yet; its wait is not stored yet.
            if runs:
                runs.pop().signal("go", "in the last moment")

    runs.append(waits.submit())
    assert waits() == "in the last moment"


def test_signals_of_a_name_are_taken_in_order_each_by_one_wait(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.workflow
    def three() -> list[Any]:
        return [oncemore.wait_for("item") for _ in range(3)]

    run = three.submit()
    run.signal("item", "a")
    work(any_engine, three)
    run.signal("item", "b")
    run.signal("item", "c")
    run.signal("item", "too many")
    work(any_engine, three)
    assert three() == ["a", "b", "c"]


def test_a_time_out_is_recorded_and_a_late_signal_goes_to_the_next_wait(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    seen: list[Any] = []

    @oncemore.workflow
    def decide() -> Any:
        try:
            first = oncemore.wait_for("word", timeout=60.0)
        except oncemore.SignalTimeout:
            first = "timed out"
        seen.append(first)
        return first, oncemore.wait_for("word"), oncemore.wait_for("other", timeout=0, default=None)

    run = decide.submit()
    work(any_engine, decide)
    clock.advance(120)
    # The wait is over, though no worker has noticed: a signal that comes now is late.
    run.signal("word", "late")
    work(any_engine, decide)
    assert decide() == ("timed out", "late", None)
    assert seen[-1] == "timed out"


def test_an_uncaught_time_out_fails_the_workflow_for_good(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.workflow(attempts=3)
    def impatient() -> Any:
        return oncemore.wait_for("word", timeout=30)

    with pytest.raises(oncemore.StepFailed, match="no signal 'word' came in time"):
        impatient()
    run = impatient.last_run()
    assert run is not None
    assert run.state.attempt_count == 1


def test_a_caller_that_waits_inline_notices_a_signal(engine: oncemore.Engine) -> None:
    @oncemore.workflow
    def waits() -> Any:
        return oncemore.wait_for("go", timeout=50)

    run = waits.submit()
    results: list[Any] = []
    bound = waits.bind(engine)
    caller = threading.Thread(target=lambda: results.append(bound()))
    caller.start()
    while waits.last_run().reason != "waiting for signal 'go'":  # type: ignore[union-attr]
        threading.Event().wait(0.01)
    run.signal("go", 7)
    caller.join(20)
    assert results == [7]


def test_only_an_open_run_of_a_workflow_takes_signals(engine: oncemore.Engine, record: Any) -> None:
    run = record.submit("x")
    with pytest.raises(oncemore.UsageError, match="not the run of a workflow"):
        run.signal("go")

    @oncemore.workflow
    def fails(x: int) -> None:
        oncemore.wait_for("go")
        raise ValueError("no")

    first = fails.submit(1)
    with pytest.raises(oncemore.UsageError, match="name is ''"):
        first.signal("")
    with pytest.raises(oncemore.UsageError, match="signal_id is 5"):
        first.signal("go", signal_id=5)
    first.signal("go")
    with pytest.raises(oncemore.StepFailed):
        fails(1)
    with pytest.raises(oncemore.Deferred):
        fails.rerun(1, reason="again")
    with pytest.raises(oncemore.UsageError, match="the key has a newer one"):
        first.signal("go")
    second = fails.last_run(1)
    assert second is not None
    second.signal("go")
    with pytest.raises(oncemore.StepFailed):
        fails(1)


def test_a_cancelled_workflow_ends_while_it_waits_and_when_it_next_waits(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.workflow
    def waits(x: int) -> Any:
        if x == 2:
            # In a thread of its own, because a workflow cannot wait for itself.
            cancel = threading.Thread(target=lambda: waits.bind(engine).cancel(x, reason="not needed"))
            cancel.start()
            cancel.join()
        return oncemore.wait_for("go")

    waits.submit(1)
    work(engine, waits)
    assert waits.cancel(1, reason="not needed").status == "HARD_FAIL"
    with pytest.raises(oncemore.Cancelled):
        waits(2)
    run = waits.last_run(2)
    assert run is not None
    assert run.reason == "cancelled"


def test_a_sleep_ends_at_the_deadline_of_the_run(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.workflow(total_timeout=100)
    def slow() -> None:
        oncemore.sleep(1000)

    slow.submit()
    work(engine, slow)
    run = slow.last_run()
    assert run is not None
    assert run.not_before == pytest.approx(run.state.deadline)
    clock.advance(101)
    with pytest.raises(oncemore.DeadlineExceeded):
        slow()


# Values -----------------------------------------------------------------------------------------------


def test_a_value_is_published_once_per_place_and_the_last_one_wins(
    any_engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.workflow
    def progress() -> str:
        oncemore.set_value("stage", "began")
        oncemore.sleep(3600)
        oncemore.set_value("stage", "slept")
        oncemore.sleep(3600)
        return "done"

    run = progress.submit()
    assert run.get_value("stage", default="nothing yet") == "nothing yet"
    work(any_engine, progress)
    assert run.get_value("stage") == "began"
    clock.advance(3601)
    work(any_engine, progress)
    assert run.get_value("stage", timeout=None) == "slept"
    clock.advance(3601)
    work(any_engine, progress)
    texts = progress.last_run().explain().splitlines()
    assert [line for line in texts if "  published" in line] == [
        "  published 'stage': 'began'", "  published 'stage': 'slept'"
    ]  # fmt: skip
    assert run.get_value("never", default="ended without it", timeout=None) == "ended without it"


def test_a_step_publishes_values_too_and_a_reader_waits_for_them(engine: oncemore.Engine) -> None:
    go = threading.Event()

    @oncemore.step(effect="idempotent")
    def upload(name: str) -> str:
        go.wait(20)
        oncemore.set_value("percent", 50)
        return name

    run = upload.submit("x")
    with oncemore.Worker(engine, [upload]):
        threading.Timer(0.1, go.set).start()
        assert run.get_value("percent", timeout=timedelta(seconds=20)) == 50
        assert run.wait(20).value == "x"


def test_a_full_journal_is_refused_with_advice(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.workflows.journal.MAX_RECORDS", 3)

    @oncemore.workflow(name="counter")
    def counter(kind: str) -> None:
        oncemore.set_value("a", 1)
        oncemore.set_value("b", 1)
        oncemore.wait_for("x", timeout=1, default=None)
        if kind == "sleep":
            oncemore.sleep(1)
        elif kind == "wait":
            oncemore.wait_for("x")
        else:
            oncemore.set_value("c", 1)

    for kind in ("sleep", "wait", "value"):
        with pytest.raises(oncemore.StepFailed, match="the most of a run"):
            counter(kind)
    run = counter.submit("late")
    for _ in range(3):
        run.signal("y")
    with pytest.raises(oncemore.UsageError, match="the most of a run"):
        run.signal("y")


def test_the_due_time_of_a_wait_without_a_time_out_can_be_shown(engine: oncemore.Engine) -> None:
    @oncemore.workflow
    def waits() -> Any:
        return oncemore.wait_for("go")

    with pytest.raises(oncemore.Deferred, match="is waiting for signal 'go'; a worker"):
        waits()
    run = waits.last_run()
    assert run is not None
    assert run.not_before == NEVER


# An attempt that must not go on -----------------------------------------------------------------------


def test_a_cancelled_step_cannot_publish_and_one_that_was_taken_over_neither(clock: FakeClock) -> None:
    store, errors = SharedStore(), list[BaseException]()
    first, second = open_engine_on(store), open_engine_on(store)

    @oncemore.step(effect="idempotent", name="published")
    def published(how: str) -> str:
        if oncemore.current().number > 1:
            return "second"

        def interfere() -> None:
            if how == "cancel":
                published.bind(second).cancel(how, reason="not needed")
            else:
                clock.advance(3600)
                published.bind(second)(how)

        oncemore.set_value("stage", 1)
        thread = threading.Thread(target=interfere)
        thread.start()
        thread.join()
        try:
            oncemore.set_value("stage", 2)
        except BaseException as error:
            errors.append(error)
            raise
        return "first"

    with pytest.raises(oncemore.StepFailed):
        published.bind(first)("cancel")
    assert published.bind(first)("taken over") == "second"
    assert [type(error) for error in errors] == [oncemore.Cancelled, oncemore.LeaseLost]
    first.close()
    second.close()


def test_ctrl_c_while_a_value_is_stored_is_raised_after_it(clock: FakeClock) -> None:
    class InterruptedStore(SharedStore):
        def append(self, batch: Any) -> Any:
            ticket = super().append(batch)
            if b'"stage"' in batch.writes[0].body and not done:
                done.append(1)
                raise KeyboardInterrupt
            return ticket

    done: list[int] = []

    @oncemore.workflow(name="interrupted")
    def interrupted() -> str:
        oncemore.set_value("stage", 1)
        return "done"

    with open_engine_on(InterruptedStore()):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        run = interrupted.last_run()
        assert run is not None
        assert run.get_value("stage") == 1
        assert interrupted() == "done"


def test_two_senders_at_the_same_moment_lose_no_signal(clock: FakeClock) -> None:
    class BusyStore(SharedStore):
        """Another sender comes first, between the reads or before the write of the one that is looked at."""

        def load_head(self, entity: str) -> Any:
            head = super().load_head(entity)
            self._interfere("between the reads")
            return head

        def append(self, batch: Any) -> Any:
            self._interfere("before the write")
            return super().append(batch)

        def _interfere(self, when: str) -> None:
            if when == moment[0]:
                moment[0] = ""
                runs[0].signal("go", f"the other, {when}")

    moment, runs = [""], list[Any]()

    @oncemore.workflow(name="two")
    def two() -> list[Any]:
        return [oncemore.wait_for("go") for _ in range(4)]

    with open_engine_on(BusyStore()) as engine:
        runs.append(two.submit())
        for number, when in enumerate(("between the reads", "before the write")):
            moment[0] = when
            assert runs[0].signal("go", number)
        assert two() == ["the other, between the reads", 0, "the other, before the write", 1]
        with pytest.raises(oncemore.UsageError, match="has no run; submit the workflow"):
            send_signal(engine, "run/unknown", "", "go")


def test_only_the_workflow_that_waits_for_a_run_is_woken(engine: oncemore.Engine) -> None:
    @oncemore.workflow(name="waits")
    def waits() -> Any:
        return oncemore.wait_for("go")

    waits.submit()
    work(engine, waits)
    before = waits.last_run()
    assert before is not None
    wake_parent(engine, before.key, "other", "ab" * 32)
    wake_parent(engine, "cd" * 32, "other", "ab" * 32)
    after = waits.last_run()
    assert after is not None
    assert after.version == before.version
