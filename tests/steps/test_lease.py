"""Leases: renewed as entries, given back for good, and written by nobody else."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from time import sleep

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.log.record import WorkerRecord
from oncemore.log.store import Batch, Conflict
from oncemore.steps.history import verify_chain
from oncemore.steps.lease import HeartbeatThread, WorkerIdentity


class Time:
    """A time that is moved by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> Iterator[MemoryStore]:
    store = MemoryStore(time)
    yield store
    verify_chain(store.read_entries())


def state_of(store: MemoryStore, name: str = "w") -> WorkerRecord:
    head = store.load_head(f"worker/{name}")
    assert head is not None
    return decode_head(head.head, WorkerRecord)


def test_a_worker_begins_with_a_lease_and_each_renewal_is_an_entry(store: MemoryStore, time: Time) -> None:
    me = WorkerIdentity(store, "w", 60.0, time)
    assert (state_of(store).state, state_of(store).lease_until, me.lease_until) == ("ALIVE", 1060.0, 1060.0)
    time.now += 20
    me.renew_lease()
    time.now += 20
    me.renew_lease()
    assert (state_of(store).lease_until, state_of(store).started_at) == (1100.0, 1000.0)
    assert len(list(store.read_entries("worker/w"))) == 3
    assert not store.is_worker_gone("w")


def test_a_lease_is_fresh_while_most_of_it_is_left(store: MemoryStore, time: Time) -> None:
    me = WorkerIdentity(store, "w", 60.0, time)
    assert me.is_fresh(time.now)
    time.now += 39.9
    assert me.is_fresh(time.now)
    time.now += 0.2
    assert not me.is_fresh(time.now)
    me.renew_lease()
    assert me.is_fresh(time.now)


def test_a_lease_that_was_given_back_is_not_renewed(store: MemoryStore, time: Time) -> None:
    me = WorkerIdentity(store, "w", 60.0, time)
    time.now += 5
    me.end_lease()
    assert (state_of(store).state, state_of(store).lease_until) == ("ENDED", 1005.0)
    me.renew_lease()
    assert state_of(store).state == "ENDED"
    assert len(list(store.read_entries("worker/w"))) == 2
    assert store.is_worker_gone("w")


def test_attempts_are_counted_so_that_losers_of_a_race_leave_the_winner_its_own(
    store: MemoryStore, time: Time
) -> None:
    me = WorkerIdentity(store, "w", 60.0, time)
    me.add_attempt(("run/a", 1))
    me.add_attempt(("run/a", 1))
    me.add_attempt(("run/b", 7))
    me.remove_attempt(("run/a", 1))
    assert (me.has_attempt("run/a", 1), me.has_attempt("run/a", 2), me.has_attempt("run/b", 7)) == (
        True,
        False,
        True,
    )
    assert not me.finish_if_idle()
    me.remove_attempt(("run/a", 1))
    me.remove_attempt(("run/b", 7))
    assert not me.has_attempt("run/a", 1)
    assert me.reserve_slot()
    assert not me.finish_if_idle()
    me.release_slot()
    assert me.finish_if_idle()
    assert not me.reserve_slot()


class Deaf(MemoryStore):
    """Stores what it is given, and then says that it failed, or that somebody else was first."""

    fails = 0
    foreign = False

    def append(self, batch: Batch) -> CompletedTicket:
        answer = super().append(batch)
        if self.fails:
            self.fails -= 1
            raise StoreError("the answer was lost")
        if self.foreign:
            return CompletedTicket(Conflict(batch.writes[0].entity, None))
        return answer


def test_a_renewal_whose_answer_was_lost_is_taken_up_by_the_next(time: Time) -> None:
    store = Deaf(time)
    me = WorkerIdentity(store, "w", 60.0, time)
    time.now += 20
    store.fails = 1
    with pytest.raises(StoreError, match="the answer was lost"):
        me.renew_lease()
    time.now += 20
    me.renew_lease()
    assert (me.lease_until, state_of(store).lease_until) == (1100.0, 1100.0)
    assert len(list(store.read_entries("worker/w"))) == 3
    verify_chain(store.read_entries())


def test_a_renewal_that_is_stored_though_the_answer_is_a_conflict_counts(time: Time) -> None:
    class Twice(MemoryStore):
        """Says `Conflict` with the head that it has just stored: the same write was sent twice."""

        def append(self, batch: Batch) -> CompletedTicket:
            super().append(batch)
            return super().append(batch)

    store = Twice(time)
    me = WorkerIdentity(store, "w", 60.0, time)
    me.renew_lease()
    assert len(list(store.read_entries("worker/w"))) == 2
    verify_chain(store.read_entries())


def test_a_lease_that_somebody_else_writes_is_an_error(time: Time) -> None:
    store = Deaf(time)
    me = WorkerIdentity(store, "w", 60.0, time)
    store.foreign = True
    with pytest.raises(StoreError, match="the lease of worker w is written by another process"):
        me.renew_lease()


def test_a_lease_that_cannot_be_written_at_its_end_still_leaves(time: Time) -> None:
    store = Deaf(time)
    me = WorkerIdentity(store, "w", 60.0, time)
    store.fails = 1
    with pytest.raises(StoreError):
        me.end_lease()
    assert store.is_worker_gone("w")


def test_one_that_was_never_written_has_no_lease(time: Time) -> None:
    store = Deaf(time)
    store.fails = 1
    with pytest.raises(StoreError):
        WorkerIdentity(store, "w", 60.0, time)
    me = WorkerIdentity.__new__(WorkerIdentity)
    me._state = None
    assert me.lease_until == 0.0


def test_a_heart_beats_until_it_is_stopped() -> None:
    beats, enough = [0], threading.Event()

    def beat() -> None:
        beats[0] += 1
        if beats[0] >= 3:
            enough.set()

    before = set(threading.enumerate())
    heart = HeartbeatThread(0.001, beat)
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    assert enough.wait(10)
    heart.stop_heartbeat()
    thread.join(10)
    assert not thread.is_alive()


def test_one_that_leaves_quietly_writes_nothing(store: MemoryStore, time: Time) -> None:
    me = WorkerIdentity(store, "w", 60.0, time)
    me.quiet = True
    me.end_lease()
    assert store.is_worker_gone("w")
    assert state_of(store).state == "ALIVE"


def test_one_that_has_written_nothing_has_nothing_to_give_back(store: MemoryStore, time: Time) -> None:
    me = WorkerIdentity(store, "w", 60.0, time)
    me._state = None
    me.end_lease()
    assert store.is_worker_gone("w")
    assert len(list(store.read_entries())) == 1


def test_the_lease_of_a_policy_has_a_worker_of_its_own_which_is_renewed_and_replaced() -> None:
    with oncemore.open("memory:") as engine:
        usual = engine.leases.current_identity()
        assert engine.leases.identity_for((60.0, 20.0), engine.now()) is usual
        own = engine.leases.identity_for((7.0, 5.0), engine.now())
        assert own is not usual
        assert own.lease_until - engine.now() < 8
        assert engine.leases.identity_for((7.0, 5.0), engine.now()) is own
        version = engine.store.load_head(own.entity).version  # type: ignore[union-attr]
        assert engine.leases.identity_for((7.0, 5.0), engine.now() + 6) is own
        assert engine.store.load_head(own.entity).version == version + 1  # type: ignore[union-attr]
        engine.leases.retire_worker(own)
        assert engine.leases.identity_for((7.0, 5.0), engine.now()) is not own
    assert own.has_attempt("run/none", 1) is False


def test_an_engine_whose_lease_was_set_keeps_it_for_all_runs() -> None:
    with oncemore.open("memory:", lease_s=5) as engine:
        assert engine.leases.identity_for((7.0, 2.0), engine.now()) is engine.leases.current_identity()


def test_a_lease_that_is_kept_alive_survives_a_failure_and_ends_with_its_worker(
    store: MemoryStore, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    me = WorkerIdentity(store, "w", 60.0, time).keep_alive(0.001)
    store._closed = True
    wait_until(lambda: "the lease of worker w was not renewed" in caplog.text)
    store._closed = False
    before = sum(1 for _ in store.read_entries("worker/w"))
    wait_until(lambda: sum(1 for _ in store.read_entries("worker/w")) > before)
    me.end_lease()
    assert state_of(store).state == "ENDED"


def test_a_heartbeat_does_not_keep_a_worker_alive(store: MemoryStore, time: Time) -> None:
    me = WorkerIdentity(store, "w", 60.0, time).keep_alive(1000.0)
    heart, known = me._own_heartbeat, weakref.ref(me)
    assert heart is not None
    del me
    gc.collect()
    assert known() is None
    heart._beat()
    heart.stop_heartbeat()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        sleep(0.01)
    raise AssertionError("it did not happen within 30 s")
