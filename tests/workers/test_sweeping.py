"""What a worker knows of the others: whose share is which, who is dead, and what it costs to know."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.log.store import HeadQuery
from oncemore.steps.lease import WorkerIdentity
from oncemore.workers.takeover import COUNT_JITTER, MAX_COUNT_AGE_S, SWEEP_S, WorkerSweep
from oncemore.workers.worker_report import WorkerStats
from tests.workers.dying import begin_and_fall_silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.store import Head

BEGAN, LEASE_S = 1_000_000.0, 60.0


class Far(MemoryStore):
    """A store as a server is one: nothing but its lease says that a worker is dead. Counts what is read."""

    detects_dead_workers = False

    def __init__(self) -> None:
        super().__init__(lambda: self.time)
        self.time = BEGAN
        self.read = self.asked = self.lists = 0

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        for head in super().list_heads(query):
            self.read += head.by.kind == "worker"
            yield head
        self.lists += query.kind == "worker"

    def is_worker_gone(self, worker: str) -> bool:
        self.asked += 1
        return False


class Near(Far):
    """A store as a file is one: it sees deaths."""

    detects_dead_workers = True

    def is_worker_gone(self, worker: str) -> bool:
        return MemoryStore.is_worker_gone(self, worker)


class Fleet:
    """Workers that have a lease on a store, and what one process knows of them."""

    def __init__(self, store: Far, seed: int = 0) -> None:
        self.store, self.ticks = store, 0.0
        self.engine = oncemore.Engine(lambda: store, "memory:", lease_s=LEASE_S)
        self.others: list[WorkerIdentity] = []
        self.sweep = self.another(seed)

    def another(self, seed: int) -> WorkerSweep:
        return WorkerSweep(self.engine, lambda head: True, random.Random(seed), lambda: BEGAN + self.ticks)

    def come(self, *names: str) -> None:
        self.others += [WorkerIdentity(self.store, name, LEASE_S, lambda: self.store.time) for name in names]

    def passes(self, seconds: float, beats: bool = True) -> None:
        """Let time pass; those that live say so."""
        self.ticks += seconds
        self.store.time += seconds
        for one in self.others if beats else ():
            one.renew_lease()

    def close(self) -> None:
        self.engine.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(Far())
    yield made
    made.close()


@pytest.fixture
def near() -> Iterator[Fleet]:
    made = Fleet(Near())
    yield made
    made.close()


def step(name: str) -> Any:
    return oncemore.step(effect="idempotent", name=name)(lambda x: x)


# Shares


def test_one_that_is_alone_has_all(fleet: Fleet) -> None:
    fleet.sweep.sweep_workers(contended=False)
    assert (fleet.sweep.share, fleet.sweep.shares) == (0, 1)


def test_one_without_a_name_yet_comes_last(fleet: Fleet) -> None:
    fleet.come("a", "b", "c")
    fleet.sweep.sweep_workers(contended=False)
    assert (fleet.sweep.share, fleet.sweep.shares) == (3, 4)


def test_everybody_finds_a_share_of_their_own_in_the_same_order(fleet: Fleet) -> None:
    engines = [oncemore.Engine(lambda: fleet.store, "memory:", lease_s=LEASE_S) for _ in range(5)]
    for engine in engines:
        engine.leases.current_identity()
    sweeps = [WorkerSweep(engine, lambda head: True, random.Random(1)) for engine in engines]
    for sweep in sweeps:
        sweep.sweep_workers(contended=False)
    assert {sweep.shares for sweep in sweeps} == {5}
    assert sorted(sweep.share for sweep in sweeps) == [0, 1, 2, 3, 4]
    by_name = sorted(zip((engine.worker for engine in engines), sweeps, strict=True), key=lambda one: one[0])
    assert [sweep.share for _, sweep in by_name] == [0, 1, 2, 3, 4], "the eldest is the first"
    for engine in engines:
        engine.close()


def test_who_has_ended_or_whose_lease_is_over_has_no_share(fleet: Fleet) -> None:
    fleet.come("a", "b", "c", "d")
    fleet.sweep.find_share(list(fleet.store.list_heads(HeadQuery("worker"))))
    assert fleet.sweep.shares == 5
    fleet.others.pop(0).end_lease()
    silent = fleet.others.pop(0)
    fleet.passes(LEASE_S)
    fleet.sweep.find_share(list(fleet.store.list_heads(HeadQuery("worker"))))
    assert (fleet.sweep.share, fleet.sweep.shares) == (2, 3)
    silent.renew_lease()  # it was only slow
    fleet.sweep.find_share(list(fleet.store.list_heads(HeadQuery("worker"))))
    assert fleet.sweep.shares == 4


def test_one_that_met_another_and_thinks_it_is_alone_looks_ten_times_as_soon(fleet: Fleet) -> None:
    fleet.sweep.sweep_workers(contended=False)
    fleet.come("a")
    fleet.passes(SWEEP_S / 20)
    fleet.sweep.sweep_workers(contended=True)
    assert fleet.sweep.shares == 1, "not at once, or two that meet often would read all the time"
    fleet.passes(SWEEP_S / 10)
    fleet.sweep.sweep_workers(contended=False)
    assert fleet.sweep.shares == 1
    fleet.sweep.sweep_workers(contended=True)
    assert fleet.sweep.shares == 2
    lists = fleet.store.lists
    fleet.passes(SWEEP_S / 10)
    fleet.sweep.sweep_workers(contended=True)
    assert fleet.store.lists == lists, "it knows of the other"


# What it costs


@pytest.mark.unmeasured
@pytest.mark.parametrize("many", [9, 99, 299])
def test_a_worker_reads_about_one_other_a_second_however_many_there_are(fleet: Fleet, many: int) -> None:
    fleet.come(*(f"w{n:03}" for n in range(many)))
    fleet.sweep.sweep_workers(contended=False)
    assert fleet.sweep.shares == many + 1
    fleet.store.read = 0
    seconds = 4 * MAX_COUNT_AGE_S
    for second in range(int(seconds * 5)):  # an idle worker looks about five times a second
        fleet.passes(0.2, beats=second % 100 == 0)
        fleet.sweep.sweep_workers(contended=second % 7 == 0)
    assert fleet.store.read / seconds < 1.5
    assert fleet.store.read >= many, "it counts them now and then"
    assert fleet.store.asked == 0, "nobody is asked for who has a lease"


def test_a_larger_fleet_is_still_counted_every_five_minutes(fleet: Fleet) -> None:
    fleet.come(*(f"w{n:04}" for n in range(600)))
    fleet.sweep.sweep_workers(contended=False)
    fleet.others, left = fleet.others[:20], fleet.others[20:]
    for one in left:
        one.end_lease()
    fleet.passes((1 + COUNT_JITTER) * MAX_COUNT_AGE_S)
    fleet.sweep.sweep_workers(contended=False)
    assert fleet.sweep.shares == 21


def test_those_that_came_up_together_do_not_count_together(fleet: Fleet) -> None:
    fleet.come(*(f"w{n}" for n in range(39)))
    sweeps, counts = [fleet.another(seed) for seed in range(20)], []
    for sweep in sweeps:
        sweep.sweep_workers(contended=False)
    while fleet.ticks < 60:
        fleet.passes(1.0, beats=fleet.ticks % 20 == 0)
        before = fleet.store.read
        for sweep in sweeps:
            sweep.sweep_workers(contended=False)
        counts.append((fleet.store.read - before) // 39)
    assert sum(counts) >= 20, "each did"
    assert max(counts) <= 8, counts


# The dead


def left_by_one_that_died(fleet: Fleet, work: Any, x: int) -> str:
    """Have a run that somebody began and left without a word; return who."""
    work.submit(x)
    gone = begin_and_fall_silent(oncemore.Engine(lambda: fleet.store, "memory:", lease_s=LEASE_S), work, x)
    (me,) = gone.leases.workers.values()
    me.quiet = True
    me.end_lease()
    return me.name


def test_a_death_that_nobody_sees_is_found_when_the_lease_is_over_and_not_before(fleet: Fleet) -> None:
    with fleet.engine:
        fleet.come("a", "b")
        name, work = left_by_one_that_died(fleet, step("one"), 1), step("one")
        fleet.sweep.sweep_workers(contended=False)
        fleet.passes(LEASE_S - 1)
        fleet.sweep.sweep_workers(contended=False)
        assert fleet.sweep.lost_runs == {}
        fleet.store.read = 0
        fleet.passes(1)
        fleet.sweep.sweep_workers(contended=False)
        assert list(fleet.sweep.lost_runs) == [f"run/{work.key(1)}"]
        head = fleet.store.load_head(f"worker/{name}")
        assert head is not None
        assert head.by.state == "ALIVE", "it is marked when nothing of its is left"
        assert oncemore.Worker(fleet.engine, [work]).run_until_idle() == WorkerStats(done=1)
        fleet.passes(31)
        fleet.sweep.sweep_workers(contended=False)
        head = fleet.store.load_head(f"worker/{name}")
        assert head is not None
        assert (head.by.state, head.by.due) == ("GONE", None)


def test_looking_for_the_dead_reads_only_them(fleet: Fleet) -> None:
    fleet.come(*(f"w{n:02}" for n in range(50)))
    fleet.sweep.sweep_workers(contended=False)
    dead, fleet.others = fleet.others[:2], fleet.others[2:]
    for _ in range(3):
        fleet.passes(LEASE_S / 3)
    fleet.sweep.reset_schedule()
    fleet.sweep.sweep_workers(contended=False)  # counts, and finds them gone
    fleet.store.read = fleet.store.lists = 0
    fleet.passes(SWEEP_S)
    fleet.sweep.sweep_workers(contended=False)
    assert (fleet.store.lists, fleet.store.read) == (1, 0), "they are marked: nobody reads them again"
    assert {head.by.state for one in dead if (head := fleet.store.load_head(one.entity))} == {"GONE"}


def test_where_deaths_are_seen_what_the_dead_had_is_free_at_once_in_a_large_fleet_too(near: Fleet) -> None:
    with near.engine:
        near.come(*(f"w{n:02}" for n in range(50)))
        near.sweep.sweep_workers(contended=False)
        work = step("one")
        left_by_one_that_died(near, work, 1)
        near.passes(SWEEP_S)
        near.sweep.sweep_workers(contended=False)
        assert list(near.sweep.lost_runs) == [f"run/{work.key(1)}"]


def test_where_deaths_are_seen_one_that_met_another_finds_the_dead_as_soon_as_the_living(near: Fleet) -> None:
    with near.engine:
        near.sweep.sweep_workers(contended=False)
        work = step("one")
        left_by_one_that_died(near, work, 1)
        near.passes(SWEEP_S / 10)
        near.sweep.sweep_workers(contended=True)
        assert list(near.sweep.lost_runs) == [f"run/{work.key(1)}"]
