"""A job whose attempts are made by an executor: the same job, wherever its attempts are made."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import sqlite3
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import WorkerRecord
from oncemore.log.store import HeadQuery
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain
from oncemore.workers import remote
from tests.workers.engines import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


def processes(count: int, **told: Any) -> ProcessPoolExecutor:
    """A pool of fresh processes: they know nothing of this one, and start quickly."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["oncemore.workers.remote", "oncemore.steps.decorator", "oncemore.log.sqlite.store"]
    )
    return ProcessPoolExecutor(count, mp_context=context, **told)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with processes(2) as pool:
        for started in [pool.submit(time.sleep, 0.3) for _ in range(2)]:  # with the path as it is now
            started.result(60)
        yield pool


class Elsewhere(Executor):
    """Somebody's own executor: nobody can tell whether it stays in this process."""

    def submit(self, work: Callable[..., Any], /, *told: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(work(*told, **named))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return future


# What it comes to -----------------------------------------------------------------------------------


def test_attempts_are_made_in_the_pools_processes_and_their_values_are_in_the_store(
    engine: oncemore.Engine, pool: ProcessPoolExecutor
) -> None:
    job = work.where.map([(n, 0.05) for n in range(8)], unpack="args", executor=pool)
    assert job.outcome == "COMPLETE"
    assert len(set(job.values)) == 2
    assert os.getpid() not in job.values
    assert job.providers[work.where.name].concurrency == 2, "no more at once than it has processes"
    assert work.where(0, 0.05) == job.values[0]
    verify_chain(engine.store.read_entries())


def test_a_process_that_was_started_with_spawn_does_as_well(engine: oncemore.Engine) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        assert os.getpid() not in work.where.map(range(3), executor=fresh).values


@pytest.mark.req("CONC-7")
def test_what_is_met_there_is_counted_here(engine: oncemore.Engine, pool: ProcessPoolExecutor) -> None:
    job = work.asks.map(["a1", "b1", "c1", "d1"], executor=pool)
    assert [item.outcome for item in job.items] == ["done", "done", "failed", "done"]
    assert "no such product (7)" in job.items[2].error
    a, b, c, d = (job.providers[name] for name in "abcd")
    assert (a.done, a.errors) == (1, {})
    assert (b.done, b.errors, b.concurrency) == (1, {"THROTTLED": 1}, 1)
    assert b.cooldown is not None
    assert (c.failed, c.last_error["type"]) == (1, "Fragile")  # type: ignore[index]
    assert (d.done, d.failed) == (1, 0), "it is done, though its value could not be kept"
    assert {run.correlation_id for run in job.runs if run} == {job.correlation_id}
    assert work.asks.map(["c1"], executor=pool).providers["c"].errors == {"EXC_Fragile": 1}, (
        "what had failed is begun again, and fails again"
    )
    assert work.formless.map([1], executor=pool).outcome == "FAILED"


def test_context_and_settings_go_along(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    engine = oncemore.open("rel.db", lease_s=7.5, codec=work.Codec(), artifacts="files")
    ends = time.time() + 3600
    carried = oncemore.context(
        tenant="acme", correlation_id="c-7", actor="a clerk", deadline=ends, trace_id="t-7"
    )
    with engine, carried:
        (told,) = work.around.map([1], executor=pool).values
        assert b"a clerk" not in b"".join(entry.body or b"" for entry in engine.store.read_entries())
    assert told == [["acme", "c-7", ends, "a clerk", "t-7"], 7.5, f"sqlite:///{tmp_path / 'rel.db'}"]
    assert engine.open_arguments is not None
    assert engine.open_arguments[1]["artifacts"] == str(tmp_path / "files")


def test_methods_are_called_with_their_object(engine: oncemore.Engine, pool: ProcessPoolExecutor) -> None:
    assert work.Shop("north").sells.map([1, 2], executor=pool).values == ["north 1", "north 2"]


def test_async_steps_have_a_loop_of_their_own_there(
    engine: oncemore.Engine, pool: ProcessPoolExecutor
) -> None:
    job = asyncio.run(work.awhere.map(range(6), executor=pool))
    assert job.outcome == "COMPLETE"
    assert os.getpid() not in job.values


def test_a_job_on_trio_may_have_them_made_elsewhere_too(
    engine: oncemore.Engine, pool: ProcessPoolExecutor
) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> Any:
        return await work.awhere.map(range(3), executor=pool)

    assert os.getpid() not in trio.run(main).values


@pytest.mark.parametrize("store", ["memory:", "log.db"])
def test_in_threads_nothing_has_to_travel(store: str) -> None:
    seen: set[str] = set()

    @oncemore.step(effect="idempotent", name="inside")
    def inside(x: Any) -> str:
        seen.add(threading.current_thread().name.rpartition("_")[0])
        if x == 2:
            raise ValueError("two")
        return type(x).__name__

    @oncemore.step(effect="idempotent", name="ainside")
    async def ainside(x: int) -> int:
        await asyncio.sleep(0)
        return x

    with oncemore.open(store), ThreadPoolExecutor(2, thread_name_prefix="lent") as threads:
        job = inside.map([1, 2, "x", object()], executor=threads)
        assert [item.outcome for item in job.items] == ["done", "failed", "done", "refused"]
        assert asyncio.run(ainside.map(range(3), executor=threads)).values == [0, 1, 2]
    assert seen == {"lent"}


def test_an_executor_of_ones_own_is_told_addresses_and_finds_the_engine_that_is_here(
    engine: oncemore.Engine,
) -> None:
    before = dict(remote._opened_engines)
    assert set(work.where.map(range(4), executor=Elsewhere()).values) == {os.getpid()}
    assert remote._opened_engines == before, "it opened no second engine"


# What is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: oncemore.open("memory:"), "memory:> cannot be reached from another process; take oncemore"),
        (lambda: Engine(MemoryStore, "sqlite:///mine"), "sqlite:///mine> cannot be reached from another"),
        (lambda: oncemore.open("a.db", artifacts="memory:"), "keeps artifacts in this process's memory"),
        (lambda: oncemore.open("a.db", notify=[lambda told: None]), "the engine's notify cannot be sent"),
    ],
)
def test_a_store_that_others_cannot_reach_is_refused(
    pool: ProcessPoolExecutor, make: Callable[[], oncemore.Engine], says: str
) -> None:
    with make(), pytest.raises(oncemore.UsageError, match=says):
        work.where.map([1], executor=pool)


def test_a_step_that_others_cannot_import_is_refused(
    engine: oncemore.Engine, pool: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    @oncemore.step(effect="idempotent")
    def local(x: int) -> int:
        return x

    with pytest.raises(oncemore.UsageError, match="it is defined inside a function; put it at the top of"):
        local.map([1], executor=pool)
    with pytest.raises(
        oncemore.UsageError, match=r"tests\.workers\.engines\.work:hidden is something else \(7\)"
    ):
        work.shown.map([1], executor=pool)
    monkeypatch.setattr(local, "__module__", "__main__")
    with pytest.raises(oncemore.UsageError, match=r"local cannot be found .* in the program itself"):
        local.map([1], executor=pool)
    assert engine.jobs() == ()


def test_what_is_no_executor_is_refused(engine: oncemore.Engine) -> None:
    class Interpreters(ThreadPoolExecutor):
        __module__ = "concurrent.futures.interpreter"

    for on in (5, sys, "ray"):
        with pytest.raises(oncemore.UsageError, match=r"it takes an executor of concurrent\.futures, a Dask"):
            work.where.map([1], executor=on)
    with (
        Interpreters(1) as interpreters,
        pytest.raises(oncemore.UsageError, match=r"Interpreters cannot work on sqlite.* share file locks"),
    ):
        work.where.map([1], executor=interpreters)


def test_an_item_that_cannot_travel_is_refused_and_the_others_go_on(
    engine: oncemore.Engine, pool: ProcessPoolExecutor
) -> None:
    job = work.where.map([1, lambda: 2, Unreadable(), 4], executor=pool)
    assert [item.outcome for item in job.items] == ["done", "refused", "refused", "done"]
    assert job.items[1].error.startswith("item 1 cannot be sent to another process: ")
    assert job.items[2].error == "item 2 cannot be read in the other process: ValueError: not here"
    assert job.runs[1] is None


class Unreadable:
    """Can be written, and not read."""

    def __reduce__(self) -> Any:
        return _unread, ()


def _unread() -> None:
    raise ValueError("not here")


def test_a_step_that_is_not_there_ends_the_job_before_an_item_is_sent(
    engine: oncemore.Engine, pool: ProcessPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "import oncemore\n@oncemore.step(effect='idempotent')\ndef lonely(x): return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    with pytest.raises(oncemore.UsageError, match="only_here:lonely cannot be imported where the executor"):
        only_here.lonely.map(range(5), executor=pool)
    (job,) = engine.jobs()
    assert (job.state, job.items) == ("STOPPED", ())
    monkeypatch.setattr(only_here, "lonely", 5)
    errand = remote.RemoteAttempt("j", "only_here", "lonely", "only_here.lonely", b"", ())
    assert remote.check_attempts_possible(pickle.dumps(tuple(errand))).startswith(
        "only_here:lonely is not the step 'only_here.lon"
    )
    sys.modules.pop("only_here")


def test_another_store_under_the_same_address_is_refused(engine: oncemore.Engine, tmp_path: Path) -> None:
    posted = remote.ProcessAttempts(work.where, engine, "argument", ())
    hello, (packed,) = posted.prepare_check("01a1e2da-0000-7000-8000-000000000000")
    assert "is another store there than here: it does not know the job 01a1e2da" in hello(packed)
    gone = oncemore.open(tmp_path / "gone.db")
    hello, (packed,) = remote.ProcessAttempts(work.where, gone, "argument", ()).prepare_check("j")
    del gone
    gc.collect()  # here it would be found, since it is here
    assert f"there is no {tmp_path / 'gone.db'}; a SQLite store is for one machine" in hello(packed)
    assert not (tmp_path / "gone.db").exists()


def test_a_step_that_is_missing_only_there_and_then_ends_the_job(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = remote._load_step, []

    def found(errand: Any) -> Any:
        asked.append(errand)
        if len(asked) > 3:
            raise remote.AttemptNotRunnable("this machine has older code")
        return real(errand)

    monkeypatch.setattr(remote, "_load_step", found)
    with pytest.raises(oncemore.UsageError, match="this machine has older code"):
        work.where.map(range(500), executor=Elsewhere(), max_concurrency=1)
    assert len(asked) == 4
    assert engine.jobs()[0].counts["done"] == 2


# Death ----------------------------------------------------------------------------------------------


def test_an_item_that_kills_its_process_hurts_nobody_else(engine: oncemore.Engine, tmp_path: Path) -> None:
    path = tmp_path / "effects"
    with processes(3) as own:
        job = work.poison.map([(n, str(path)) for n in range(10)], unpack="args", executor=own)
    assert [item.outcome for item in job.items] == ["done"] * 3 + ["held"] + ["done"] * 6
    run = job.runs[3]
    assert run is not None
    assert (run.held_for, len(run.attempts)) == ("poison", 3)
    lines = work.noted(path)
    assert lines.count("3") == 3
    others = [len(one.attempts) for one in job.runs if one is not None and one.key != run.key]
    assert len(others) == 9
    assert max(others) <= 2, "its neighbours in the pool were ended once, with it"
    verify_chain(engine.store.read_entries())


def test_a_pool_that_breaks_while_it_starts_a_process_leaves_nobody_to_wait_for(
    engine: oncemore.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 ends the others first and waits for all of them then; later ones hold a lock."""
    path, own, deaths = tmp_path / "effects", processes(2), []
    victim = own.submit(os.getpid).result(60)
    fork = forkserver.connect_to_new_process

    def broken_first(told: Any) -> Any:
        if not deaths:
            deaths.append(victim)
            os.kill(victim, signal.SIGKILL)
            until = time.monotonic() + 1
            while not own._broken and time.monotonic() < until:  # type: ignore[attr-defined]
                time.sleep(0.001)
            time.sleep(0.2)  # it has told those that it knows to end
        return fork(told)

    monkeypatch.setattr(forkserver, "connect_to_new_process", broken_first)
    job = work.counts.map([(n, str(path)) for n in range(6)], unpack="args", executor=own)
    ended = threading.Thread(target=own.shutdown, daemon=True)
    ended.start()
    ended.join(60)
    assert not ended.is_alive()
    assert (job.outcome, deaths) == ("COMPLETE", [victim])
    assert {int(line) for line in work.noted(path)} == set(range(6))


def test_a_pool_of_one_goes_on_as_well(engine: oncemore.Engine, tmp_path: Path) -> None:
    path = tmp_path / "effects"
    with processes(1) as own:
        job = work.poison.map([(n, str(path)) for n in range(2, 6)], unpack="args", executor=own)
        again = work.poison.map([(n, str(path)) for n in range(8)], unpack="args", executor=own)
    assert [item.outcome for item in job.items] == ["done", "held", "done", "done"]
    assert (again.counts["done"], again.counts["held"]) == (7, 1), "a broken pool too"
    assert sorted(work.noted(path)) == ["0", "1", "2", "3", "3", "3", "4", "5", "6", "7"]


def test_a_pool_whose_processes_cannot_start_ends_the_job_with_its_own_error(
    engine: oncemore.Engine,
) -> None:
    with (
        processes(2, initializer=work.bad_start) as own,
        pytest.raises(BrokenProcessPool) as caught,
    ):
        work.where.map(range(50), executor=own)
    assert caught.value.__notes__[0].startswith("oncemore: ProcessPoolExecutor did not answer, 3 times in a")
    (job,) = engine.jobs()
    assert (job.state, sum(job.counts.values())) == ("STOPPED", 0)


def test_threads_that_cannot_start_end_the_job_too(engine: oncemore.Engine, caplog: Any) -> None:
    def refuse() -> None:
        raise RuntimeError("no licence")

    with ThreadPoolExecutor(1, initializer=refuse) as threads, pytest.raises(BrokenExecutor):
        work.where.map(range(3), executor=threads)


def test_an_executor_that_was_shut_down_ends_the_job(engine: oncemore.Engine) -> None:
    own = processes(1)
    own.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        work.where.map(range(3), executor=own)


def test_work_that_ends_the_program_there_ends_the_job_here(
    engine: oncemore.Engine, pool: ProcessPoolExecutor
) -> None:
    with pytest.raises(SystemExit):
        work.leaves.map([0, 1], executor=pool, max_concurrency=1)
    with pytest.raises(KeyboardInterrupt):
        work.leaves.map([2], executor=pool)
    assert {job.state for job in engine.jobs()} == {"STOPPED"}


def test_a_store_that_fails_there_ends_the_job_here(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Any, *told: Any, **named: Any) -> Any:
        raise StoreError("no route")

    monkeypatch.setattr(oncemore.Step, "_prepare_call", failing)
    with pytest.raises(StoreError, match="no route"):
        work.where.map(range(100), executor=Elsewhere())
    assert engine.jobs()[0].counts["deferred"] <= 5


# Endings --------------------------------------------------------------------------------------------


def test_a_ctrl_c_lets_what_is_under_way_there_end_and_begins_nothing_more(
    engine: oncemore.Engine, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    path = tmp_path / "effects"

    def interrupt() -> None:
        while not work.noted(path):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        work.counts.map([(n, str(path), 0.2) for n in range(500)], unpack="args", executor=pool)
    (job,) = engine.jobs()
    assert job.state == "STOPPED"
    begun = len(work.noted(path))
    assert 1 <= begun <= 6
    assert job.counts["done"] == begun, "what was under way was waited for"
    assert work.counts.map([(7, str(path), 0.0)], unpack="args", executor=pool).outcome == "COMPLETE", (
        "it still works"
    )


def test_a_cancelled_job_leaves_the_rest_undone(engine: oncemore.Engine, pool: ProcessPoolExecutor) -> None:
    async def main() -> None:
        async with asyncio.timeout(0.4):
            await work.awhere.map(range(100_000), executor=pool)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    (job,) = engine.jobs()
    assert job.state == "STOPPED"
    assert job.counts["done"] < 1000


def test_two_jobs_at_once_on_one_executor_do_everything_once(
    engine: oncemore.Engine, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    path, jobs = tmp_path / "effects", []
    items = [(n, str(path), 0.01) for n in range(25)]

    def job() -> None:
        with engine:
            jobs.append(work.counts.map(items, unpack="args", executor=pool))

    both = [threading.Thread(target=job) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.outcome for one in jobs] == ["COMPLETE", "COMPLETE"]
    assert sorted(map(int, work.noted(path))) == list(range(25))


def test_processes_that_end_in_order_give_their_leases_back(engine: oncemore.Engine) -> None:
    with processes(2) as own:
        pids = set(work.where.map([(n, 0.05) for n in range(6)], unpack="args", executor=own).values)
    states = {
        head.pid: head.state
        for head in (
            decode_head(one.head, WorkerRecord) for one in engine.store.list_heads(HeadQuery("worker"))
        )
    }
    assert {states[pid] for pid in pids} == {"ENDED"}


def test_rows_are_written_once_although_processes_are_killed(engine: oncemore.Engine, tmp_path: Path) -> None:
    """One of them in the middle of its transaction; test_kills.py does more of it."""
    ledger = str(tmp_path / "ledger.db")
    with closing(sqlite3.connect(ledger)) as rows:
        rows.execute("CREATE TABLE orders(n INTEGER)")
    with processes(2) as own:
        victim = own.submit(os.getpid).result(30)
        killer = threading.Timer(0.4, os.kill, (victim, signal.SIGKILL))
        killer.start()
        job = work.book.map([(n, ledger, 0.1) for n in range(12)], unpack="args", executor=own)
        killer.join()
    assert job.outcome == "COMPLETE"
    with closing(sqlite3.connect(ledger)) as rows:
        assert rows.execute("SELECT n FROM orders ORDER BY n").fetchall() == [(n,) for n in range(12)]
