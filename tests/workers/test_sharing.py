"""What a worker takes where others take from the same list: its own, what is left, and last anything."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.log.store import HeadQuery
from oncemore.steps.engine import Engine
from oncemore.workers import turns
from oncemore.workers.turns import UNCLAIMED_S, FairShare, RunTurn
from oncemore.workers.worker import Worker

if TYPE_CHECKING:
    import pytest

OWN = [RunTurn("P1", 1.0, "s", f"run/own{n}") for n in range(3)]
THEIRS = [RunTurn("P1", 1.0, "s", f"run/their{n}") for n in range(3)]
MIXED = [turn for pair in zip(THEIRS, OWN, strict=True) for turn in pair]


def others(turn: RunTurn) -> bool:
    return turn.entity.startswith("run/their")


def test_as_long_as_there_is_more_each_takes_its_own() -> None:
    assert FairShare().select_runs("s", MIXED, others, 0.0, has_more=True) == OWN
    assert FairShare().select_runs("s", THEIRS, others, 0.0, has_more=True) == [], (
        "there may be some of its own further on"
    )


def test_what_is_left_in_the_end_is_anybodys_from_the_other_end() -> None:
    assert FairShare().select_runs("s", MIXED, others, 0.0, has_more=False) == [*OWN, *THEIRS[::-1]]


def test_what_nobody_takes_is_anybodys_after_a_while_and_comes_first() -> None:
    part = FairShare()
    part.select_runs("s", [THEIRS[0], *OWN], others, 10.0, has_more=True)
    part.select_runs("s", MIXED, others, 10.0 + UNCLAIMED_S / 2, has_more=True)
    part.select_runs("other", [], others, 10.0 + UNCLAIMED_S, has_more=True)
    assert part.select_runs("s", MIXED, others, 10.1 + UNCLAIMED_S, has_more=True) == [THEIRS[0], *OWN]
    part.select_runs("s", OWN, others, 11.0 + UNCLAIMED_S, has_more=True)
    assert part.select_runs("s", MIXED, others, 12.0 + UNCLAIMED_S, has_more=True) == OWN, (
        "it was taken, and has come back"
    )


class Shared(MemoryStore):
    """Stays when one of its engines is closed."""

    def close(self) -> None:
        """Forget nothing."""


done: list[int] = []


@oncemore.step(effect="idempotent", name="sharing.work")
def work(n: int) -> int:
    done.append(n)
    return n


def test_the_share_of_one_that_is_alive_and_takes_nothing_is_done_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done.clear()
    monkeypatch.setattr(turns, "UNCLAIMED_S", 0.05)
    store = Shared()
    with Engine(lambda: store, "memory:one") as one, Engine(lambda: store, "memory:two") as two:
        two.leases.current_identity()  # it is there, and has a share of what is due
        for n in range(300):
            work.bind(one).submit(n)
        began = time.monotonic()
        assert Worker(one, [work], concurrency=4).run_until_idle().done == 300
        assert time.monotonic() - began < 30
    assert sorted(done) == list(range(300))


def test_two_who_begin_at_once_hardly_reach_for_the_same() -> None:
    """Each tells of itself before it begins, and then looks who else is there."""
    done.clear()
    store = Shared()
    with Engine(lambda: store, "memory:one") as one, Engine(lambda: store, "memory:two") as two:
        for n in range(400):
            work.bind(one).submit(n)
        workers = [Worker(engine, [work], concurrency=4) for engine in (one, two)]
        ready = threading.Barrier(2, timeout=30)

        def drain(worker: Worker) -> None:
            ready.wait()
            worker.run_until_idle()

        threads = [threading.Thread(target=drain, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert sum(worker.stats.done for worker in workers) == 400
        assert len(list(store.list_heads(HeadQuery("worker")))) == 2
        taken = sum(worker._counts.get("taken", 0) for worker in workers)
        print(f"{taken} of 400 were reached for by both")
        assert taken < 130
    assert sorted(done) == list(range(400))
