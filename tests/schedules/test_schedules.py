"""Scheduled steps in workers: one run per tick, missed ticks by policy, switches, changes of the code."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control.model import set_log_location
from oncemore.control.switches import update_switches
from oncemore.errors import MissingExtra, StoreError, UsageError
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import MemoryStore
from oncemore.log.store import HeadQuery
from oncemore.schedules import driver, ticks
from oncemore.schedules.record import ScheduleRecord
from oncemore.steps import perform
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.decorator import known_step
from oncemore.steps.engine import Engine
from oncemore.steps.ops import AskPermission
from oncemore.testing import FakeClock
from tests.shell import run, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def read_schedule(engine: oncemore.Engine, name: str) -> ScheduleRecord:
    head = engine.store.load_head(f"schedule/{name}")
    assert head is not None
    return decode_head(head.head, ScheduleRecord)


def list_runs(engine: oncemore.Engine, step: str) -> list[Any]:
    """Return the runs of a step."""
    heads = engine.store.list_heads(HeadQuery("run", limit=10_000))
    return [decode_head(head.head) for head in heads if head.by.step == step]


def go_to(engine: oncemore.Engine, clock: FakeClock, moment: float) -> None:
    """Move the clock to just after a moment of the store's time."""
    clock.advance(moment - engine.now() + 0.001)


class SetClock:
    """A store in memory whose time is set by the test, with its engine."""

    def __init__(self, now: str) -> None:
        self.now = datetime.fromisoformat(now).timestamp()
        self.engine = Engine(lambda: MemoryStore(lambda: self.now), "memory:")

    def move_to(self, now: str) -> None:
        self.now = datetime.fromisoformat(now).timestamp()


@pytest.fixture
def at() -> Iterator[Callable[[str], SetClock]]:
    """A function that opens an engine at a time."""
    opened: list[SetClock] = []

    def open_at(now: str) -> SetClock:
        opened.append(SetClock(now))
        return opened[-1]

    yield open_at
    for one in opened:
        one.engine.close()


# On every store -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "expected"), [("skip", 0), ("once", 1), ("all", 7)])
def test_one_run_per_tick_in_two_workers_and_missed_ticks_by_policy(
    store_url: str, clock: FakeClock, missed: Any, expected: int
) -> None:
    seen: list[datetime] = []

    @oncemore.schedule(every=timedelta(hours=1), tz="Europe/Berlin", missed=missed)
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        seen.append(tick)

    with oncemore.open(store_url) as engine:
        workers = [oncemore.Worker(engine, [report]) for _ in range(2)]

        def work() -> None:
            threads = [threading.Thread(target=worker.run_until_idle) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        work()
        assert seen == []  # the first tick is the next one
        first = read_schedule(engine, "report").next_tick
        go_to(engine, clock, first)
        work()
        assert [tick.timestamp() for tick in seen] == [first]
        assert seen[0].utcoffset() == ticks.to_datetime(first, "Europe/Berlin").utcoffset()
        # Seven ticks without a worker, the last of them half an hour ago.
        go_to(engine, clock, first + 7 * 3600 + 1800)
        work()
        missed_ticks = [first + 3600 * number for number in range(1, 8)]
        assert sorted(tick.timestamp() for tick in seen[1:]) == missed_ticks[7 - expected :]
        record = read_schedule(engine, "report")
        assert (record.tick_count, record.skipped_count) == (1 + expected, 7 - expected)
        assert record.next_tick == first + 8 * 3600
        assert all(run.run_number == 1 and run.attempt == 1 for run in list_runs(engine, "report"))
        assert len(list_runs(engine, "report")) == len(seen)


# The decorated step ---------------------------------------------------------------------------------


def test_a_function_without_parameters_has_one_run_per_tick(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    seen: list[str] = []

    @oncemore.schedule(every=60, name="every-minute", missed="all")
    @oncemore.step(effect="idempotent", name="tidy")
    def tidy() -> None:
        seen.append(oncemore.current().key)

    worker = oncemore.Worker(engine, [tidy])
    worker.run_until_idle()
    clock.advance(180)
    worker.run_until_idle()
    assert len(seen) == len(set(seen)) >= 3
    ticks_seen = len(seen)
    assert read_schedule(engine, "every-minute").step == "tidy"
    # A call by hand is no tick: it has the key of the step itself.
    tidy()
    assert seen[-1] == tidy.key()
    assert len(seen) == ticks_seen + 1


def test_the_decorated_object_stays_the_step(engine: oncemore.Engine, clock: FakeClock) -> None:
    calls: list[Any] = []

    @oncemore.schedule("@daily")
    @oncemore.schedule("0 12 * * 1", name="monday", tz="America/New_York")
    @oncemore.step(effect="pure", name="sum-up")
    async def sum_up(day: datetime, factor: int = 2) -> int:
        calls.append(day)
        return factor

    assert isinstance(sum_up, oncemore.Step)
    day = datetime.fromisoformat("2026-11-16T00:00+00:00")
    assert asyncio.run(sum_up(day)) == 2
    worker = oncemore.Worker(engine, [sum_up])
    worker.run_until_idle()
    assert {head.entity for head in engine.store.list_heads(HeadQuery("schedule"))} == {
        "schedule/sum-up",
        "schedule/monday",
    }
    go_to(engine, clock, read_schedule(engine, "sum-up").next_tick)
    worker.run_until_idle()
    assert calls[-1].timestamp() == read_schedule(engine, "sum-up").last_tick
    (run,) = (run for run in list_runs(engine, "sum-up") if run.created_at > engine.now() - 60)
    assert run.state == "COMPLETE"


def test_a_scheduled_workflow_sleeps_and_goes_on(engine: oncemore.Engine, clock: FakeClock) -> None:
    done: list[str] = []

    @oncemore.step(effect="idempotent", name="part", queue="parts", concurrency=1)
    def part(day: str) -> str:
        done.append(day)
        return day

    @oncemore.schedule("0 6 * * *", tz="Europe/Berlin")
    @oncemore.workflow(name="daily")
    def daily(tick: datetime) -> str:
        part(f"{tick:%H:%M}")
        oncemore.sleep(timedelta(hours=1))
        return part("later")

    worker = oncemore.Worker(engine, [daily, part])
    worker.run_until_idle()
    go_to(engine, clock, read_schedule(engine, "daily").next_tick)
    worker.run_until_idle()
    assert done == ["06:00"]
    clock.advance(3600)
    worker.run_until_idle()
    assert done == ["06:00", "later"]
    assert [run.state for run in list_runs(engine, "daily")] == ["COMPLETE"]


def test_a_run_says_which_schedule_submitted_it(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.schedule(every=60)
    @oncemore.step(effect="idempotent", name="tidy")
    def tidy() -> str:
        return "done"

    worker = oncemore.Worker(engine, [tidy])
    worker.run_until_idle()
    clock.advance(60)
    worker.run_until_idle()
    opening = next(entry for entry in engine.store.read_entries() if entry.entity.startswith("run/"))
    body = json.loads(opening.body or b"")
    assert body["schedule"] == {"name": "tidy", "tick": read_schedule(engine, "tidy").last_tick}
    assert body["actor"] == "schedule tidy"


def plain(tick: datetime) -> None:
    """A function that is no step."""


def step_with(function: Any, **options: Any) -> Any:
    return oncemore.step(effect="pure", name="some", **options)(function)


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: oncemore.schedule("0 6 * * *")(plain), "which is not a step; write @oncemore.schedule"),  # type: ignore[type-var]
        (lambda: oncemore.schedule(plain), "needs its times: write @oncemore.schedule"),  # type: ignore[arg-type]
        (lambda: oncemore.schedule(), "a cron expression or every="),
        (lambda: oncemore.schedule("0 6 * * *", every=5), "one of both"),
        (lambda: oncemore.schedule(5), "takes a cron expression such as"),  # type: ignore[arg-type]
        (lambda: oncemore.schedule("61 6 * * *"), "has a wrong minute field"),
        (lambda: oncemore.schedule("0 25 * * *"), "has a wrong hour field"),
        (lambda: oncemore.schedule("0 6 * JANU *"), "has a wrong month field"),
        (lambda: oncemore.schedule("0 6 * *"), "has 4 fields; it takes five"),
        (lambda: oncemore.schedule("* * * * * *"), "For seconds write every="),
        (lambda: oncemore.schedule("0 0 31 2 *"), "wrong day-of-month field"),
        (lambda: oncemore.schedule("0 6 * * *", tz="Europe/Berln"), "no time zone of that name"),
        (lambda: oncemore.schedule("0 6 * * *", tz=""), "no time zone of that name"),
        (lambda: oncemore.schedule(every=0), "every is 0; it takes a timedelta or seconds"),
        (lambda: oncemore.schedule(every=True), "every is True"),
        (lambda: oncemore.schedule(every="1h"), "every is '1h'"),  # type: ignore[arg-type]
        (lambda: oncemore.schedule(every=5, start=datetime(2026, 1, 1)), "an aware datetime"),
        (lambda: oncemore.schedule("0 6 * * *", start=datetime.now().astimezone()), "start is for every="),
        (lambda: oncemore.schedule(every=5, missed="never"), "missed is 'never'; the choices are"),  # type: ignore[arg-type]
        (lambda: oncemore.schedule(every=5, name=""), "name is ''"),
        (lambda: oncemore.schedule(every=5)(step_with(lambda a, b: None)), "takes a, b; a scheduled"),
        (lambda: oncemore.schedule(every=5)(step_with(lambda *, day: None)), "takes day; a scheduled"),
        (lambda: oncemore.schedule(every=5)(step_with(lambda: None, bucket="hour")), "leave both out"),
        (lambda: oncemore.schedule(every=5)(step_with(lambda day: None, key="day")), "leave both out"),
        (
            lambda: oncemore.schedule(every=5)(step_with(lambda day: None, ignore="day", partition=1)),
            "leaves out day",
        ),
        (
            lambda: oncemore.schedule(every=5)(oncemore.schedule(every=6)(step_with(lambda day: None))),
            "two schedules called 'some'",
        ),
    ],
)  # fmt: skip
def test_a_wrong_schedule_is_refused_when_it_is_declared(declare: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(").replace("*", r"\*")):
        declare()


def test_two_schedules_of_one_name_are_refused_by_the_worker(engine: oncemore.Engine) -> None:
    one = oncemore.schedule(every=5, name="x")(step_with(lambda day: None))
    other = oncemore.schedule(every=5, name="x")(oncemore.step(effect="pure", name="other")(lambda day: None))
    with pytest.raises(UsageError, match="two schedules are called 'x'"):
        oncemore.Worker(engine, [one, other])


def test_cron_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cronsim", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncemore\[cron\]'"):
        oncemore.schedule("0 6 * * *")
    oncemore.schedule(every=5)


# Time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "until", "expected"),
    [
        # The night in which 02:30 does not exist, and the one in which it comes twice.
        ("2026-03-28T12:00+01:00", "2026-03-29T12:00+02:00", ["2026-03-29T03:00:00+02:00"]),
        ("2026-10-24T12:00+02:00", "2026-10-25T12:00+01:00", ["2026-10-25T02:30:00+02:00"]),
    ],
)
def test_a_fixed_time_runs_once_when_the_clocks_change(
    at: Callable[[str], SetClock], now: str, until: str, expected: list[str]
) -> None:
    seen: list[str] = []

    @oncemore.schedule("30 2 * * *", tz="Europe/Berlin", missed="all")
    @oncemore.step(effect="idempotent", name="nightly")
    def nightly(tick: datetime) -> None:
        seen.append(tick.isoformat())

    there = at(now)
    worker = oncemore.Worker(there.engine, [nightly])
    worker.run_until_idle()
    end = datetime.fromisoformat(until).timestamp()
    while there.now < end:
        there.now += 600
        worker.run_until_idle()
    assert seen == expected


def test_a_worker_wakes_up_for_a_tick(engine: oncemore.Engine) -> None:
    """By the real clock: it sleeps until the tick, although its poll interval is an hour."""
    seen, done = [], threading.Event()

    @oncemore.schedule(every=0.3)
    @oncemore.step(effect="idempotent", name="tick")
    def tick(at: datetime) -> None:
        seen.append(engine.now() - at.timestamp())
        if len(seen) == 3:
            done.set()

    with oncemore.Worker(engine, [tick], poll_s=3600):
        assert done.wait(60)


def test_a_tick_is_submitted_while_all_slots_of_the_worker_are_taken(engine: oncemore.Engine) -> None:
    submitted = threading.Event()

    @oncemore.step(effect="idempotent", name="long")
    def long() -> bool:
        return submitted.wait(60)

    @oncemore.schedule(every=0.05)
    @oncemore.step(effect="idempotent", name="tick")
    def tick() -> None:
        """Do nothing."""

    long.submit()
    with oncemore.Worker(engine, [long, tick], concurrency=1):
        while not list_runs(engine, "tick"):
            engine.store.wait_for_change(0, 0.01)
        submitted.set()
        assert long.submit().wait(60).value is True


def test_ticks_of_an_interval_begin_at_its_start(at: Callable[[str], SetClock]) -> None:
    seen: list[str] = []

    @oncemore.schedule(every=3600, start=datetime.fromisoformat("2026-11-16T10:17+00:00"))
    @oncemore.step(effect="idempotent", name="hourly")
    def hourly(tick: datetime) -> None:
        seen.append(tick.isoformat())

    there = at("2026-11-16T09:00+00:00")
    worker = oncemore.Worker(there.engine, [hourly])
    for now in ("09:30", "10:16", "10:17", "11:16", "11:17"):
        there.move_to(f"2026-11-16T{now}+00:00")
        worker.run_until_idle()
    assert seen == ["2026-11-16T10:17:00+00:00", "2026-11-16T11:17:00+00:00"]


def test_a_long_absence_is_made_up_for_in_parts(
    at: Callable[[str], SetClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the last 1,000 ticks, and other work starts in between."""
    monkeypatch.setattr(ticks, "MAX_MISSED", 60)

    @oncemore.schedule(every=60, missed="all")
    @oncemore.step(effect="idempotent", name="minutely")
    def minutely(tick: datetime) -> None:
        """Do nothing."""

    there = at("2026-11-16T09:00+00:00")
    schedules = driver.ScheduleDriver(there.engine, [known_step(minutely)])
    schedules.submit_due_ticks()
    there.now += 100 * 60
    schedules.submit_due_ticks()
    assert len(list_runs(there.engine, "minutely")) == driver.MAX_TICKS_AT_ONCE
    assert schedules.next_due <= there.now
    schedules.submit_due_ticks()
    assert len(list_runs(there.engine, "minutely")) == 60
    assert schedules.next_due == there.now + 60


# Operators -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "expected"), [("skip", 0), ("once", 1), ("all", 3)])
def test_ticks_wait_while_a_switch_stops_the_step(
    engine: oncemore.Engine, clock: FakeClock, missed: Any, expected: int
) -> None:
    @oncemore.schedule(every=600, missed=missed)
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        """Do nothing."""

    worker = oncemore.Worker(engine, [report])
    worker.run_until_idle()
    engine.switches.on(step="report", reason="stop", by="operator")
    go_to(engine, clock, read_schedule(engine, "report").next_tick + 1200 + 300)
    worker.run_until_idle()
    assert list_runs(engine, "report") == []
    engine.switches.off(step="report", reason="go on", by="operator")
    clock.advance(driver.RECHECK_S)
    worker.run_until_idle()
    assert len(list_runs(engine, "report")) == expected


def test_a_tick_that_was_run_by_hand_is_not_run_again(engine: oncemore.Engine, clock: FakeClock) -> None:
    calls: list[datetime] = []

    @oncemore.schedule(every=60)
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        calls.append(tick)

    worker = oncemore.Worker(engine, [report])
    worker.run_until_idle()
    tick = read_schedule(engine, "report").next_tick
    report(ticks.to_datetime(tick, "UTC"))
    go_to(engine, clock, tick)
    worker.run_until_idle()
    assert len(calls) == 1
    assert read_schedule(engine, "report").next_tick == tick + 60


def test_pruned_and_forgotten_runs_do_not_come_back(engine: oncemore.Engine, clock: FakeClock) -> None:
    calls: list[datetime] = []

    @oncemore.schedule(every=3600, missed="all")
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        calls.append(tick)

    worker = oncemore.Worker(engine, [report])
    worker.run_until_idle()
    clock.advance(3 * 3600)
    worker.run_until_idle()
    clock.advance(86_400 * 2)
    engine.prune(older_than=86_400, reason="test", by="operator", forget_keys_after=86_400)
    clock.advance(86_400 * 2)
    engine.prune(older_than=86_400, reason="test", by="operator", forget_keys_after=86_400)
    assert list_runs(engine, "report") == []
    before = len(calls)
    # The schedule goes on after its last tick.
    worker.run_until_idle()
    calls.sort()
    assert len(calls) >= before + 90
    assert {later - earlier for earlier, later in itertools.pairwise(calls)} == {timedelta(hours=1)}


def test_a_schedule_that_cannot_be_submitted_does_not_stop_other_work(
    engine: oncemore.Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @oncemore.schedule(every=60)
    @oncemore.step(effect="idempotent", name="broken", partition=lambda tick: object())
    def broken(tick: datetime) -> None:
        """Never called: its key cannot be made."""

    @oncemore.schedule(every=60)
    @oncemore.step(effect="idempotent", name="fine")
    def fine(tick: datetime) -> None:
        """Do nothing."""

    worker = oncemore.Worker(engine, [broken, fine])
    worker.run_until_idle()
    clock.advance(60)
    worker.run_until_idle()
    assert len(list_runs(engine, "fine")) == 1
    assert "schedule broken: a tick could not be submitted" in caplog.text


def test_a_moved_log_gets_no_more_ticks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @oncemore.schedule(every=60)
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        """Never called."""

    with FakeClock() as clock, oncemore.open(tmp_path / "log.db") as engine:
        schedules = driver.ScheduleDriver(engine, [known_step(report)])
        schedules.submit_due_ticks()
        engine.switches.on(step="other", reason="test", by="operator")
        update_switches(engine, lambda board: set_log_location(board, "sqlite:////new.db"), lambda *known: {})
        clock.advance(60)
        schedules.submit_due_ticks()
        assert list_runs(engine, "report") == []


def test_a_log_that_moves_while_a_tick_is_submitted_is_refused_and_logged(
    engine: oncemore.Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @oncemore.schedule(every=60)
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        """Never called."""

    schedules = driver.ScheduleDriver(engine, [known_step(report)])
    schedules.submit_due_ticks()
    ask = perform.ask_permission

    def ask_late(call: Any, op: Any) -> Any:
        # The first question is about the step, the second one about the submission.
        permission = ask(call, op)
        return permission if op.begins else permission._replace(stop="moved", name="sqlite:////new.db")

    clock.advance(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CALL_OPERATIONS.blocking, AskPermission, ask_late)
        schedules.submit_due_ticks()
    assert list_runs(engine, "report") == []
    assert "schedule report: a tick could not be submitted" in caplog.text
    clock.advance(driver.RECHECK_S)
    schedules.submit_due_ticks()
    assert len(list_runs(engine, "report")) == 1


def test_a_store_that_cannot_be_read_is_an_error_of_the_worker(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop logs it and tries again, as for every other read."""
    schedules = driver.ScheduleDriver(engine, [known_step(declare("0 6 * * *", []))])
    monkeypatch.setattr(driver, "load_head", lambda *args: (_ for _ in ()).throw(StoreError("down")))
    with pytest.raises(StoreError, match="down"):
        schedules.submit_due_ticks()
    monkeypatch.undo()
    schedules.submit_due_ticks()
    assert read_schedule(engine, "daily").tick_count == 0


# Changes of the code ---------------------------------------------------------------------------------


def declare(expression: str, seen: list[str], **options: Any) -> Any:
    @oncemore.schedule(expression, name="daily", **options)
    @oncemore.step(effect="idempotent", name="report")
    def report(tick: datetime) -> None:
        seen.append(tick.isoformat())

    return report


def test_a_changed_expression_begins_with_its_next_tick(at: Callable[[str], SetClock]) -> None:
    seen: list[str] = []
    there = at("2026-11-16T05:00+00:00")
    oncemore.Worker(there.engine, [declare("0 6 * * *", seen)]).run_until_idle()
    there.move_to("2026-11-16T10:00+00:00")
    # No worker took 06:00; the new expression does not look back, to 06:00 or to 08:00.
    worker = oncemore.Worker(there.engine, [declare("0 8 * * *", seen)])
    worker.run_until_idle()
    assert seen == []
    there.move_to("2026-11-17T08:00+00:00")
    worker.run_until_idle()
    assert seen == ["2026-11-17T08:00:00+00:00"]
    # Another missed policy does not move the ticks.
    there.move_to("2026-11-18T09:00+00:00")
    oncemore.Worker(there.engine, [declare("0 8 * * *", seen, missed="skip")]).run_until_idle()
    assert seen == ["2026-11-17T08:00:00+00:00"]
    assert read_schedule(there.engine, "daily").next_tick == there.now + 23 * 3600


def test_two_versions_of_the_code_do_not_both_run_a_schedule(at: Callable[[str], SetClock]) -> None:
    """The worker that started last decides, and the other one takes over only when that one has gone."""
    seen: list[str] = []
    there = at("2026-11-16T05:00+00:00")
    old = driver.ScheduleDriver(there.engine, [known_step(declare("0 6 * * *", seen))])
    new = driver.ScheduleDriver(there.engine, [known_step(declare("0 7 * * *", seen))])
    old.submit_due_ticks()
    new.submit_due_ticks()
    there.move_to("2026-11-16T06:00+00:00")
    for each in (old, new, old):
        each.submit_due_ticks()
    assert list_runs(there.engine, "report") == []
    there.move_to("2026-11-16T07:00+00:00")
    for each in (old, new, old):
        each.submit_due_ticks()
    assert len(list_runs(there.engine, "report")) == 1
    # The new worker has gone; its tick stays without a run, and the old one takes the schedule back.
    there.move_to("2026-11-17T07:00:29+00:00")
    old.submit_due_ticks()
    assert read_schedule(there.engine, "daily").expression == "0 7 * * *"
    there.move_to("2026-11-17T07:00:30+00:00")
    old.submit_due_ticks()
    there.move_to("2026-11-18T06:00+00:00")
    old.submit_due_ticks()
    assert read_schedule(there.engine, "daily").expression == "0 6 * * *"
    assert read_schedule(there.engine, "daily").last_tick == there.now


# The list --------------------------------------------------------------------------------------------


def test_the_list_of_schedules(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/log.db"
    report = oncemore.schedule("0 6 * * *", tz="Europe/Berlin")(
        oncemore.step(effect="pure", name="report")(lambda tick: None)
    )
    tidy = oncemore.schedule(every=timedelta(minutes=5), missed="all")(
        oncemore.step(effect="pure", name="tidy", pipeline="house")(lambda: None)
    )
    with FakeClock() as clock, oncemore.open(store) as engine:
        engine.store.load_head("none")  # which creates the store
        assert told("workflow", "schedules", "--store", store) == []
        assert "No schedules yet" in run("workflow", "schedules", "--store", store).stdout
        # Three days ago, so that the next tick of the first one is overdue.
        clock.advance(-3 * 86_400)
        worker = oncemore.Worker(engine, [report, tidy])
        worker.run_until_idle()
        clock.advance(300)
        worker.run_until_idle()
        engine.switches.on(pipeline="house", reason="test", by="operator")
    first, second = told("workflow", "schedules", "--store", store)
    assert (first["name"], first["times"], first["tz"], first["missed"]) == (
        "report", "0 6 * * *", "Europe/Berlin", "once",
    )  # fmt: skip
    assert (first["last_tick"], first["paused_by"], first["is_overdue"]) == (None, "", True)
    assert first["next_tick"].endswith(("04:00:00Z", "05:00:00Z"))
    assert (second["times"], second["paused_by"]) == ("every 5 min", "pipeline:house")
    assert second["ticks"] in (1, 2)  # real time goes on, and may pass a tick
    assert second["last_tick"].endswith("Z")
    table = run("workflow", "schedules", "--store", store).stdout
    assert "paused by the switch pipeline:house" in table
    assert "overdue: no worker takes it" in table
    assert "0 6 * * *" in table
