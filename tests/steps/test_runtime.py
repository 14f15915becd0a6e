"""An engine opens its store when it is first needed, and once it is closed nothing of it is left open."""

import contextvars
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import oncemore
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import WorkerRecord
from oncemore.steps import engine as runtime
from oncemore.steps.entered_engine import current_engine
from oncemore.testing import FakeClock


def test_closing_gives_back_leases_without_opening_the_store_again() -> None:
    opened: list[MemoryStore] = []

    def opens() -> MemoryStore:
        opened.append(MemoryStore())
        return opened[-1]

    @oncemore.step(effect="pure")
    def work(n: int) -> int:
        return n

    engine = oncemore.Engine(opens, "memory:")
    assert work.bind(engine)(1) == 1
    engine.close()
    assert len(opened) == 1
    work.bind(engine)(1)
    assert len(opened) == 2, "used again, it opens again"
    engine.close()
    assert len(opened) == 2


@oncemore.step(effect="pure", name="work")
def work(n: int) -> int:
    return n


def test_what_an_engine_is_made_with_is_checked() -> None:
    for options in ({"lease_s": 0.01}, {"lease_s": 1e9}, {"inline_wait_s": -1.0}, {"inline_wait_s": 1e9}):
        with pytest.raises(oncemore.UsageError, match=f"{next(iter(options))} is"):
            oncemore.Engine(MemoryStore, "memory:", **options)


def test_a_worker_is_made_once_and_its_lease_renewed_when_it_is_old() -> None:
    with oncemore.open("memory:") as engine, FakeClock() as clock:
        work(1)
        me = engine.leases.current_identity()
        assert engine.leases.current_identity() is me
        before = me.lease_until
        clock.advance(45)
        work(2)
        assert engine.leases.current_identity() is me
        assert me.lease_until == pytest.approx(before + 45, abs=1)


def test_of_many_threads_that_come_first_one_makes_the_worker_and_opens_the_store() -> None:
    opened: list[MemoryStore] = []

    def opens() -> MemoryStore:
        opened.append(MemoryStore())
        return opened[-1]

    engine = oncemore.Engine(opens, "memory:")
    line, found = threading.Barrier(8), []

    def come() -> None:
        line.wait()
        found.append(engine.leases.current_identity())

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(opened), len(set(found))) == (1, 1)
    engine.close()


def test_who_holds_an_attempt_is_known() -> None:
    store = MemoryStore()
    mine = oncemore.Engine(lambda: store, "memory:")
    other = oncemore.Engine(lambda: store, "memory:")
    me = mine.leases.current_identity()
    me.add_attempt(("run/a", 1))
    assert mine.leases.lease_until(me.name, "run/a", 1) == pytest.approx(mine.now() + 60, abs=1)
    assert mine.leases.lease_until(me.name, "run/a", 2) == 0.0  # ours, and not under way: nobody's
    assert other.leases.lease_until(me.name, "run/a", 1) == me.lease_until
    assert other.leases.lease_until("nobody", "run/a", 1) == 0.0
    store.register_worker("silent")
    assert other.leases.lease_until("silent", "run/a", 1) == 0.0  # here, and never had a lease
    me.end_lease()
    store.register_worker(me.name)
    assert other.leases.lease_until(me.name, "run/a", 1) == 0.0  # here, and gave its lease back


def test_a_retired_worker_takes_no_more_runs_and_ends_with_its_last() -> None:
    engine = oncemore.open("memory:")
    first = engine.leases.current_identity()
    first.add_attempt(("run/a", 1))
    engine.leases.retire_worker(first)
    second = engine.leases.current_identity()
    assert second is not first
    engine.leases.retire_worker(first)
    assert engine.leases.current_identity() is second
    engine.leases.close_retired_worker(first)
    assert not engine.store.is_worker_gone(first.name)
    engine.leases.renew_leases()  # keeps both alive
    first.remove_attempt(("run/a", 1))
    engine.leases.close_retired_worker(first)
    engine.leases.close_retired_worker(first)
    assert engine.store.is_worker_gone(first.name)
    assert not engine.store.is_worker_gone(second.name)
    engine.close()


def test_a_heartbeat_that_fails_is_logged_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    engine = oncemore.open("memory:")
    me = engine.leases.current_identity()
    engine.store._closed = True  # type: ignore[attr-defined]
    engine.leases.renew_leases()
    assert f"the lease of worker {me.name} was not renewed" in caplog.text
    engine.store._closed = False  # type: ignore[attr-defined]
    version = engine.store.load_head(me.entity).version  # type: ignore[union-attr]
    engine.leases.renew_leases()
    assert engine.store.load_head(me.entity).version == version + 1  # type: ignore[union-attr]
    engine.close()


def test_a_heartbeat_does_not_keep_an_engine_alive() -> None:
    engine = oncemore.open("memory:")
    engine.leases.current_identity()
    heart = engine.leases.heartbeat
    assert heart is not None
    heart._beat()
    known = weakref.ref(engine)
    del engine
    gc.collect()
    assert known() is None
    heart._beat()
    heart.stop_heartbeat()


def test_a_forked_child_begins_anew(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        assert work(1) == 1
        mine = engine.leases.current_identity().name
        pid = os.fork()
        if pid == 0:
            told = "failed"
            try:
                told = f"{work(1)} {work(2)} {engine.leases.current_identity().name}"
            finally:
                (tmp_path / "child").write_text(told)
                os._exit(0)
        os.waitpid(pid, 0)
        one, two, theirs = (tmp_path / "child").read_text().split()
        assert (one, two) == ("1", "2")
        assert theirs != mine
        assert work(2) == 2
        with pytest.MonkeyPatch.context() as patch:  # the same without a fork
            patch.setattr(runtime, "_engines", {engine})
            runtime._reset_engines_after_fork()
            assert engine.leases.current_identity().name not in (mine, theirs)


def test_the_end_of_a_program_closes_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = oncemore.open(tmp_path / "log.db")
    assert work.bind(engine)(1) == 1
    mine, store = f"worker/{engine.leases.current_identity().name}", engine.store
    assert store.load_head(mine) is not None
    monkeypatch.setattr(runtime, "_engines", {engine})
    runtime._close_engines_at_exit()
    with oncemore.open(tmp_path / "log.db") as other:
        lease = other.store.load_head(mine)
        assert lease is None or decode_head(lease.head, WorkerRecord).lease_until <= other.now()


def test_a_block_may_end_in_another_context_than_it_began_in() -> None:
    engine = oncemore.open("memory:")
    contextvars.Context().run(engine.__enter__)
    assert current_engine() is engine, "the process has entered it"
    engine.__exit__(None, None, None)
    assert current_engine() is None
    with engine, engine:
        assert current_engine() is engine


def test_closing_while_the_store_is_gone_is_no_error() -> None:
    engine = oncemore.open("memory:")
    engine.leases.current_identity()
    engine.store._closed = True  # type: ignore[attr-defined]
    engine.close()
    engine.close()


class Meanwhile:
    """A lock: while one waits for it, something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens

    def __enter__(self) -> None:
        self.happens()

    def __exit__(self, *error: object) -> None:
        pass


def test_who_comes_second_takes_what_the_first_has_opened() -> None:
    other = oncemore.open("memory:")
    theirs, me = other.store, other.leases.current_identity()
    engine = oncemore.open("memory:")
    engine._lock = Meanwhile(lambda: setattr(engine, "opened_store", theirs))  # type: ignore[assignment]
    assert engine.store is theirs
    engine.leases._lock = Meanwhile(lambda: setattr(engine.leases, "current", me))  # type: ignore[assignment]
    assert engine.leases.current_identity() is me
    other.close()


def test_the_heartbeat_of_an_engine_that_was_dropped_renews_nothing() -> None:
    engine = oncemore.open("memory:")
    leases, checked = engine.leases, []
    leases._after_renewal = checked.append
    leases.renew_leases()
    assert checked == [engine]
    del engine
    checked.clear()
    gc.collect()
    leases.renew_leases()
    assert checked == []
