"""Queues: at most so many attempts at once over all processes, higher priorities first, no slot lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import Deferred, UsageError
from oncemore.limits import queue_step
from oncemore.limits.queue_rules import QueueSlot, StepQueue
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from oncemore.policy.policy import Policy
from oncemore.steps import operations, transitions
from oncemore.steps.ops import WatchLog
from oncemore.testing import FakeClock
from tests.crash.harness import (
    CrashPoint,
    SharedStore,
    crash_everywhere,
    kill_process,
    open_engine_on,
    start_engine_call,
)
from tests.shell import run, told

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


class Gauge:
    """Counts the runs that are inside at once."""

    def __init__(self) -> None:
        self.inside = self.most = self.total = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.inside -= 1


class Holder:
    """A thread that holds a slot of a queue until it is released."""

    def __init__(self, step: Any, engine: oncemore.Engine, *args: Any) -> None:
        self.began, self.released = threading.Event(), threading.Event()
        HOLDERS[args] = self
        self._thread = threading.Thread(target=lambda: step.bind(engine)(*args), daemon=True)
        self._thread.start()
        assert self.began.wait(60)

    def release(self) -> None:
        self.released.set()
        self._thread.join(60)


HOLDERS: dict[Any, Holder] = {}


@oncemore.step(effect="idempotent", name="hold", queue="narrow", concurrency=1)
def hold(number: int) -> int:
    if (holder := HOLDERS.pop((number,), None)) is not None:
        holder.began.set()
        assert holder.released.wait(60)
    return number


# The bound ------------------------------------------------------------------------------------------


def test_workers_and_direct_calls_keep_the_bound(store_url: str) -> None:
    gauge = Gauge()

    def send(number: int) -> int:
        with gauge:
            time.sleep(0.005)
        return number

    first, second = (
        oncemore.step(effect="idempotent", name=name, queue="emails", concurrency=2)(send)
        for name in ("first", "second")
    )
    with oncemore.open(store_url) as engine:
        for number in range(10):
            first.bind(engine).submit(number)
            second.bind(engine).submit(number)
        workers = [oncemore.Worker(engine, [first, second], concurrency=4) for _ in range(2)]
        threads = [threading.Thread(target=worker.run_until_idle) for worker in workers]
        threads += [threading.Thread(target=first.bind(engine), args=(100 + number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gauge.total == 24
        assert gauge.most <= 2
        slots = list(engine.store.list_heads(HeadQuery("queue")))
        assert [head.entity for head in slots] == ["queue/emails/0", "queue/emails/1"]


def test_all_slots_are_used(store_url: str) -> None:
    """Three runs that wait for each other, in a queue of three; also after each slot was used before."""
    together = threading.Barrier(3)

    @oncemore.step(effect="idempotent", name="meet", queue="three", concurrency=3)
    def meet(number: int) -> int:
        together.wait(60)
        return number

    with oncemore.open(store_url) as engine:
        for number in range(6):
            meet.bind(engine).submit(number)
        assert oncemore.Worker(engine, [meet], concurrency=6).run_until_idle().done == 6


@pytest.mark.parametrize(
    ("store_url", "kills"),
    [("sqlite", 0), ("sqlite", 12), ("postgres", 6), ("nats", 6)],
    indirect=["store_url"],
)
def test_three_processes_keep_the_bound(
    store_url: str, kills: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Judged by locks of the kernel; with workers killed on the way, no slot is lost."""
    runs = 40
    folder = tmp_path / "slots"
    folder.mkdir()
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [
        sys.executable,
        "-m",
        "tests.limits.queue_fleet",
        store_url,
        str(folder),
        str(runs),
        str(kills),
    ]
    ran = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not (folder / "over").exists(), ran.stdout
    started = {int(line.split()[0]) for line in (folder / "started").read_text().splitlines()}
    assert started == {*range(runs), runs + 1}
    with oncemore.open(store_url) as engine:
        states = {decode_head(head.head).state for head in engine.store.list_heads(HeadQuery("run"))}
        assert states == {"COMPLETE"}
    record_property("kills of workers at a queue", kills)


def test_an_async_call_waits_for_a_slot(engine: oncemore.Engine) -> None:
    gauge = Gauge()

    @oncemore.step(effect="idempotent", name="fetch", queue="narrow", concurrency=2)
    async def fetch(number: int) -> int:
        with gauge:
            await asyncio.sleep(0.005)
        return number

    async def call_all() -> list[int]:
        return list(await asyncio.gather(*(fetch(number) for number in range(12))))

    assert asyncio.run(call_all()) == list(range(12))
    assert gauge.most == 2


def test_a_wait_between_attempts_holds_no_slot(engine: oncemore.Engine, clock: FakeClock) -> None:
    other: list[int] = []

    @oncemore.step(effect="idempotent", name="other", queue="one", concurrency=1)
    def send_other() -> None:
        other.append(1)

    class BetweenAttempts(FakeClock):
        def sleep(self, seconds: float) -> None:
            send_other()
            super().sleep(seconds)

    @oncemore.step(effect="idempotent", name="flaky", queue="one", concurrency=1)
    def flaky() -> int:
        if oncemore.current().number == 1:
            raise ConnectionResetError
        return oncemore.current().number

    with BetweenAttempts():
        assert flaky() == 2
    assert other == [1]


# A full queue ---------------------------------------------------------------------------------------


def test_a_call_that_waits_too_long_leaves_its_run_to_a_worker(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", max_inline_wait_s=0.05) as engine:
        holder = Holder(hold, engine, 1)
        with pytest.raises(Deferred, match="waits for the queue 'narrow', which runs 1 at once") as refused:
            hold.bind(engine)(2)
        assert refused.value.run is not None
        (run_head,) = engine.store.list_heads(HeadQuery("run", state="PENDING"))
        waiting = decode_head(run_head.head)
        assert (waiting.reason, waiting.attempt) == ("queue_full", 0)
        # The second call finds the waiting run, and writes nothing.
        with pytest.raises(Deferred):
            hold.bind(engine)(2)
        assert engine.store.load_head(run_head.entity).version == run_head.version  # type: ignore[union-attr]
        worker = threading.Thread(target=oncemore.Worker(engine, [hold]).run_until_idle)
        worker.start()
        holder.release()
        worker.join(60)
        assert hold.bind(engine)(2) == 2


def test_a_run_that_appears_while_its_caller_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller reads again, and finds the run that another process has submitted."""
    with oncemore.open(tmp_path / "log.db", max_inline_wait_s=0.01) as engine:
        holder = Holder(hold, engine, 1)
        build = transitions.build_deferral

        def build_late(*args: Any, **options: Any) -> Any:
            hold.bind(engine).submit(2)
            return build(*args, **options)

        monkeypatch.setattr(transitions, "build_deferral", build_late)
        with pytest.raises(Deferred):
            hold.bind(engine)(2)
        (waiting,) = engine.store.list_heads(HeadQuery("run", state="PENDING"))
        assert waiting.version == 1
        holder.release()


def test_an_interrupted_call_does_not_wait_for_a_slot() -> None:
    call: Any = SimpleNamespace(interrupt=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        operations.watch_log(call, WatchLog(60.0))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(operations.watch_log_async(call, WatchLog(60.0)))


def test_a_worker_waits_for_the_log_and_starts_nothing_while_the_queue_is_full(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken by the end of the attempt: its poll interval is an hour."""
    holder = Holder(hold, engine, 1)
    for number in range(2, 6):
        hold.submit(number)
    counted = threading.Event()
    counts: list[int] = []
    count_room = queue_step.count_room

    def count(*args: Any) -> int:
        counts.append(count_room(*args))
        counted.set()
        return counts[-1]

    monkeypatch.setattr(queue_step, "count_room", count)
    with oncemore.Worker(engine, [hold], poll_s=3600) as worker:
        assert counted.wait(60)
        time.sleep(0.2)  # in which a loop without a wait would look a thousand times
        assert len(counts) < 10
        assert set(counts) == {0}
        assert worker.active_keys == ()
        holder.release()
        assert [hold.submit(number).wait(60).value for number in range(2, 6)] == [2, 3, 4, 5]
        assert worker.stats.deferred == 0


def test_two_workers_that_claim_the_last_slot(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing of one is outdated: its run finds no slot, stays due, and is not written."""
    holder = Holder(hold, engine, 1)
    hold.submit(2)
    (waiting,) = engine.store.list_heads(HeadQuery("run", state="PENDING"))
    monkeypatch.setattr(queue_step, "count_room", lambda *args: 1)
    worker = oncemore.Worker(engine, [hold])
    worker._list_turns()
    worker._run_turn(worker._due_runs.pop_turn())
    assert worker.stats.deferred == 1
    assert engine.store.load_head(waiting.entity).version == waiting.version  # type: ignore[union-attr]
    holder.release()
    monkeypatch.undo()
    assert worker.run_until_idle().done == 1


def test_higher_priorities_take_the_free_slots_first(engine: oncemore.Engine) -> None:
    order: list[str] = []
    steps = [
        oncemore.step(effect="idempotent", name=name, queue="one", concurrency=1, priority=priority)(  # type: ignore[arg-type]
            lambda number, name=name: order.append(name)
        )
        for name, priority in (("low", "P2"), ("high", "P0"), ("middle", "P1"))
    ]
    for number in range(3):
        for each in steps:
            each.submit(number)
    oncemore.Worker(engine, steps, concurrency=3).run_until_idle()
    assert order == ["high"] * 3 + ["middle"] * 3 + ["low"] * 3


def test_a_queue_and_a_rate_together(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="paced", queue="one", concurrency=1, rate="1/min")
    def paced(number: int) -> int:
        return number

    assert [paced(number) for number in range(3)] == [0, 1, 2]
    # Each call after the first one has waited for its slot in the rate.
    assert [50 < delay <= 60 for delay in clock.delays if delay > 1] == [True, True]


def test_a_slot_that_is_taken_during_the_wait_for_the_rate(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call waits for the queue again, and does not begin without a slot."""
    find, answers = queue_step.find_free_slot, [True, False, True, True]
    monkeypatch.setattr(queue_step, "find_free_slot", lambda *args: find(*args) if answers.pop(0) else None)

    @oncemore.step(effect="idempotent", name="paced", queue="one", concurrency=1, rate="1000/s")
    def paced() -> int:
        return 1

    assert paced() == 1
    assert answers == []


def test_a_queue_and_a_breaker_together(engine: oncemore.Engine) -> None:
    breaker = oncemore.Breaker("provider", failures=1, cooldown_s=0.001)
    fails = [False, True]

    @oncemore.step(
        effect="idempotent", name="guarded", queue="one", concurrency=1, breaker=breaker,
        policy=Policy("single", max_attempts=1),
    )  # fmt: skip
    def guarded() -> int:
        if fails.pop():
            raise ConnectionResetError
        return 1

    with pytest.raises(oncemore.StepFailed):
        guarded()
    time.sleep(0.01)
    # The probe of the breaker and the slot of the queue are one claim.
    assert guarded.rerun(reason="try again") == 1


# Slots of the dead ----------------------------------------------------------------------------------


def test_every_crash_of_a_call_leaves_the_queue_usable() -> None:
    """After a crash at any operation the next call gets the only slot."""

    @oncemore.step(effect="idempotent", name="one", queue="one", concurrency=1)
    def one(number: int) -> int:
        return number

    def process(store: Any, crash: CrashPoint | None) -> None:
        engine = open_engine_on(store)
        start_engine_call(engine, one, 1).run(crash)
        engine.close()

    crashes = 0
    for store in crash_everywhere(SharedStore, process):
        engine = open_engine_on(store)
        assert one.bind(engine)(2) == 2
        assert one.bind(engine)(1) == 1
        assert [head.entity for head in store.list_heads(HeadQuery("queue"))] == ["queue/one/0"]
        kill_process(engine)
        engine.close()
        crashes += 1
    assert crashes > 10


def test_a_slot_of_a_run_that_was_forgotten_is_free(engine: oncemore.Engine) -> None:
    hold(1)
    (run_head,) = engine.store.list_heads(HeadQuery("run"))
    assert engine.store.open_maintenance().drop_entities({run_head.entity: run_head.version}) == 1
    assert hold(2) == 2


def test_a_lowered_concurrency_gives_out_fewer_slots(engine: oncemore.Engine) -> None:
    wide, narrow = StepQueue("q", 3), StepQueue("q", 1)
    assert len(list(queue_step.iterate_free_slots(engine, wide))) == 3

    def declare(queue: StepQueue) -> Any:
        return oncemore.step(effect="idempotent", name="s", queue=queue.name, concurrency=queue.concurrency)(
            lambda number: number
        )

    number = 0
    while len(queue_step.list_slots(engine, "q")) < 3:
        declare(wide)(number := number + 1)
    assert [slot.head.entity for slot in queue_step.iterate_free_slots(engine, narrow)] == ["queue/q/0"]
    assert declare(narrow)(100) == 100


def test_a_queue_with_many_slots(engine: oncemore.Engine) -> None:
    """Its slots are read by one list."""
    wide = StepQueue("wide", queue_step.MAX_SINGLE_READS + 1)
    send = oncemore.step(effect="idempotent", name="s", queue=wide.name, concurrency=wide.concurrency)(
        lambda number: number
    )
    assert [send(number) for number in range(3)] == [0, 1, 2]
    assert queue_step.count_room(engine, wide, 1000, ()) == wide.concurrency
    assert queue_step.count_room(engine, wide, 2, ()) == 2


def test_an_old_read_of_a_run_does_not_free_its_slot(engine: oncemore.Engine) -> None:
    """A replica that lags behind may show the run before the attempt that took the slot."""
    hold(1)
    (head,) = queue_step.list_slots(engine, "narrow")
    slot = decode_head(head.head, QueueSlot)
    run = queue_step.load_holder(engine, slot)
    assert run is not None
    assert not queue_step.is_held(engine, slot, run)
    assert queue_step.is_held(engine, slot, run._replace(fence=run.fence - 1))
    assert not queue_step.is_held(engine, slot, run._replace(fence=run.fence + 1, state="RUNNING"))


# Declarations and the list --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "emails"}, "give both"),
        ({"concurrency": 5}, "give both"),
        ({"queue": "emails", "concurrency": 0}, "concurrency of .* is 0; it takes 1 to 1000"),
        ({"queue": "emails", "concurrency": True}, "is True"),
        ({"queue": "emails", "concurrency": "5"}, "is '5'"),
        ({"queue": "", "concurrency": 5}, "queue is ''"),
    ],
)
def test_a_wrong_queue_is_refused_when_it_is_declared(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        oncemore.step(effect="pure", **options)(lambda: None)


def test_steps_that_disagree_about_their_queue_are_refused_by_the_worker(engine: oncemore.Engine) -> None:
    steps = [
        oncemore.step(effect="pure", name=f"s{number}", queue="emails", concurrency=number)(lambda: None)
        for number in (2, 3)
    ]
    with pytest.raises(UsageError, match="'emails' has concurrency=2 in s2 and concurrency=3 in s3"):
        oncemore.Worker(engine, steps)


def test_the_list_of_queues(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/log.db"
    with oncemore.open(store) as engine:
        engine.store.load_head("none")  # which creates the store
        assert told("workflow", "queues", "--store", store) == []
        assert "No queue has been used yet" in run("workflow", "queues", "--store", store).stdout
        holder = Holder(hold, engine, 7)
        (queue,) = told("workflow", "queues", "--store", store)
        assert queue == {
            "name": "narrow", "concurrency": 1, "running": 1, "steps": ["hold"],
            "keys": [hold.bind(engine).key(7)],
        }  # fmt: skip
        assert "1 of 1" in run("workflow", "queues", "--store", store).stdout
        holder.release()
        (queue,) = told("workflow", "queues", "--store", store)
        assert (queue["running"], queue["keys"]) == (0, [])
