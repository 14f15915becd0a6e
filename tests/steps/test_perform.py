"""What cuts a call off reaches the caller, whatever else the call meets on its way out."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch, Conflict
from oncemore.policy.policy import STANDARD, policy_name
from oncemore.retries import timeouts
from oncemore.steps import attempt_storage, operations, ops, perform, reconcile
from oncemore.steps.engine import Engine
from oncemore.steps.lease import WorkerIdentity
from tests.steps.colours import RAISES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Head


class Cut(MemoryStore):
    """A store in whose next write of a run a Ctrl-C arrives, after somebody else was first."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[Batch], None] | None = None
        self.unreachable = False

    def append(self, batch: Batch) -> CompletedTicket:
        if self.before is not None and batch.writes[0].entity.startswith("run/"):
            first, self.before = self.before, None
            first(batch)
            raise KeyboardInterrupt
        return super().append(batch)

    def load_head(self, entity: str) -> Head | None:
        if self.unreachable and entity.startswith("run/"):
            raise StoreError("the store is away")
        return super().load_head(entity)


@pytest.mark.req("CLASS-18")
def test_a_store_that_fails_on_the_way_out_does_not_hide_an_interrupt() -> None:
    store = Cut()

    @oncemore.step(effect="idempotent", name="perform.claim")
    def work() -> int:
        return 1

    def stolen(batch: Batch) -> None:
        MemoryStore.append(store, Batch((batch.writes[0]._replace(hash=b"x" * 32),)))
        store.unreachable = True

    store.before = stolen
    with pytest.raises(KeyboardInterrupt) as cut:
        work.bind(Engine(lambda: store, "memory:"))()
    assert isinstance(cut.value.__cause__, StoreError)


def test_a_lost_lease_does_not_hide_an_interrupt_in_a_checkpoint() -> None:
    store, runs = Cut(), []

    def taken_over(batch: Batch) -> None:
        seen = load_head(store, batch.writes[0].entity)
        after = seen.record._replace(state="SOFT_FAIL", reason="lease_expired", worker="", not_before=0.0)
        change = RecordChange(("SOFT_FAIL",), seen.record, after, {"error": {}})
        write = build_write(seen.entity, seen.version, seen.hash, change, store.now())
        MemoryStore.append(store, Batch((write,)))

    @oncemore.step(effect="idempotent", name="perform.checkpoint")
    def work() -> int:
        runs.append(1)
        if len(runs) == 1:
            store.before = taken_over
            oncemore.current().checkpoint(1)
        return 2

    step: Any = work.bind(Engine(lambda: store, "memory:"))
    with pytest.raises(KeyboardInterrupt):
        step()
    assert step() == 2


def test_work_that_failed_runs_again_when_what_it_depends_on_has_changed() -> None:
    engine, calls = oncemore.open("memory:"), []

    def made(version: str, effect: Any) -> Any:
        not_applied: Any = ValueError if effect == "once" else ()

        @oncemore.step(
            effect=effect, name=f"perform.{effect}", version=version, policy=RAISES, not_applied=not_applied
        )
        def parse(text: str) -> int:
            calls.append(version)
            return int(text) if version == "2" else int("no number")

        return parse.bind(engine)

    for effect in ("pure", "idempotent", "outbox"):
        with pytest.raises(oncemore.PermanentFailure):
            made("1", effect)("7")
        assert made("2", effect)("7") == 7
    for version in ("1", "2"):
        with pytest.raises(oncemore.PermanentFailure):
            made(version, "once")("7")
    assert calls == ["1", "2"] * 3 + ["1"], "what may happen once is not repeated for a version"


class Faulty(MemoryStore):
    """A store whose next writes of a run go as told: each is a function of the batch."""

    def __init__(self, *turns: Callable[[Faulty, Batch], CompletedTicket]) -> None:
        super().__init__()
        self.turns = list(turns)

    def append(self, batch: Batch) -> CompletedTicket:
        if self.turns and batch.writes[0].entity.startswith("run/"):
            return self.turns.pop(0)(self, batch)
        return super().append(batch)


def stored(store: Faulty, batch: Batch) -> CompletedTicket:
    return MemoryStore.append(store, batch)


def away(store: Faulty, batch: Batch) -> CompletedTicket:
    raise StoreError("the store is away")


def stored_but_unheard(store: Faulty, batch: Batch) -> CompletedTicket:
    MemoryStore.append(store, batch)
    raise StoreError("the answer was lost")


def broken(store: Faulty, batch: Batch) -> CompletedTicket:
    raise ZeroDivisionError


def interrupted(store: Faulty, batch: Batch) -> CompletedTicket:
    raise KeyboardInterrupt


def refused_for_nothing(store: Faulty, batch: Batch) -> CompletedTicket:
    return CompletedTicket(Conflict(batch.writes[0].entity, None))


def plain(store: MemoryStore, effect: Any = "idempotent", **options: Any) -> Any:
    @oncemore.step(effect=effect, name="perform.plain", **options)
    def work(n: int) -> int:
        return n

    return work.bind(Engine(lambda: store, "memory:"))


def awaited(store: MemoryStore) -> Any:
    @oncemore.step(effect="idempotent", name="perform.awaited")
    async def work(n: int) -> int:
        return n

    return work.bind(Engine(lambda: store, "memory:"))


@pytest.mark.usefixtures("instant_retries")
@pytest.mark.parametrize("turns", [(away, away, away), (stored_but_unheard,), (stored, stored_but_unheard)])
def test_a_lost_answer_is_found_by_sending_the_same_again(turns: Any) -> None:
    store = Faulty(*turns)
    assert plain(store)(1) == 1
    assert asyncio.run(awaited(Faulty(*turns))(1)) == 1
    assert [entry.version for entry in store.read_entries() if entry.entity.startswith("run/")] == [1, 2]


@pytest.mark.usefixtures("instant_retries")
def test_a_store_that_stays_away_is_told_of_and_an_interrupt_comes_first() -> None:
    with pytest.raises(StoreError, match="away"):
        plain(Faulty(*[away] * 9))(1)
    with pytest.raises(KeyboardInterrupt) as cut:
        plain(Faulty(interrupted, *[away] * 9))(1)
    assert isinstance(cut.value.__cause__, StoreError)
    with pytest.raises(StoreError, match="away"):
        asyncio.run(awaited(Faulty(*[away] * 9))(1))


def test_what_is_no_fault_of_the_store_is_not_sent_again() -> None:
    store = Faulty(broken, stored)
    with pytest.raises(ZeroDivisionError):
        plain(store)(1)
    assert len(store.turns) == 1


@pytest.mark.usefixtures("instant_retries")
def test_a_refusal_where_nothing_stands_is_a_refusal() -> None:
    store = Faulty(away, refused_for_nothing)
    assert plain(store)(1) == 1
    assert store.turns == []


def test_a_body_that_is_gone_without_a_record_is_said_to_be_gone() -> None:
    store = MemoryStore()
    work = plain(store)
    assert work(1) == 1
    head = store.load_head(f"run/{work.key(1)}")
    assert head is not None
    store.open_maintenance().prune_bodies({head.entity: head.version + 1})
    with pytest.raises(StoreError, match="was it pruned"):
        work(1)
    with pytest.raises(StoreError, match="was it pruned"):
        attempt_storage.read_entry(work._prepare_call((2,), {}), "run/none", 1)


def test_an_attempt_that_came_back_in_a_forked_child_writes_nothing() -> None:
    @oncemore.step(effect="idempotent", name="perform.forked")
    def work() -> int:
        oncemore.current().fork_count = -1  # as a child sees its parent's
        return 1

    with pytest.raises(oncemore.LeaseLost, match="parent process"):
        work.bind(oncemore.open("memory:"))()


def test_an_interrupt_in_a_reconcile_function_leaves_the_run_held_and_goes_on_its_way() -> None:
    def look(n: int) -> Any:
        raise KeyboardInterrupt

    @oncemore.step(effect="once", name="perform.reconciled", reconcile=look)
    def work(n: int) -> int:
        raise TimeoutError

    step: Any = work.bind(oncemore.open("memory:"))
    with pytest.raises(KeyboardInterrupt):
        step(1)
    assert step.last_run(1).held_for == "outcome_unknown"


@pytest.fixture
def interrupt_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[threading.Thread]]:
    """Return what has Ctrl-C come while a thread of that name starts, and the list that it is then in."""
    start = threading.Thread.start

    def interrupts(name: str) -> list[threading.Thread]:
        started: list[threading.Thread] = []

        def starts(self: threading.Thread) -> None:
            if self.name == name and not started:
                signal.raise_signal(signal.SIGINT)  # without a shield Python's locks make another error of it
                started.append(self)
            start(self)

        monkeypatch.setattr(threading.Thread, "start", starts)
        return started

    return interrupts


@pytest.mark.parametrize("name", ["oncemore-heartbeat", "oncemore-map"])
def test_a_ctrl_c_while_a_thread_starts_comes_when_it_has_started(
    name: str, interrupt_as_it_starts: Any
) -> None:
    step: Any = oncemore.step(effect="idempotent", name="perform.begun")(lambda n: n)
    started = interrupt_as_it_starts(name)
    with oncemore.open("memory:") as engine:
        with pytest.raises(KeyboardInterrupt):
            step.bind(engine).map([1, 2], max_concurrency=2)
        assert started[0].ident is not None
        assert step.bind(engine)(3) == 3
        assert engine.leases.heartbeat is not None


def test_so_does_one_while_a_helper_starts(interrupt_as_it_starts: Any) -> None:
    started = interrupt_as_it_starts("oncemore-helper")
    with pytest.raises(KeyboardInterrupt):
        timeouts.HelperThread()
    answer: timeouts.SimpleQueue[Any] = timeouts.SimpleQueue()
    started[0].jobs.put((lambda: 5, answer))
    assert answer.get(timeout=10) == (5, None), "it is there for others"


class Cutoff(BaseException):
    """Stands for a Ctrl-C or a cancellation."""


def test_after_a_cut_nothing_is_waited_for() -> None:
    for step in (plain(MemoryStore()), awaited(MemoryStore())):
        job = step._prepare_call((1,), {})
        job.interrupt = Cutoff()
        seen = load_head(job.store, "run/x")
        assert reconcile.ask_reconcile(job, ops.AskReconcile(seen)).outcome == "unknown"
        assert asyncio.run(reconcile.ask_reconcile_async(job, ops.AskReconcile(seen))).outcome == "unknown"
        checked = asyncio.run(operations.check_artifact_async(job, ops.CheckArtifact("run/x", "cfg", "none")))
        assert checked.state == "missing"
        lost = ops.FetchResult({"ref": "artifact/x", "digest": "0" * 64, "size": 1})
        assert isinstance(asyncio.run(operations.fetch_result_async(job, lost)), Exception)
        assert not perform.run_attempt(job, ops.RunAttempt(seen)).begun
        assert not asyncio.run(perform.run_attempt_async(job, ops.RunAttempt(seen))).begun
        for wait in (operations.sleep_seconds, operations.watch_entity):
            with pytest.raises(Cutoff):
                wait(
                    job,
                    ops.WatchEntity("run/x", 0, 60.0)
                    if wait is operations.watch_entity
                    else ops.SleepSeconds(60.0),
                )
        for pause in (operations.sleep_seconds_async, operations.watch_entity_async):
            with pytest.raises(Cutoff):
                asyncio.run(
                    pause(
                        job,
                        ops.WatchEntity("run/x", 0, 60.0)
                        if pause is operations.watch_entity_async
                        else ops.SleepSeconds(9.0),
                    )
                )


@pytest.mark.usefixtures("instant_retries")
def test_a_store_that_fails_after_a_cancellation_does_not_hide_it() -> None:
    def cancelled(store: Faulty, batch: Batch) -> CompletedTicket:
        raise Cutoff

    with pytest.raises(Cutoff) as cut:
        asyncio.run(awaited(Faulty(cancelled, *[away] * 9))(1))
    assert isinstance(cut.value.__cause__, StoreError)


def test_a_coroutine_that_is_closed_before_anything_was_answered_leaves_nothing() -> None:
    store = MemoryStore()

    class Never:
        def __await__(self) -> Any:
            yield

    step = awaited(store)
    step._engine.policies.record_policy(step._engine, policy_name(STANDARD), STANDARD)
    before = list(store.read_entries())
    store.append = lambda batch: Never()  # type: ignore[assignment, return-value]
    step._engine.leases.current = WorkerIdentity(MemoryStore(), "w", 60.0, lambda: 0.0)
    call = step(1)
    call.send(None)
    call.close()
    assert list(store.read_entries()) == before


main_only = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread"
)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@main_only
@pytest.mark.usefixtures("handlers")
def test_a_first_interrupt_waits_for_the_store_and_a_second_does_not() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), InterruptShield():
        signal.raise_signal(signal.SIGINT)
        done.append("first")
    shield = InterruptShield()
    with pytest.raises(KeyboardInterrupt), shield:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("second")
    assert (done, shield.twice) == (["first"], True)
    told = InterruptShield()
    told.was_interrupted = True
    with pytest.raises(KeyboardInterrupt), told:
        signal.raise_signal(signal.SIGINT)
    assert told.twice


@main_only
@pytest.mark.usefixtures("handlers")
def test_what_nobody_handles_in_python_is_left_alone() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with InterruptShield():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@main_only
@pytest.mark.usefixtures("handlers")
def test_an_interrupt_in_a_write_is_raised_when_the_run_is_in_order_and_two_are_a_kill() -> None:
    def once(store: Faulty, batch: Batch) -> CompletedTicket:
        signal.raise_signal(signal.SIGINT)
        return MemoryStore.append(store, batch)

    def twice(store: Faulty, batch: Batch) -> CompletedTicket:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    work = plain(Faulty(once))
    with pytest.raises(KeyboardInterrupt):
        work(1)
    assert work.last_run(1).reason == "released"
    killed = plain(Faulty(twice))
    with pytest.raises(KeyboardInterrupt):
        killed(1)
    assert killed.last_run(1) is None


def test_what_cuts_a_checkpoint_off_is_raised_where_the_work_is() -> None:
    def cancelled(store: Faulty, batch: Batch) -> CompletedTicket:
        raise Cutoff

    met = []

    @oncemore.step(effect="idempotent", name="perform.kept")
    async def work() -> int:
        try:
            await oncemore.current().checkpoint(1)
        except BaseException as error:
            met.append(type(error))
            raise
        return 1

    store = Faulty(stored, cancelled)
    step: Any = work.bind(Engine(lambda: store, "memory:"))
    with pytest.raises(Cutoff):
        asyncio.run(step())
    assert met == [Cutoff]
    assert step.last_run().reason == "interrupted"


@pytest.mark.usefixtures("instant_retries")
def test_a_coroutine_that_is_closed_while_it_waits_leaves_its_run_waiting() -> None:
    @oncemore.step(effect="idempotent", name="perform.waits")
    async def work() -> int:
        raise ConnectionError

    step: Any = work.bind(oncemore.open("memory:"))
    call = step()
    call.send(None)
    call.close()
    assert (step.last_run().status, step.last_run().reason) == ("SOFT_FAIL", "retry")


@pytest.mark.parametrize("after", ["claim", "checkpoint"])
def test_a_coroutine_that_is_closed_leaves_its_run_in_order(after: str) -> None:
    store = MemoryStore()

    @oncemore.step(effect="idempotent", name="perform.closed")
    async def work() -> int:
        if after == "checkpoint":
            await oncemore.current().checkpoint(1)
        return 1

    class Late(CompletedTicket):
        """Is stored at once and answered a moment later."""

        def __await__(self) -> Any:
            yield
            return self.wait()

    stop_at = {"claim": 1, "checkpoint": 2}[after]
    writes = []

    class Slow(MemoryStore):
        def append(self, batch: Batch) -> CompletedTicket:
            answer = super().append(batch)
            if batch.writes[0].entity.startswith("run/"):
                writes.append(batch)
                if len(writes) == stop_at:
                    return Late(answer.wait())
            return answer

    store = Slow()
    step: Any = work.bind(Engine(lambda: store, "memory:"))
    call = step()
    call.send(None)
    call.close()
    last = step.last_run()
    assert (last.status, last.reason) == ("SOFT_FAIL", "released" if after == "claim" else "interrupted")
    assert asyncio.run(step()) == 1


def test_errors_that_say_who_has_it_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(oncemore.InProgress("busy", "worker-1", 5.0)))  # noqa: S301
    assert (str(error), error.worker, error.until) == ("busy", "worker-1", 5.0)


def test_a_worker_is_not_given_up_while_another_call_is_about_to_begin_under_it() -> None:
    # Found by the simulation (seed 927586742304): one call was cut off and its worker ended, between the
    # moment when another call chose that worker and the moment when it had an attempt under way.
    store = MemoryStore()
    step = plain(store)
    one, two = (step._prepare_call((1,), {}) for _ in range(2))
    begin = ops.ReserveWorker(policy_name(STANDARD), STANDARD)
    first, second = perform.reserve_worker(one, begin), perform.reserve_worker(two, begin)
    assert first.worker == second.worker
    one.current_attempt = ("run/x", 1)
    one.worker.add_attempt(one.current_attempt)
    perform.abandon_call(one, StoreError("the outcome could not be written"))
    assert not store.is_worker_gone(second.worker)
    assert step._engine.leases.lease_until(second.worker, "run/x", 1) == 0.0
    assert perform.reserve_worker(one, begin).worker != second.worker
    two.release_worker()
    assert store.is_worker_gone(second.worker)
    assert not two.worker.reserve_slot()
    engine, over = step._engine, [two.worker]
    real = engine.leases.current_identity
    engine.leases.current_identity = lambda now: over.pop() if over else real(now)
    three = step._prepare_call((1,), {})
    assert perform.reserve_worker(three, begin).worker == one.worker.name
    one.release_worker()
    three.release_worker()
