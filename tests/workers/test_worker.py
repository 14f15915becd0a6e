"""Workers: what they take and in which order, what they leave, and what becomes of it when they die."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import build_write, decode_head
from oncemore.log.record import NOWHERE, JobRecord, RecordChange
from oncemore.log.record import WorkerRecord as Lease
from oncemore.log.store import Batch, HeadQuery
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.history import verify_chain
from oncemore.workers import poll
from oncemore.workers.takeover import FAR_FUTURE, append_state
from oncemore.workers.turns import RunTurn
from oncemore.workers.worker_report import WorkerStats
from tests.workers.dying import begin_and_fall_silent

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

done: list[Any] = []
#: Waits that are never short by chance.
CALM = Policy("calm", max_attempts=3, schedule=Schedule("fixed", delays=(2.0, 3.0)), jitter=Jitter("none"))


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


def step(name: str, **told: Any) -> Any:
    def work(x: int) -> int:
        done.append((name, x))
        return x

    return oncemore.step(**{"effect": "idempotent", "name": name, **told})(work)


def alone(engine: oncemore.Engine, *steps: Any, **told: Any) -> oncemore.Worker:
    return oncemore.Worker(engine, steps, **{"concurrency": 1, **told})


# Order ----------------------------------------------------------------------------------------------


def test_higher_priorities_come_first_and_within_one_what_was_due_first(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    low, middle, high = (step(name, priority=p) for name, p in (("low", "P2"), ("mid", "P1"), ("high", "P0")))
    for n in range(3):
        for one in (low, middle, high):
            one.submit(n)
            clock.advance(1.0)
    alone(engine, low, middle, high).run_until_idle()
    assert done == [(name, n) for name in ("high", "mid", "low") for n in range(3)]


def test_a_step_with_very_many_runs_does_not_keep_another_waiting(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    crowd, few = step("crowd"), step("few")
    for n in range(60):
        crowd.submit(n)
    clock.advance(10.0)
    for n in range(5):
        few.submit(n)
    alone(engine, crowd, few).run_until_idle()
    places = [at for at, (name, _) in enumerate(done) if name == "few"]
    assert len(done) == 65
    assert max(places) <= 10, "every second turn is the other's"


def test_steps_take_turns_also_from_one_look_to_the_next(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "MAX_LIST_AGE_S", -1.0)  # every turn looks anew
    steps = [step(name) for name in "abc"]
    for one in steps:
        for n in range(4):
            one.submit(n)
    alone(engine, *steps).run_until_idle()
    assert [name for name, _ in done] == ["a", "b", "c"] * 4


def test_what_becomes_due_while_it_works_is_taken_by_its_priority(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "MAX_LIST_AGE_S", -1.0)
    urgent = step("urgent", priority="P0")

    def first(x: int) -> int:
        done.append(("plain", x))
        if x == 0:
            urgent.submit(7)
        return x

    plain = oncemore.step(effect="idempotent", name="plain")(first)
    for n in range(3):
        plain.submit(n)
    alone(engine, plain, urgent).run_until_idle()
    assert done == [("plain", 0), ("urgent", 7), ("plain", 1), ("plain", 2)]


# Limits ---------------------------------------------------------------------------------------------


@pytest.mark.req("CONC-8")
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_limit_of_two_is_kept_while_twenty_become_due_at_once(engine: oncemore.Engine, colour: str) -> None:
    lock, now, peak = threading.Lock(), [0], [0]

    def enter() -> None:
        with lock:
            now[0] += 1
            peak[0] = max(peak[0], now[0])

    def leave() -> None:
        with lock:
            now[0] -= 1

    @oncemore.step(effect="idempotent", name="busy")
    def plain(x: int) -> int:
        enter()
        time.sleep(0.005)
        leave()
        return x

    @oncemore.step(effect="idempotent", name="abusy")
    async def awaited(x: int) -> int:
        enter()
        await asyncio.sleep(0.005)
        leave()
        return x

    at = engine.now() + 0.2
    for n in range(20):
        if colour == "plain":
            plain.submit(n, at=at)
        else:
            asyncio.run(awaited.submit(n, at=at))
    work: Any = plain if colour == "plain" else awaited
    with oncemore.Worker(engine, [work], concurrency=2) as worker:
        _until(lambda: worker.stats.done == 20)
    assert peak == [2]


def _until(holds: Any, total_timeout_s: float = 20.0) -> None:
    ends = time.monotonic() + total_timeout_s
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.005)


def test_default_limits_are_low(engine: oncemore.Engine) -> None:
    assert oncemore.Worker(engine, [step("a")])._concurrency == 5


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"concurrency": 0}, "concurrency is 0; it takes 1 to 1000"),
        ({"concurrency": True}, "concurrency is True"),
        ({"poll_s": 0}, "poll_s is 0"),
        ({"grace_s": -1}, "grace_s is -1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(engine: oncemore.Engine, told: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.Worker(engine, [step("a")], **told)


def test_a_worker_needs_steps_each_with_a_name_of_its_own(engine: oncemore.Engine) -> None:
    with pytest.raises(oncemore.UsageError, match="a worker needs steps"):
        oncemore.Worker(engine, [])
    with pytest.raises(oncemore.UsageError, match="two steps are called 'a'"):
        oncemore.Worker(engine, [step("a"), step("a")])
    with pytest.raises(oncemore.UsageError, match="is not a step"):
        oncemore.Worker(engine, [print])  # type: ignore[list-item]


def test_a_worker_s_pulse_tells_how_long_ago_it_went_round(engine: oncemore.Engine) -> None:
    worker = oncemore.Worker(engine, [step("a")])
    assert worker.health == (None, None, False)
    with worker:
        _until(lambda: None not in worker.health)
        assert worker.health[0] >= 0
    assert worker.health.loop_age_s is None, "it goes round no more"


def test_a_worker_rests_neither_beside_what_has_just_ended_nor_while_the_store_fails(
    engine: oncemore.Engine,
) -> None:
    worker = oncemore.Worker(engine, [step("a")], poll_s=0.05)
    worker._due_runs._active = frozenset({"run/ended"})
    assert worker._wait_for_work(7) is None, "it may be due again: it looks at once"
    worker._due_runs._active, worker._has_store_trouble = frozenset(), True
    began = time.monotonic()
    worker._wait_for_work(7)
    assert time.monotonic() - began >= 0.05, "the store is left alone for as long as it would rest"
    assert not worker._has_store_trouble


# What becomes of runs -------------------------------------------------------------------------------


def test_what_fails_is_tried_again_when_it_is_due_and_holds_no_thread_meanwhile(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="flaky", policy=CALM)
    def flaky(x: int) -> int:
        if oncemore.current().number == 1:
            raise ConnectionError("down")
        return x

    run = flaky.submit(1)
    worker = alone(engine, flaky)
    assert worker.run_until_idle() == WorkerStats(deferred=1)
    clock.advance(5.0)
    assert worker.run_until_idle() == WorkerStats(done=1, deferred=1)
    assert [attempt.outcome for attempt in run.wait(5).attempts] == ["SOFT_FAIL", "COMPLETE"]
    assert clock.delays == []


def test_a_parked_call_is_gone_on_with(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="throttled")
    def throttled(x: int, times: list[int]) -> int:
        if oncemore.current().number == 1:
            raise _too_many()
        return x

    with pytest.raises(oncemore.Deferred):
        throttled(1, [1, 2])
    clock.advance(130.0)
    assert alone(engine, throttled).run_until_idle() == WorkerStats(done=1)
    assert throttled(1, [1, 2]) == 1


def _too_many() -> Exception:
    import urllib.error
    from email.message import Message

    headers = Message()
    headers["Retry-After"] = "120"
    return urllib.error.HTTPError("http://localhost", 429, "slow down", headers, None)


def test_a_call_with_what_the_log_does_not_keep_is_left_to_its_caller(
    engine: oncemore.Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @oncemore.step(effect="idempotent", name="secretive")
    def secretive(x: int, token: oncemore.Secret) -> int:
        if oncemore.current().number == 1:
            raise _too_many()
        return x

    for n in range(20):
        with pytest.raises(oncemore.Deferred):
            secretive(n, oncemore.Secret("hidden-token"))
    clock.advance(130.0)
    plain = step("plain")
    plain.submit(1)
    worker = alone(engine, secretive, plain)
    worker.run_until_idle()
    assert worker.stats == WorkerStats(done=1, refused=20)
    assert "the log does not have token" in caplog.text
    assert worker.run_until_idle().refused == 20, "it is not tried over and over"
    assert secretive(3, oncemore.Secret("hidden-token")) == 3


def test_what_cannot_go_on_here_does_not_hide_what_can(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(poll, "MAX_REFUSED", 45)
    old = oncemore.step(effect="idempotent", name="moved")(lambda x, gone: x)
    for n in range(40):
        old.submit(n, gone=1)
    clock.advance(1.0)
    new = step("moved")
    new.submit(99)
    worker = alone(engine, new)
    worker.run_until_idle()
    assert worker.stats == WorkerStats(done=1, refused=40)
    assert done == [("moved", 99)]
    for n in range(10):
        old.submit(100 + n, gone=1)
    assert worker.run_until_idle().refused <= 50, "what is remembered is bounded"
    assert "moved is set aside: 45 of its runs do not fit here" in caplog.text
    new.submit(200)
    worker.run_until_idle()
    assert new.last_run(200).status == "PENDING"


def test_arguments_that_were_pruned_cannot_be_gone_on_with(engine: oncemore.Engine) -> None:
    one = step("one")
    run = one.submit(1)
    engine.store.open_maintenance().prune_bodies({f"run/{run.key}": 2})
    assert alone(engine, one).run_until_idle() == WorkerStats(refused=1)


def test_steps_that_no_worker_knows_stay_and_are_counted(engine: oncemore.Engine) -> None:
    known, other = step("known"), step("other")
    known.submit(1)
    for n in range(3):
        other.submit(n)
    other.submit(4, at=timedelta(hours=1))
    worker = alone(engine, known)
    assert worker.unknown_steps() == {"other": 3}
    assert worker.run_until_idle().done == 1
    assert other.last_run(0).status == "PENDING"


def test_failures_and_unknown_outcomes_are_counted_and_told(
    engine: oncemore.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @oncemore.step(effect="once", name="pay")
    def pay(x: int) -> int:
        raise TimeoutError("no answer")

    @oncemore.step(effect="idempotent", name="broken")
    def broken(x: int) -> int:
        raise ValueError("bad value")

    @oncemore.step(effect="idempotent", name="odd")
    def odd(x: int) -> Any:
        return object()

    @oncemore.step(effect="idempotent", name="leaves")
    def leaves(x: int) -> Any:
        if oncemore.current().number == 1:
            raise SystemExit(1)
        return x

    for one in (pay, broken, odd, leaves):
        one.submit(1)
    worked = alone(engine, pay, broken, odd, leaves).run_until_idle()
    assert worked == WorkerStats(done=2, failed=1, held=1, deferred=1)
    assert "broken" in caplog.text
    assert "bad value" in caplog.text
    assert "pay" in caplog.text


def test_inner_steps_run_on_the_worker_s_engine(engine: oncemore.Engine, tmp_path: Path) -> None:
    inner = step("inner")

    @oncemore.step(effect="idempotent", name="outer")
    def outer(x: int) -> int:
        return int(inner(x))

    outer.submit(5)
    entries = alone(engine, outer)
    assert entries.run_until_idle().done == 1
    assert inner.bind(engine).last_run(5).value == 5
    assert not (tmp_path / ".oncemore").exists()


def test_what_ends_while_a_worker_looks_is_not_taken_as_it_was_before(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list was read while the run waited to be done; it ends before the list is looked through."""
    one = step("one")
    one.submit(1)
    worker = alone(engine, one)
    entity = f"run/{one.key(1)}"
    worker._active_runs[entity] = "one"
    heads = engine.store.list_heads

    def slow(query: Any) -> Any:
        found = list(heads(query))
        worker._active_runs.pop(entity, None)
        return iter(found)

    monkeypatch.setattr(engine.store, "list_heads", slow)
    worker._list_turns()
    assert worker._due_runs.turns == []
    worker._list_turns()
    assert [turn.entity for turn in worker._due_runs.turns] == [entity]


def test_what_ends_beside_a_full_worker_does_not_make_it_think_that_nothing_is_left(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no room it does not look; if its work ends in that moment it is idle, and has not looked."""
    one = step("one")
    one.submit(1)
    worker = alone(engine, one)
    worker._active_runs["run/other"] = "one"
    start = worker._start_due_runs

    def full(crew: Any) -> bool:
        started = start(crew)
        worker._active_runs.pop("run/other", None)
        return started

    monkeypatch.setattr(worker, "_start_due_runs", full)
    assert worker.run_until_idle().done == 1


def test_a_run_that_somebody_else_did_meanwhile_is_not_counted(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = step("one")
    one.submit(1)
    one.submit(2)
    worker = alone(engine, one)
    worker._list_turns()
    one(1)
    worker._due_runs.listed_at = time.monotonic() + 60
    assert worker._take_turn() is not None
    worker = alone(engine, one)
    monkeypatch.setattr(worker, "_list_turns", lambda: None)
    worker._due_runs.turns = [RunTurn("P1", 0.0, "one", f"run/{one.key(n)}") for n in (1, 2)]
    assert worker.run_until_idle() == WorkerStats(done=1)
    assert worker._due_runs.contention, "it has met another, and takes runs out of their order for a while"
    monkeypatch.undo()
    for n in range(30):
        one.submit(10 + n)
    done.clear()
    worker.run_until_idle()
    assert sorted(done) == [("one", 10 + n) for n in range(30)]


def test_many_workers_do_everything_once(engine: oncemore.Engine) -> None:
    one = step("one")
    for n in range(100):
        one.submit(n)
    crowd = [oncemore.Worker(engine, [one], concurrency=3) for _ in range(3)]
    threads = [threading.Thread(target=worker.run_until_idle) for worker in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    _until(lambda: sum(worker.stats.done for worker in crowd) == 100)
    assert sorted(done) == [("one", n) for n in range(100)]
    verify_chain(engine.store.read_entries())


# The dead -------------------------------------------------------------------------------------------


def _die(path: Any, work: Any, x: int) -> oncemore.Engine:
    """Claim a run in a process that is then gone: its lock is free, its lease is not over."""
    return begin_and_fall_silent(oncemore.open(path), work, x)


def _states(engine: oncemore.Engine) -> list[str]:
    return sorted(
        decode_head(head.head, Lease).state for head in engine.store.list_heads(HeadQuery("worker"))
    )


def _job(engine: oncemore.Engine, job_id: str, worker: str) -> str:
    """Have a job under way."""
    job = JobRecord("RUNNING", "one", job_id, worker, 1.0)
    write = build_write(f"job/{job_id}", 0, NOWHERE, RecordChange(("JOB",), None, job), 1.0)
    engine.store.append(Batch((write,))).wait()
    return job_id


def test_what_a_dead_worker_had_is_taken_over_and_the_dead_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    one, other = step("one"), step("other")
    with oncemore.open(path) as engine:
        one.submit(1)
        other.submit(1)
        dead = _die(path, one, 1), _die(path, other, 1)
        worker = alone(engine, one)
        assert worker.run_until_idle() == WorkerStats(), "their leases last"
        assert one.last_run(1).status == "RUNNING"
        other.submit(2)
        alive = _die(path, other, 2)
        lives = _job(engine, "alive", next(iter(alive.leases.workers)))
        lost = _job(engine, "lost", next(iter(dead[0].leases.workers)))
        for each in dead:
            for me in each.leases.workers.values():
                me.quiet = True
            each.close()
        worker = alone(engine, one)
        assert worker.run_until_idle() == WorkerStats(done=1)
        assert [attempt.reason for attempt in one.last_run(1).attempts] == ["lease_expired", ""]
        assert other.last_run(1).status == "RUNNING", "nobody here knows it"
        worker = alone(engine, one)
        worker.run_until_idle()
        assert _states(engine) == ["ALIVE", "ALIVE", "ALIVE", "GONE"]
        assert {job.job_id: job.state for job in engine.jobs()} == {lives: "RUNNING", lost: "LOST"}
        assert alone(engine, other).run_until_idle() == WorkerStats(done=1)
        worker.run_until_idle()
        assert worker._due_runs.sweep._checked_workers, "the other is not looked for again at once"
        alive.close()
        verify_chain(engine.store.read_entries())


def test_what_a_silent_worker_had_is_taken_over_when_its_lease_is_over(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "log.db"
    one = step("one")
    with oncemore.open(path) as engine:
        one.submit(1)
        silent = _die(path, one, 1)
        clock.advance(50.0)
        assert alone(engine, one).run_until_idle() == WorkerStats()
        clock.advance(20.0)
        assert alone(engine, one).run_until_idle() == WorkerStats(done=1)
        silent.close()


def test_a_worker_that_ends_in_order_leaves_nothing_to_look_for(tmp_path: Path) -> None:
    one = step("one")
    with oncemore.open(tmp_path / "log.db"):
        one(1)
    with oncemore.open(tmp_path / "log.db") as engine:
        assert list(engine.store.list_heads(HeadQuery("worker", due_by=FAR_FUTURE))) == []
        assert _states(engine) == ["ENDED"]


def test_one_who_moved_meanwhile_is_not_marked(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "log.db"
    one = step("one")
    with oncemore.open(path) as engine:
        sleeper = oncemore.open(path)
        one.bind(sleeper)(1)
        clock.advance(100.0)
        worker = alone(engine, one)
        (head,) = engine.store.list_heads(HeadQuery("worker"))
        sleeper.leases.renew_leases()
        lease = decode_head(head.head, Lease)
        append_state(engine, head, lease, lease._replace(state="GONE"), "LEASE")
        assert _states(engine) == ["ALIVE"]
        worker.run_until_idle()
        assert _states(engine) == ["ALIVE"], "it is not dead"
        sleeper.close()


# Coming and going -----------------------------------------------------------------------------------


def test_a_worker_in_a_thread_takes_what_is_handed_in_and_what_becomes_due(engine: oncemore.Engine) -> None:
    one = step("one")
    with oncemore.Worker(engine, [one], poll_s=30.0) as worker:
        assert worker.start() is worker
        assert one.submit(1).wait(10).value == 1
        assert one.submit(2, at=timedelta(seconds=0.2)).wait(10).value == 2
    worker.close()


def test_a_stopped_worker_lets_what_is_under_way_end_and_takes_nothing_more(engine: oncemore.Engine) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @oncemore.step(effect="idempotent", name="slow")
    def slow(x: int) -> int:
        inside.set()
        assert go_on.wait(10)
        return x

    first, second = slow.submit(1), slow.submit(2)
    worker = oncemore.Worker(engine, [slow], concurrency=1).start()
    assert inside.wait(10)
    assert worker.active_keys == (first.key,)
    worker.stop()
    go_on.set()
    worker.close()
    assert (first.wait(5).status, second.wait(0).status) == ("COMPLETE", "PENDING")


def test_what_does_not_end_in_time_is_named_and_left(
    engine: oncemore.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @oncemore.step(effect="idempotent", name="endless")
    def endless(x: int) -> int:
        inside.set()
        assert go_on.wait(10)
        return x

    run = endless.submit(1)
    worker = oncemore.Worker(engine, [endless], grace_s=0.05).start()
    assert inside.wait(10)
    worker.close()
    assert f"runs are still active: {run.key[:12]}" in caplog.text
    assert worker.active_keys == (run.key,)
    go_on.set()
    assert run.wait(10).status == "COMPLETE"


def test_async_work_that_does_not_end_in_time_is_cancelled_in_order(engine: oncemore.Engine) -> None:
    inside = threading.Event()

    @oncemore.step(effect="idempotent", name="aendless")
    async def endless(x: int) -> int:
        inside.set()
        await asyncio.sleep(30)
        return x

    run = asyncio.run(endless.submit(1))
    worker = oncemore.Worker(engine, [endless], grace_s=0.05).start()
    assert inside.wait(10)
    worker.close()
    assert worker.active_keys == ()
    left = run.wait(0)
    assert (left.status, left.reason) == ("SOFT_FAIL", "interrupted")


def test_a_store_that_fails_is_left_alone_for_a_while_and_then_worked_on(
    engine: oncemore.Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = step("one")
    run = one.submit(1)
    faults = [StoreError("no route")] * 3
    heads, head = engine.store.list_heads, engine.store.load_head

    def failing(real: Any) -> Any:
        def ask(*told: Any) -> Any:
            if faults:
                raise faults.pop()
            return real(*told)

        return ask

    monkeypatch.setattr(engine.store, "list_heads", failing(heads))
    monkeypatch.setattr(engine.store, "load_head", failing(head))
    worker = oncemore.Worker(engine, [one], poll_s=0.05).start()
    _until(lambda: worker.stats.done == 1)
    worker.close()
    assert run.wait(5).status == "COMPLETE"
    assert "could not list its due runs: StoreError" in caplog.text
    faults.append(StoreError("again"))
    with pytest.raises(StoreError, match="again"):
        worker.run_until_idle()


def test_a_run_that_meets_a_failing_store_is_tried_again(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = step("one")
    run = one.submit(1)
    worker = oncemore.Worker(engine, [one], poll_s=0.05)
    real, faults = worker._resume_run, [StoreError("no route"), RuntimeError("a bug")]

    def failing(turn: Any) -> Any:
        if faults:
            raise faults.pop()
        return real(turn)

    monkeypatch.setattr(worker, "_resume_run", failing)
    with worker:
        assert run.wait(10).status == "COMPLETE"
    assert "store_error: no route" in caplog.text


def test_an_engine_s_worker_can_run_again(engine: oncemore.Engine) -> None:
    one = step("one")
    worker = alone(engine, one)
    for n in range(3):
        one.submit(n)
        assert worker.run_until_idle().done == n + 1


def test_a_worker_that_is_told_to_stop_before_it_has_begun_stops(engine: oncemore.Engine) -> None:
    one = step("one")
    one.submit(1)
    worker = alone(engine, one, grace_s=5.0)
    worker.stop()
    assert worker.run() == WorkerStats()
    assert worker.run_until_idle() == WorkerStats(done=1), "that was for once"
    began = time.monotonic()
    for _ in range(20):
        with alone(engine, one, grace_s=5.0):
            pass
    assert time.monotonic() - began < 5.0


def test_a_run_that_is_under_way_here_is_not_taken_again(engine: oncemore.Engine) -> None:
    one = step("one")
    keys = [f"run/{one.submit(n).key}" for n in range(2)]
    worker = alone(engine, one)
    worker._list_turns()
    worker._due_runs.listed_at = time.monotonic()
    worker._active_runs[worker._due_runs.turns[0].entity] = "one"
    turn = worker._take_turn()
    assert turn is not None
    assert {turn.entity, *worker._active_runs} == set(keys)
    worker._active_runs.clear()


def test_outcomes_that_need_nobody_are_told_quietly(
    engine: oncemore.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @oncemore.step(effect="idempotent", policy=CALM, name="flaky")
    def flaky(x: int) -> int:
        raise ConnectionError("down")

    flaky.submit(1)
    with caplog.at_level(logging.WARNING, "oncemore"):
        alone(engine, flaky).run_until_idle()
    # The step's own logger warns of the retry; the worker adds nothing.
    names = [record.name for record in caplog.records if "flaky" in record.getMessage()]
    assert names == ["oncemore.steps"]


# Beside the other rooms -------------------------------------------------------------------------------


class Cipher:
    """Turns bytes around: enough to see who can read them."""

    id = "turned"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


def test_sealed_arguments_come_to_the_worker_and_jobs_are_read_again(tmp_path: Path) -> None:
    one = step("one")
    with oncemore.open(tmp_path / "log.db", codec=Cipher()) as engine:
        run = one.submit(1)
        assert alone(engine, one).run_until_idle() == WorkerStats(done=1)
        assert run.wait(5).value == 1

        @oncemore.step(effect="idempotent", name="flaky", policy=CALM)
        def flaky(x: str) -> str:
            if oncemore.current().number == 1:
                raise ConnectionError("down")
            return x

        flaky.submit("canary")
        alone(engine, flaky).run_until_idle()
        with oncemore.testing.FakeClock() as clock:
            clock.advance(5.0)
            assert alone(engine, flaky).run_until_idle() == WorkerStats(done=1)
        job = one.map([2, 3])
        assert engine.jobs()[0].items == job.items
    assert b"canary" not in (tmp_path / "log.db").read_bytes()


def test_runs_of_a_step_that_got_another_name_are_done_under_it(engine: oncemore.Engine) -> None:
    old = step("old")
    run = old.submit(1)
    new = step("new", aliases="old")
    assert alone(engine, new).unknown_steps() == {}
    assert alone(engine, new).run_until_idle() == WorkerStats(done=1)
    assert run.wait(5).value == 1


def test_what_needs_a_person_is_held_and_not_tried_over_and_over(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="doubtful")
    def doubtful(x: int) -> int:
        raise oncemore.NeedsReview("AMBIGUOUS_NAME", "two of them")

    doubtful.submit(1)
    assert alone(engine, doubtful).run_until_idle() == WorkerStats(held=1)
    assert doubtful.map([1]).counts["held"] == 1
    with pytest.raises(oncemore.Quarantined, match=r"engine\.quarantine\.reject ends it"):
        doubtful.cancel(1, reason="no")


def test_a_copy_of_a_store_is_not_worked_on(tmp_path: Path) -> None:
    one = step("one")
    with oncemore.open(tmp_path / "log.db") as engine:
        one.submit(1)
        engine.backup(tmp_path / "copy.db")
    with oncemore.open(tmp_path / "copy.db") as engine, pytest.raises(oncemore.RestoredCopy):
        alone(engine, one).run_until_idle()
    assert done == []
