"""A scheduler that crashes before or after each of its writes: no tick is lost, and none runs twice."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.store import HeadQuery
from oncemore.schedules import driver
from oncemore.schedules.driver import ScheduleDriver
from oncemore.schedules.record import ScheduleRecord
from oncemore.steps.decorator import known_step
from tests.crash.harness import CrashingStore, crash_at_every_write, open_engine_on

if TYPE_CHECKING:
    from tests.crash.harness import SharedStore

EVERY_S = 60


@oncemore.schedule(every=EVERY_S, missed="all")
@oncemore.step(effect="idempotent", name="tick")
def tick(at: datetime) -> None:
    """Do nothing: the crash comes before it is called."""


@oncemore.schedule(every=EVERY_S, missed="all")
@oncemore.step(effect="idempotent", name="tick")
def tick_without_parameter() -> None:
    """Do nothing: the crash comes before it is called."""


class TimedStore(CrashingStore):
    """A store that crashes its processes, at a time that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time


def start() -> TimedStore:
    """Return a store with a declared schedule and three due ticks."""
    store = TimedStore()
    submit_ticks(store)
    store.time += 3.5 * EVERY_S
    return store


def submit_ticks(store: Any, step: Any = tick) -> None:
    """Be a process that submits the due ticks."""
    engine = open_engine_on(store)
    try:
        ScheduleDriver(engine, [known_step(step)]).submit_due_ticks()
    finally:
        engine.close()


def count_openings(store: SharedStore) -> Counter[str]:
    """Return how often each run was opened."""
    headers = [decode_header(entry.header) for entry in store.read_entries()]
    return Counter(header.entity for header in headers if "PENDING" in header.marks)


def check_ticks(store: Any, count: int) -> None:
    heads = list(store.list_heads(HeadQuery("run")))
    head = store.load_head("schedule/tick")
    record = decode_head(head.head, ScheduleRecord)
    openings = count_openings(store)
    assert len(heads) == len(openings) == record.tick_count == count
    assert set(openings.values()) <= {1}
    assert store.time < record.next_tick <= store.time + EVERY_S


@pytest.mark.parametrize("step", [tick, tick_without_parameter])
def test_every_crash_of_a_scheduler(step: Any) -> None:
    def process(store: Any) -> None:
        submit_ticks(store, step)

    crashes = 0
    for store in crash_at_every_write(start, process):
        # What the crash has left is a part of the ticks, each whole.
        assert set(count_openings(store).values()) <= {1}
        submit_ticks(store, step)
        check_ticks(store, 3)
        crashes += 1
    assert crashes >= 2 * 3


def test_every_crash_of_a_first_start() -> None:
    """A schedule that was never declared begins with the next tick, whoever declares it."""
    crashes = 0
    for store in crash_at_every_write(TimedStore, submit_ticks):
        submit_ticks(store)
        check_ticks(store, 0)
        crashes += 1
    assert crashes == 2


def test_a_scheduler_that_was_suspended_writes_nothing() -> None:
    """Another process submits the tick after the first one has read the schedule, and drops its run."""
    store = start()
    store.time -= 2 * EVERY_S
    engine = open_engine_on(store)
    schedules = ScheduleDriver(engine, [known_step(tick)])
    prepare = schedules._schedules[0].prepare_call

    def prepare_late(*args: Any) -> Any:
        submit_ticks(store)
        dropped = {head.entity: head.version for head in store.list_heads(HeadQuery("run"))}
        store.drop_entities(dropped)
        schedules._schedules[0].prepare_call = prepare  # type: ignore[method-assign]
        return prepare(*args)

    schedules._schedules[0].prepare_call = prepare_late  # type: ignore[method-assign]
    schedules.submit_due_ticks()
    # The run of the tick was forgotten, and its key with it: only the schedule remembers the tick.
    assert list(store.list_heads(HeadQuery("run"))) == []
    engine.close()


def test_two_schedulers_that_alternate_at_every_write() -> None:
    """Each write of one is followed by all writes of another: together they make each tick once."""
    for position in range(4):
        store = start()
        append, count = TimedStore.append, 0

        def interfere(self: Any, batch: Any, position: int = position, append: Any = append) -> Any:
            nonlocal count
            count += 1
            if count == position + 1:
                submit_ticks(self)
            return append(self, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TimedStore, "append", interfere)
            submit_ticks(store)
        check_ticks(store, 3)


def test_a_schedule_that_another_process_moves_between_two_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process has submitted one of three ticks; the other one submits the rest."""
    store, load = start(), driver.load_head
    reads = 0

    def load_late(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        # The second read is the one after the first tick.
        if reads == 2:
            submit_ticks(store)
        return load(*args)

    monkeypatch.setattr(driver, "load_head", load_late)
    submit_ticks(store)
    check_ticks(store, 3)


def test_the_time_is_that_of_the_store() -> None:
    """A process whose own clock is a day ahead submits nothing early."""
    store = start()
    store.time -= 3.5 * EVERY_S
    assert datetime.now(UTC).timestamp() != store.time
    submit_ticks(store)
    check_ticks(store, 0)
