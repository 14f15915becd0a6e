"""What a worker takes where others take from the same list: its own, what is left, and last anything."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.log.store import Query
from oncemore.steps.engine import Engine
from oncemore.workers import fairness
from oncemore.workers.fairness import LEFT_S, Sharing
from oncemore.workers.service import Worker
from oncemore.workers.turns import Turn

if TYPE_CHECKING:
    import pytest

OWN = [Turn("P1", 1.0, "s", f"run/own{n}") for n in range(3)]
THEIRS = [Turn("P1", 1.0, "s", f"run/their{n}") for n in range(3)]
MIXED = [turn for pair in zip(THEIRS, OWN, strict=True) for turn in pair]


def others(turn: Turn) -> bool:
    return turn.entity.startswith("run/their")


def test_as_long_as_there_is_more_each_takes_its_own() -> None:
    assert Sharing().of("s", MIXED, others, 0.0, more=True) == OWN
    assert Sharing().of("s", THEIRS, others, 0.0, more=True) == [], "there may be some of its own further on"


def test_what_is_left_in_the_end_is_anybodys_from_the_other_end() -> None:
    assert Sharing().of("s", MIXED, others, 0.0, more=False) == [*OWN, *THEIRS[::-1]]


def test_what_nobody_takes_is_anybodys_after_a_while_and_comes_first() -> None:
    part = Sharing()
    part.of("s", [THEIRS[0], *OWN], others, 10.0, more=True)
    part.of("s", MIXED, others, 10.0 + LEFT_S / 2, more=True)
    part.of("other", [], others, 10.0 + LEFT_S, more=True)
    assert part.of("s", MIXED, others, 10.1 + LEFT_S, more=True) == [THEIRS[0], *OWN]
    part.of("s", OWN, others, 11.0 + LEFT_S, more=True)
    assert part.of("s", MIXED, others, 12.0 + LEFT_S, more=True) == OWN, "it was taken, and has come back"


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
    monkeypatch.setattr(fairness, "LEFT_S", 0.05)
    store = Shared()
    with Engine(lambda: store, "memory:one") as one, Engine(lambda: store, "memory:two") as two:
        two.identity()  # it is there, and has a share of what is due
        for n in range(300):
            work.on(one).submit(n)
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
            work.on(one).submit(n)
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
        assert sum(worker.worked.done for worker in workers) == 400
        assert len(list(store.heads(Query("worker")))) == 2
        taken = sum(worker._counts.get("taken", 0) for worker in workers)
        print(f"{taken} of 400 were reached for by both")
        assert taken < 130
    assert sorted(done) == list(range(400))
