"""Workers that are stopped, lose their lease, and wake up: nothing they still want to write is written."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_header
from oncemore.steps.history import fold_entries as told_by
from tests.storm import storm
from tests.storm.points import Point
from tests.storm.work import STEPS
from tests.timing import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.storm.crew import Crew

LEASE_S = 0.5
REPEATABLE = ("compute", "charge", "batch", "announce")
STOPS = {
    "after its INTENT": Point("INTENT", "after", signal=signal.SIGSTOP),
    "in the work": Point("effect:before", signal=signal.SIGSTOP),
    "after its effect": Point("effect:after", signal=signal.SIGSTOP),
    "before its COMMIT": Point("COMMIT", "before", signal=signal.SIGSTOP),
}


def test_a_stopped_worker_is_waited_for_then_taken_over_and_writes_nothing_when_it_wakes(crew: Crew) -> None:
    # A `once` effect of a zombie may still land late, which only the other side can refuse, by the fence: so
    # the step with a reconcile function, which would be told that nothing happened, is stopped after it.
    todo = [
        (step, phase)
        for step in STEPS
        for phase in STOPS
        if step != "wire" or phase in ("after its effect", "before its COMMIT")
    ]
    zombies = {one: crew.call(one[0], one[1], point=STOPS[one[1]], lease_s=LEASE_S) for one in todo}
    for zombie in zombies.values():
        zombie.stopped()
    takers = [crew.call(step, phase) for step, phase in todo]
    for taker in takers:
        assert taker.wait() == 0, crew.complaints()
    taken = {(ack["step"], ack["order"]): ack.get("value") or ack["error"] for ack in crew.acks()}
    before = {one: _log_of(crew, *one) for one in todo}
    for zombie in zombies.values():
        zombie.send(signal.SIGCONT)
    for zombie in zombies.values():
        assert zombie.wait() == 0, crew.complaints()

    woken = crew.acks()[len(todo) :]
    assert len(woken) == len(todo)
    for ack in woken:
        one = (ack["step"], ack["order"])
        assert (ack.get("value") or ack["error"]) == (taken[one] if one[0] in REPEATABLE else "LeaseLost"), (
            one
        )
        assert _log_of(crew, *one) == before[one], f"the zombie of {one} wrote to the log"
        assert taken[one] != "OutcomeUnknown" or one[0] == "pay"
    _check_not_too_early(crew)
    report = storm.report(crew)
    print(f"{len(todo)} zombies, all fenced; {report}")
    assert not report.violations
    assert report.held == len(STOPS)
    assert not crew.complaints()


def _log_of(crew: Crew, step: str, order: str) -> list[bytes]:
    """Return all that the log holds of a key: its entries, and its events."""
    with oncemore.open(crew.place["store"]) as engine:
        entity = f"run/{STEPS[step].key(order)}"
        entries = list(engine.store.read_entries())
    events = [
        entry.entity for entry, (_, state, _) in zip(entries, told_by(entries), strict=True)
        if entry.entity.startswith("event/") and state.run_entity == entity
    ]  # fmt: skip
    return [entry.hash for entry in entries if entry.entity in (entity, *events)]


def _check_not_too_early(crew: Crew) -> None:
    """Nobody closed the attempt of a worker before its lease had passed: it was stopped, not dead."""
    with oncemore.open(crew.place["store"]) as engine:
        entries = list(engine.store.read_entries())
    ends: dict[str, float] = {}
    holder: dict[str, str] = {}
    closed = 0
    for header, state, _ in told_by(entries):
        kind, _, name = header.entity.partition("/")
        if kind == "worker":
            ends[name] = state.lease_until
        if kind == "run" and state.state == "RUNNING":
            holder[name] = state.worker
        elif kind == "run" and holder.get(name) and state.reason in ("lease_expired", "reconciled"):
            assert header.at >= ends[holder.pop(name)], f"{name} was taken from a living worker"
            closed += 1
    assert closed > 0


@pytest.mark.req("LEASE-1")
def test_a_second_worker_is_refused_with_holder_and_expiry_while_a_stopped_one_holds_the_lease(
    crew: Crew,
) -> None:
    zombie = crew.call("pay", "o", point=STOPS["after its effect"], lease_s=30.0)
    zombie.stopped()
    impatient = oncemore.step(
        effect="once", name="pay", if_running="raise", policy=STEPS["pay"]._options.policy
    )(STEPS["pay"].__wrapped__)
    with oncemore.open(crew.place["store"]) as engine:
        with pytest.raises(oncemore.InProgress) as refused:
            impatient("o")
        run = impatient.last_run("o")
        assert run is not None
        assert run.status == "RUNNING"
        assert refused.value.worker == run.state.worker
        assert 0 < refused.value.until - engine.now() <= 30.0
    zombie.send(signal.SIGCONT)
    assert zombie.wait() == 0
    assert [effect["attempt"] for effect in crew.effects()] == [1]


@pytest.mark.parametrize("step", ["charge", "wire"])
def test_a_dead_worker_is_taken_over_at_once_because_its_lock_proves_it(crew: Crew, step: str) -> None:
    dead = crew.call(step, "o", point=Point("effect:after"), lease_s=3600.0)
    assert dead.wait() == -signal.SIGKILL
    began = time.monotonic()
    assert crew.call(step, "o").wait() == 0, crew.complaints()
    print(f"taken over {time.monotonic() - began:.3f} s after it was noticed; the lease had an hour left")
    assert crew.acks()[0]["value"]["receipt"] == 1
    assert not storm.report(crew).violations


def test_who_waits_for_a_worker_takes_over_when_it_dies(crew: Crew) -> None:
    stopped = crew.call("charge", "o", point=STOPS["after its effect"], lease_s=3600.0)
    stopped.stopped()
    waiting = [crew.call("charge", "o") for _ in range(3)]
    time.sleep(0.3)
    assert not crew.acks()
    stopped.kill()
    for worker in waiting:
        assert worker.wait(total_timeout=20) == 0, crew.complaints()
    assert [ack["value"]["receipt"] for ack in crew.acks()] == [1, 1, 1]
    assert len(crew.effects()) == 2
    assert not storm.report(crew).violations


@pytest.mark.req("LEASE-3")
def test_a_dead_worker_whose_death_nobody_can_prove_is_taken_over_after_its_lease(crew: Crew) -> None:
    """As on a store that is shared by several machines, which has no lock files."""
    dead = crew.call("charge", "o", point=Point("effect:after"), lease_s=1.0)
    assert dead.wait() == -signal.SIGKILL
    assert crew.call("charge", "o", blind=True).wait() == 0, crew.complaints()
    assert crew.acks()[0]["value"]["receipt"] == 1
    _check_not_too_early(crew)
    assert not storm.report(crew).violations


def test_a_worker_that_is_stopped_while_it_writes_holds_others_up_and_nothing_is_lost(crew: Crew) -> None:
    """It has SQLite's own lock then: nobody can take over, or write at all, until it goes on or dies."""
    stopped = crew.call("charge", "o", point=Point("COMMIT", "commit", signal=signal.SIGSTOP), lease_s=0.2)
    stopped.stopped()
    others = [crew.call("charge", order) for order in ("o", "p")]
    time.sleep(0.5)
    assert not crew.acks()
    stopped.send(signal.SIGCONT)
    for worker in (stopped, *others):
        assert worker.wait() == 0, crew.complaints()
    assert sorted((ack["order"], ack["value"]["receipt"]) for ack in crew.acks()) == [
        ("o", 1),
        ("o", 1),
        ("p", 2),
    ]
    assert not storm.report(crew).violations


@pytest.mark.req("LEASE-6")
def test_whoever_takes_over_during_a_delay_respects_it(crew: Crew) -> None:
    first = crew.start("delayed", order="o")
    wait_until(lambda: len(crew.effects()) == 1, "the first attempt")
    time.sleep(0.2)
    first.kill()
    assert crew.start("delayed", order="o").wait() == 0, crew.complaints()
    one, two = crew.effects()
    assert two["at"] - one["at"] >= 1.5


# Threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox", "once"])
def test_an_attempt_that_was_given_up_writes_nothing_when_its_thread_ends_late(
    tmp_path: Path, effect: Any
) -> None:
    late, over = threading.Event(), threading.Event()
    refused: list[str] = []

    @oncemore.step(effect=effect, timeout=0.05)
    def work(order: str) -> int:
        attempt = oncemore.current()
        if attempt.number == 1:
            assert late.wait(30)
            for act in (attempt.checkpoint, attempt.emit):
                try:
                    act("too late")
                except oncemore.LeaseLost as error:
                    refused.append(str(error))
            over.set()
        return attempt.number

    with oncemore.open(tmp_path / "log.db") as engine:
        if effect == "once":
            with pytest.raises(oncemore.OutcomeUnknown):
                work("o")
        else:
            assert work("o") == 2
        entity = f"run/{work.key('o')}"
        before = [
            entry.hash for entry in engine.store.read_entries() if not entry.entity.startswith("worker/")
        ]
        late.set()
        assert over.wait(30)
        while oncemore.abandoned_calls():
            time.sleep(0.001)
        after = [
            entry.hash for entry in engine.store.read_entries() if not entry.entity.startswith("worker/")
        ]
        assert engine.store.load_head(entity) is not None
    assert after == before
    assert len(refused) == 2


def test_a_checkpoint_that_comes_too_late_does_not_cost_the_next_attempt_its_lease(tmp_path: Path) -> None:
    stored, asked = threading.Event(), threading.Event()
    executions: list[int] = []

    @oncemore.step(effect="idempotent", timeout=1.0)
    def work(order: str) -> int:
        number = oncemore.current().number
        executions.append(number)
        if number == 1:
            oncemore.current().checkpoint("half")  # the store takes its time, and this attempt is given up
        stored.set()
        while number == 2 and oncemore.abandoned_calls():
            time.sleep(0.001)
        other = threading.Thread(target=lambda: told.append(work.bind(engine)(order)))
        other.start()
        others.append(other)
        time.sleep(0.1)
        return number

    others: list[threading.Thread] = []
    told: list[int] = []
    with oncemore.open(tmp_path / "log.db") as engine:
        append: Any = engine.store.append

        def slow(batch: Any) -> Any:
            if "CHECKPOINT" in decode_header(batch.writes[0].header).marks:
                asked.set()
                assert stored.wait(30)
            return append(batch)

        engine.store.append = slow  # type: ignore[method-assign]
        assert work("o") == 2
        for other in others:
            other.join()
    assert asked.is_set()
    assert told == [2]
    assert executions == [1, 2]
