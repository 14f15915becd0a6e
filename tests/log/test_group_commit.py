"""Group commit on threads, asyncio and trio, and the effects of interrupts and cancellation."""

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from oncemore.errors import StoreError, UsageError
from oncemore.log import group_commit, waiters
from oncemore.log.group_commit import GroupCommit, PendingBatch
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "log.db")
    yield made
    made.close()


class Disk:
    """A store that counts commits; a test can block it, so that callers queue behind the commit."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Event()
        self.refuses: dict[str, BaseException] = {}

    def __call__(self, ops: list[PendingBatch]) -> None:
        self.busy.set()
        assert self.open.wait(20)
        names = [op.batch.writes[0].entity for op in ops]
        for name in names:
            if name in self.refuses:
                raise self.refuses[name]
        self.commits.append(names)
        for op in ops:
            op.answer = Stored((len(self.commits),))


def batch(name: str) -> Batch:
    return Batch((make_write(name, None),))


def wait_for_queue(combiner: GroupCommit, many: int) -> None:
    """Wait until the queue has this length."""
    ends = time.monotonic() + 20
    while len(combiner._queue) < many:
        assert time.monotonic() < ends
        time.sleep(0.001)


async def appended(store: SqliteStore, n: int) -> Stored | Conflict:
    return await store.append(
        Batch((make_write(f"run/{n}", None), make_write(f"worker/{n}", None)), {}, n % 2 == 0)
    )


def on_asyncio(work: Callable[[int], object], cancelled: set[int]) -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(work(n)) for n in range(50)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for n in cancelled:
            tasks[n].cancel()
        for n, answer in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
            assert isinstance(answer, asyncio.CancelledError if n in cancelled else Stored)

    asyncio.run(main())


def on_trio(work: Callable[[int], object], cancelled: set[int]) -> None:
    answers: dict[int, object] = {}

    async def task(n: int, scope: trio.CancelScope) -> None:
        with scope:
            answers[n] = await work(n)  # type: ignore[misc]

    async def main() -> None:
        scopes = [trio.CancelScope() for _ in range(50)]
        async with trio.open_nursery() as nursery:
            for n in range(50):
                nursery.start_soon(task, n, scopes[n])
            await trio.lowlevel.checkpoint()
            for n in cancelled:
                scopes[n].cancel()

    trio.run(main)
    assert set(answers) == set(range(50)) - cancelled
    assert all(isinstance(answer, Stored) for answer in answers.values())


LOOPS = pytest.mark.parametrize("loop", [on_asyncio, on_trio])


@LOOPS
def test_fifty_tasks_are_served_by_few_commits(
    store: SqliteStore, loop: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    monkeypatch.setattr(store, "_combiner", GroupCommit(disk))
    loop(lambda n: appended(store, n), set())
    assert sum(map(len, disk.commits)) == 50
    assert len(disk.commits) < 10


@LOOPS
def test_every_task_gets_its_own_answer(store: SqliteStore, loop: Callable[..., None]) -> None:
    loop(lambda n: appended(store, n), set())
    assert {
        len(read_verified_entries(store, f"{kind}/{n}")) for kind in ("run", "worker") for n in range(50)
    } == {1}


@LOOPS
def test_the_batch_of_a_cancelled_task_and_all_other_batches_are_committed(
    store: SqliteStore, loop: Callable[..., None]
) -> None:
    store._lock.__enter__()  # no commit before all are queued and some are cancelled
    threading.Timer(0.2, store._lock.__exit__, (None, None, None)).start()
    loop(lambda n: appended(store, n), set(range(0, 50, 3)))
    require_stored(append_writes(store, make_write("run/after", None)))
    store._combiner.stop_commits()
    for n in range(50):
        assert (
            len(read_verified_entries(store, f"run/{n}"))
            == len(read_verified_entries(store, f"worker/{n}"))
            == 1
        )


def test_threads_and_both_kinds_of_loop_share_one_store(store: SqliteStore) -> None:
    def work(mine: str) -> Callable[[int], object]:
        async def one(n: int) -> Stored | Conflict:
            for k in range(3):
                entity = f"run/{mine}{n}"
                answer = await store.append(Batch((make_write(entity, store.load_head(entity), b"%d" % k),)))
                assert isinstance(answer, Stored)
            return answer

        return one

    def thread(n: int) -> None:
        for k in range(10):
            require_stored(
                append_writes(store, make_write(f"run/s{n}", store.load_head(f"run/s{n}"), b"%d" % k))
            )

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(on_asyncio, work("a"), set()), pool.submit(on_trio, work("t"), set())]
        jobs += [pool.submit(thread, n) for n in range(6)]
        for job in jobs:
            job.result(60)
    assert {len(read_verified_entries(store, f"run/{mine}{n}")) for mine in "at" for n in range(50)} == {3}
    assert {len(read_verified_entries(store, f"run/s{n}")) for n in range(6)} == {10}


def test_each_loop_is_woken_once_per_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    real = waiters._wake_all
    monkeypatch.setattr(waiters, "_wake_all", lambda wakes: (woken.append(len(wakes)), real(wakes)))
    disk = Disk()
    combiner = GroupCommit(disk)

    async def main() -> None:
        disk.open.clear()
        first = asyncio.ensure_future(waited(combiner.submit_batch(batch("first"))))
        await asyncio.to_thread(disk.busy.wait, 20)
        rest = [asyncio.ensure_future(waited(combiner.submit_batch(batch(f"{n}")))) for n in range(20)]
        await asyncio.sleep(0)
        disk.open.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert woken == [1, 20]


async def waited(op: PendingBatch) -> Stored | Conflict:
    return await op


def test_trio_is_not_imported_for_asyncio() -> None:
    code = """
        import asyncio, sys, tempfile, pathlib
        from oncemore.log.sqlite.store import SqliteStore
        from oncemore.log.store import Batch, HeadIndex as Index, EntryWrite as Write
        async def main(store):
            return await store.append(Batch((Write("run/a", 0, b"", b"", b"h", b"", Index("run")),)))
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(pathlib.Path(folder) / "log.db")
            print(asyncio.run(main(store)))
            store.close()
        assert "trio" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Stored(seqs=(1,))\n"


def test_a_ticket_returns_the_same_answer_again(store: SqliteStore) -> None:
    ticket = store.append(batch("run/a"))
    assert ticket.wait() == ticket.wait() == asyncio.run(waited(ticket)) == Stored((1,))
    require_stored(append_writes(store, make_write("run/b", None)))
    assert ticket.wait() == Stored((1,))
    assert len(read_verified_entries(store, "run/a")) == 1


def test_the_turn_passes_to_the_first_waiting_caller_who_commits_the_queue() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.open.clear()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(combiner.submit_batch(batch("first")).wait)
        assert disk.busy.wait(20)
        rest = []
        for n in range(5):
            rest.append(pool.submit(combiner.submit_batch(batch(f"{n}")).wait))
            wait_for_queue(combiner, n + 1)
        disk.open.set()
        assert first.result(20) == Stored((1,))
        assert {job.result(20) for job in rest} == {Stored((2,))}
    assert disk.commits == [["first"], ["0", "1", "2", "3", "4"]]


def test_callers_are_woken_before_the_next_commit_waits_for_its_disk() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.open.clear()
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(combiner.submit_batch(batch("first")).wait)]
        assert disk.busy.wait(20)
        for n in range(3):
            jobs.append(pool.submit(combiner.submit_batch(batch(f"{n}")).wait))
            wait_for_queue(combiner, n + 1)
        told: list[int] = []

        def waits(ops: list[PendingBatch]) -> None:
            if len(disk.commits) == 2:
                assert not any(job.done() for job in jobs[2:4])
                combiner.wake_committed()
                told.append(sum(job.result(20) == Stored((2,)) for job in jobs[1:4]))
            disk(ops)
            if len(disk.commits) == 2:
                jobs.append(pool.submit(combiner.submit_batch(batch("last")).wait))
                wait_for_queue(combiner, 1)

        combiner._transact = waits
        disk.open.set()
        for job in list(jobs):
            job.result(20)
        assert jobs[-1].result(20) == Stored((3,))
    assert told == [3]
    assert disk.commits == [["first"], ["0", "1", "2"], ["last"]]


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()], ids=["fails", "cut"])
def test_callers_are_woken_even_if_the_next_commit_fails_early(
    error: BaseException,
) -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.open.clear()
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(combiner.submit_batch(batch("first")).wait)]
        assert disk.busy.wait(20)
        for n in range(3):
            jobs.append(pool.submit(combiner.submit_batch(batch(f"{n}")).wait))
            wait_for_queue(combiner, n + 1)
        plain = disk.__call__

        def breaks(ops: list[PendingBatch]) -> None:
            if len(disk.commits) == 2:
                raise error
            plain(ops)
            if len(disk.commits) == 2:
                jobs.append(pool.submit(combiner.submit_batch(batch("last")).wait))
                wait_for_queue(combiner, 1)

        combiner._transact = breaks
        disk.open.set()
        assert [job.result(20) for job in jobs[:4]] == [Stored((1,)), *[Stored((2,))] * 3]
        assert isinstance(jobs[4].exception(20), type(error))
    assert combiner._to_wake == []


def test_callers_are_woken_when_all_queued_callers_were_interrupted() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    stored_one, left = combiner.submit_batch(batch("stored")), combiner.submit_batch(batch("left"))
    stored_one.answer, stored_one.wake_lock = Stored((1,)), threading.Lock()
    stored_one.wake_lock.acquire()
    left.is_abandoned = True
    combiner._to_wake, combiner._queue = [stored_one], deque([left])
    assert combiner.take_turn()
    combiner.release_turn()
    assert stored_one.wake_lock.acquire(timeout=20)
    assert combiner.take_turn()


@pytest.mark.parametrize(
    ("worked", "expected"), [(0.0, [8]), (200.0, [4, 4]), (900.0, [8])], ids=["little", "some", "much"]
)
def test_half_of_the_callers_are_stored_first_if_they_and_the_disk_have_work(
    worked: float, expected: list[int]
) -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    ops = [combiner.submit_batch(batch(f"{n}")) for n in range(8)]
    combiner._queue.extend(ops)
    combiner._last_size, combiner._took = 8, 100.0
    combiner._woken_at = time.perf_counter() - worked
    assert combiner.take_turn()
    while combiner._queue:
        combiner._commit_queued()
    combiner.release_turn()
    assert [len(commit) for commit in disk.commits] == expected


def test_a_long_queue_is_stored_in_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MAX_GROUP", 3)
    disk = Disk()
    combiner = GroupCommit(disk)

    async def main() -> list[Stored | Conflict]:
        return await asyncio.gather(*[waited(combiner.submit_batch(batch(f"{n}"))) for n in range(10)])

    disk.open.clear()
    with ThreadPoolExecutor(2) as pool:
        tasks = pool.submit(asyncio.run, main())
        assert disk.busy.wait(20)
        wait_for_queue(combiner, 7)
        last = pool.submit(combiner.submit_batch(batch("last")).wait)
        wait_for_queue(combiner, 8)
        disk.open.set()
        tasks.result(20)
        last.result(20)
    assert sorted(name for commit in disk.commits for name in commit) == sorted(
        [*map(str, range(10)), "last"]
    )
    assert all(len(commit) <= 3 for commit in disk.commits)


def test_an_invalid_batch_fails_only_its_own_caller() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.refuses["bad"] = UsageError("too big")

    async def main() -> list[Stored | Conflict | BaseException]:
        ops = [combiner.submit_batch(batch(name)) for name in ("a", "bad", "b")]
        return await asyncio.gather(*[waited(op) for op in ops], return_exceptions=True)

    a, bad, b = asyncio.run(main())
    assert isinstance(a, Stored)
    assert isinstance(bad, UsageError)
    assert isinstance(b, Stored)


def test_a_storage_error_is_raised_in_all_callers_of_the_commit() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.refuses["b"] = OSError("the disk is gone")

    async def main() -> list[Stored | Conflict | BaseException]:
        ops = [combiner.submit_batch(batch(name)) for name in ("a", "b", "c")]
        return await asyncio.gather(*[waited(op) for op in ops], return_exceptions=True)

    assert {type(answer) for answer in asyncio.run(main())} == {OSError}
    assert disk.commits == []
    assert combiner.submit_batch(batch("d")).wait() == Stored((1,))


def test_an_interrupted_leader_fails_its_batches_and_hands_over_the_turn() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.refuses["first"] = KeyboardInterrupt()
    disk.open.clear()
    with ThreadPoolExecutor(4) as pool:
        leader = combiner.submit_batch(batch("first"))
        first = pool.submit(leader.wait)
        assert disk.busy.wait(20)
        rest = pool.submit(combiner.submit_batch(batch("rest")).wait)
        wait_for_queue(combiner, 1)
        disk.open.set()
        assert isinstance(first.exception(20), KeyboardInterrupt)
        assert rest.result(20) == Stored((1,))
        with pytest.raises(StoreError, match="interrupted while storing"):
            leader.wait()


def test_the_batch_of_a_leader_interrupted_before_its_commit_is_not_stored() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)

    class Company:
        def acquire(self, *_: object) -> None:
            raise KeyboardInterrupt

    combiner._last_size, company = 2, combiner._group_ready  # as after a commit that carried two
    combiner._group_ready = Company()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        combiner.submit_batch(batch("first")).wait()
    combiner._group_ready = company
    assert combiner.submit_batch(batch("next")).wait() == Stored((1,))
    assert disk.commits == [["next"]]


def test_the_writer_thread_survives_an_interrupted_commit() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.refuses["first"] = KeyboardInterrupt()
    with pytest.raises(StoreError, match="interrupted while storing"):
        asyncio.run(waited(combiner.submit_batch(batch("first"))))
    assert asyncio.run(waited(combiner.submit_batch(batch("next")))) == Stored((1,))


class Interrupted(Exception):
    """The exception of a signal handler."""


@pytest.mark.parametrize("served", [False, True])
def test_a_thread_interrupted_while_it_waits_does_not_keep_the_turn(served: bool) -> None:
    disk = Disk()
    combiner = GroupCommit(disk)

    class Gate:
        """A lock whose waiter is interrupted; with `served`, after the turn was handed over."""

        def acquire(self) -> None:
            if self in waiting:
                if served:
                    disk.open.set()
                    assert handed.wait(20)
                raise Interrupted
            waiting.append(self)

        def release(self) -> None:
            handed.set()

    waiting: list[Gate] = []
    handed = threading.Event()
    disk.open.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(combiner.submit_batch(batch("first")).wait)
        assert disk.busy.wait(20)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(group_commit, "allocate_lock", Gate)
            with pytest.raises(Interrupted):
                combiner.submit_batch(batch("interrupted")).wait()
        disk.open.set()
        assert first.result(20) == Stored((1,))
        assert pool.submit(combiner.submit_batch(batch("next")).wait).result(20) == Stored((2,))
    assert disk.commits[0] == ["first"]
    assert "next" in disk.commits[1]


def test_a_closed_loop_does_not_fail_the_committing_thread() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    disk.open.clear()
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(combiner.submit_batch(batch("first")).wait)
        assert disk.busy.wait(20)
        second = pool.submit(combiner.submit_batch(batch("next")).wait)
        wait_for_queue(combiner, 1)
        task = loop.create_task(waited(combiner.submit_batch(batch("left"))))
        for act in (bool, task.cancel):
            act()
            loop.call_soon(loop.stop)
            loop.run_forever()
        loop.close()
        disk.open.set()
        assert first.result(20) == Stored((1,))
        assert second.result(20) == Stored((2,))
    assert disk.commits == [["first"], ["next", "left"]]


def test_stopping_serves_waiting_callers_and_refuses_new_ones() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    late, late_task = combiner.submit_batch(batch("late")), combiner.submit_batch(batch("late task"))
    disk.open.clear()
    after: list[int] = []

    async def main() -> list[Stored | Conflict]:
        return await asyncio.gather(*[waited(combiner.submit_batch(batch(f"{n}"))) for n in range(10)])

    with ThreadPoolExecutor(4) as pool:
        sync = pool.submit(combiner.submit_batch(batch("sync")).wait)
        assert disk.busy.wait(20)
        tasks = pool.submit(asyncio.run, main())
        wait_for_queue(combiner, 10)
        stopping = pool.submit(combiner.stop_commits, lambda: after.append(len(disk.commits)))
        while not combiner._stopped:
            time.sleep(0.001)
        with pytest.raises(StoreError, match="closed"):
            combiner.submit_batch(batch("refused"))
        for run in (asyncio.run, lambda made: trio.run(lambda: made)):
            with pytest.raises(StoreError, match="closed"):
                run(waited(late_task))
        disk.open.set()
        assert sync.result(20) == Stored((1,))
        assert len(tasks.result(20)) == 10
        stopping.result(20)
    assert after == [len(disk.commits)]
    assert late.wait() == Stored((3,))  # a thread asks by itself; it is the store that knows it is closed


def test_a_batch_queued_while_commits_are_stopped_is_answered() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    late = combiner.submit_batch(batch("late"))
    with ThreadPoolExecutor(1) as pool:
        jobs: list[Future[Stored | Conflict]] = []

        def last() -> None:
            jobs.append(pool.submit(late.wait))
            wait_for_queue(combiner, 1)

        combiner.stop_commits(last)
        assert jobs[0].result(20) == Stored((1,))


def test_a_turn_released_while_a_caller_queues_is_taken() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)

    class Queue(deque[PendingBatch]):
        def append(self, op: PendingBatch) -> None:
            super().append(op)
            combiner._turn.release()

    combiner._turn.acquire()
    combiner._queue = Queue()
    assert combiner.submit_batch(batch("a")).wait() == Stored((1,))
    assert disk.commits == [["a"]]


def test_a_caller_that_queues_while_the_turn_is_released_is_served() -> None:
    disk = Disk()
    combiner = GroupCommit(disk)
    late = combiner.submit_batch(batch("late"))
    late.wake_lock = threading.Lock()
    late.wake_lock.acquire()

    class Turn:
        """A turn that is free for a moment; a caller that queues then finds it taken."""

        def __init__(self) -> None:
            self.acquire, self.lets_go = combiner._turn.acquire, combiner._turn.release

        def release(self) -> None:
            self.lets_go()
            combiner._queue.append(late)

    combiner._turn = Turn()  # type: ignore[assignment]
    assert combiner.submit_batch(batch("a")).wait() == Stored((1,))
    assert late.wake_lock.acquire(timeout=20)
    assert late.leads


def test_an_empty_queue_makes_no_commit() -> None:
    disk = Disk()
    GroupCommit(disk)._commit_queued()
    assert disk.commits == []


def test_closing_waits_for_the_running_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    store._lock.__enter__()
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(append_writes, store, make_write("run/a", None))
        while not store._combiner._turn.locked():
            time.sleep(0.001)
        closing = pool.submit(store.close)
        time.sleep(0.1)
        assert not closing.done()
        store._lock.__exit__(None, None, None)
        assert writing.result(20) == Stored((1,))
        closing.result(20)
    assert store._writer is None


def test_closing_a_store_answers_every_caller(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    answers: list[object] = []

    def thread(n: int) -> None:
        try:
            for k in range(1000):
                require_stored(append_writes(store, make_write(f"run/{n}-{k}", None)))
        except StoreError as error:
            answers.append(str(error))

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    time.sleep(0.05)
    store.close()
    for one in threads:
        one.join(20)
        assert not one.is_alive()
    assert len(answers) == 8
    assert all("closed" in str(answer) for answer in answers)
