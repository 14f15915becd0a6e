"""The SQLite store under faults: kills, forks, disk errors, foreign files."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from oncemore.errors import StoreError
from oncemore.log.sqlite import commit, machine, queries, reader, schema
from oncemore.log.sqlite import store as sqlite
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Conflict, HeadQuery, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path)
    yield made
    made.close()


def test_the_file_belongs_to_its_owner_alone(store: SqliteStore, path: Path) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_durability_is_read_back_and_reported(store: SqliteStore) -> None:
    facts = store.open_maintenance().describe_store()
    assert "WAL" in facts.engine
    assert apsw.sqlite_lib_version() in facts.engine
    assert "power loss" in facts.durable


def test_all_entries_are_stored_after_reopening(store: SqliteStore, path: Path) -> None:
    require_stored(append_writes(store, make_write("run/a", None, b"1", due=3.0)))
    require_stored(
        append_writes(store, make_write("run/a", store.load_head("run/a"), b"2", state="COMPLETE"))
    )
    store.close()
    store.close()
    again = SqliteStore(path)
    assert [entry.body for entry in read_verified_entries(again, "run/a")] == [b"1", b"2"]
    assert list(again.list_heads(HeadQuery("run", due_by=9.0))) == []
    again.close()


def test_a_closed_store_refuses_every_call(store: SqliteStore) -> None:
    store.close()
    for use in (lambda: append_writes(store, make_write("run/a", None)), lambda: store.load_head("run/a")):
        with pytest.raises(StoreError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("version", "fine"), [("3.40.1", False), ("3.51.2", False), ("3.51.3", True), ("3.54.1", True)]
)
def test_an_engine_that_can_lose_commits_is_refused(version: str, fine: bool) -> None:
    if fine:
        schema.check_engine(version)
    else:
        with pytest.raises(StoreError, match="WAL-reset bug"):
            schema.check_engine(version)


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 22 0:50 / /mnt/share rw - nfs4 host:/x rw\n"
        "31 22 0:51 / /mnt/with\\040space rw shared:1 - fuse.sshfs host rw\n"
        "garbage\n"
    )
    assert machine.file_system_type(Path("/mnt/share/a/b"), table) == "nfs4"
    assert machine.file_system_type(Path("/mnt/with space/x"), table) == "fuse.sshfs"
    assert machine.file_system_type(Path("/elsewhere/x"), table) == "ext4"
    assert machine.file_system_type(Path("/x"), tmp_path / "none") == ""
    for kind in ("nfs4", "cifs", "fuse.sshfs"):
        with pytest.raises(StoreError, match="network file system"):
            machine.check_local(Path("/x"), kind)
    machine.check_local(Path("/x"), "ext4")


def test_a_store_of_a_newer_version_is_refused_unchanged(store: SqliteStore, path: Path) -> None:
    store.close()
    other = apsw.Connection(str(path))
    other.execute("UPDATE meta SET value=99 WHERE name='format'")
    other.close()
    with pytest.raises(StoreError, match="has format 99, which a newer oncemore wrote"):
        SqliteStore(path)


def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    junk = tmp_path / "notes.txt"
    junk.write_bytes(b"these are my notes, keep them\n" * 100)
    with pytest.raises(StoreError, match="not a store of oncemore"):
        SqliteStore(junk)
    assert junk.read_bytes().startswith(b"these are my notes")
    with pytest.raises(StoreError):
        SqliteStore(tmp_path)


@pytest.mark.parametrize("error", ["SQLITE_IOERR_FSYNC", "SQLITE_FULL"])
def test_a_failed_disk_fails_the_commit_and_the_next_batch_is_stored(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    require_stored(append_writes(store, make_write("run/b", None)))
    real, failing = sqlite.apply_batches, [True]

    def broken(cursor: apsw.Cursor, batches: list[Batch]) -> object:
        answers = real(cursor, batches)
        if failing[0]:
            raise {"SQLITE_FULL": apsw.FullError, "SQLITE_IOERR_FSYNC": apsw.IOError}[error](error)
        return answers

    monkeypatch.setattr(sqlite, "apply_batches", broken)
    head, other = store.load_head("run/a"), store.load_head("run/b")
    advice = {"SQLITE_FULL": "nothing was stored", "SQLITE_IOERR_FSYNC": "read the state again"}[error]
    with pytest.raises(StoreError, match=advice):
        append_writes(store, make_write("run/a", head), make_write("run/b", other))
    assert store.load_head("run/a") == head
    failing[0] = False
    require_stored(append_writes(store, make_write("run/a", head)))
    assert len(read_verified_entries(store, "run/a")) == 2


def test_an_interrupted_leader_does_not_keep_the_turn(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, interrupts = sqlite.apply_batches, [True]

    def interrupted(cursor: apsw.Cursor, batches: list[Batch]) -> object:
        if interrupts[0]:
            interrupts[0] = False
            raise KeyboardInterrupt
        return real(cursor, batches)

    monkeypatch.setattr(sqlite, "apply_batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append_writes(store, make_write("run/a", None))
    assert store.load_head("run/a") is None
    require_stored(append_writes(store, make_write("run/a", None)))


def test_threads_and_tasks_share_commits(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    real = store._combiner._transact

    def counted(ops: list[Any]) -> None:
        commits.append(len(ops))
        time.sleep(0.002)  # a disk that takes its time
        real(ops)

    monkeypatch.setattr(store._combiner, "_transact", counted)

    async def task(n: int) -> None:
        for k in range(10):
            answer = await store.append(
                Batch((make_write(f"run/t{n}", store.load_head(f"run/t{n}"), b"%d" % k),))
            )
            assert isinstance(answer, Stored)

    def thread(n: int) -> None:
        for k in range(10):
            require_stored(
                append_writes(store, make_write(f"run/s{n}", store.load_head(f"run/s{n}"), b"%d" % k))
            )

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()

    async def main() -> None:
        await asyncio.gather(*[task(n) for n in range(16)])

    asyncio.run(main())
    for one in threads:
        one.join(30)
        assert not one.is_alive()
    assert sum(commits) == 240
    assert len(commits) < 120
    for n in range(8):
        assert len(read_verified_entries(store, f"run/s{n}")) == 10


def test_a_cancelled_task_leaves_its_batch_whole_or_absent(store: SqliteStore) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(_append(store, n)) for n in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    for n in range(50):
        assert len(read_verified_entries(store, f"run/{n}")) == (
            1 if n % 2 or store.load_head(f"run/{n}") else 0
        )


async def _append(store: SqliteStore, n: int) -> Stored | Conflict:
    return await store.append(Batch((make_write(f"run/{n}", None), make_write(f"worker/{n}", None))))


def test_a_forked_child_uses_connections_of_its_own(store: SqliteStore) -> None:
    require_stored(append_writes(store, make_write("run/parent", None)))
    child = os.fork()
    if child == 0:
        fine = (
            isinstance(append_writes(store, make_write("run/child", None)), Stored)
            and store.load_head("run/parent") is not None
        )
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    require_stored(append_writes(store, make_write("run/parent", store.load_head("run/parent"))))
    assert store.load_head("run/child") is not None


def test_the_stores_clock_does_not_follow_the_wall_clock(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.now()
    assert abs(first - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: 12345.0)
    other = SqliteStore(path)
    assert 0 <= other.now() - first < 60
    other.close()
    monkeypatch.setattr(machine, "boot_id", lambda: "another boot")
    rebooted = SqliteStore(path)
    assert abs(rebooted.now() - 12345.0) < 60
    rebooted.close()


WORKER = """
    import sys
    from oncemore.log.store import Conflict
    from oncemore.log.sqlite.store import SqliteStore
    from oncemore.testing.store_contract import append_writes as put, make_write as write
    store = SqliteStore(sys.argv[1])
    print("open", flush=True)
    while True:
        for entity in ("run/shared", f"run/{sys.argv[2]}"):
            answer = put(store, write(entity, store.load_head(entity), sys.argv[2].encode()))
            if not isinstance(answer, Conflict):
                print(entity, answer.seqs[0], flush=True)
"""


def test_processes_that_are_killed_lose_nothing_that_was_acknowledged(store: SqliteStore, path: Path) -> None:
    acknowledged: list[tuple[str, int]] = []
    for round_ in range(4):
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(WORKER), str(path), f"w{round_}-{n}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(3)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "open\n"
        time.sleep(0.25)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        for worker in workers:
            assert worker.stdout is not None
            # Not communicate(): it reads the pipe behind the buffer, which holds lines after "open".
            out = worker.stdout.read()
            worker.wait(20)
            worker.stdout.close()
            # The last line may be cut by the kill.
            for line in out.splitlines(keepends=True):
                if line.endswith("\n"):
                    entity, seq = line.split(" ")
                    acknowledged.append((entity, int(seq)))
    there = {(entry.entity, entry.seq) for entry in store.read_entries()}
    assert len(acknowledged) > 20
    assert set(acknowledged) <= there
    for entity in {entity for entity, _ in there}:
        read_verified_entries(store, entity)


def test_a_lock_that_is_never_released_is_reported(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); "
            "print('shut', flush=True); time.sleep(30)",
            str(path) + "-door",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "shut\n"
    monkeypatch.setattr(commit, "LOCK_WAIT_S", 0.2)
    with pytest.raises(StoreError, match="another process has been writing"):
        append_writes(store, make_write("run/a", None))
    holder.kill()
    holder.communicate()
    require_stored(append_writes(store, make_write("run/a", None)))


def test_a_second_read_does_not_take_the_turn(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(store.append(Batch((make_write("run/a", None),))).wait(), Stored)
    first = store.load_head("run/a")

    def taken() -> bool:
        raise AssertionError("a read took the writer's turn")

    with monkeypatch.context() as patch:
        patch.setattr(store._combiner, "take_turn", taken)
        assert store.load_head("run/a") == first
    assert isinstance(store.append(Batch((make_write("run/b", None),))).wait(), Stored)
    assert store.load_head("run/b") is not None, "what was written since then is seen"


def test_a_read_interrupted_at_any_moment_releases_turn_and_snapshot(store: SqliteStore, path: Path) -> None:
    """Interrupt a second read before each of its bytecodes; callers do not shield it (`shields_reads`)."""
    assert store.shields_reads
    for cuts in range(1000):
        require_stored(append_writes(store, make_write(f"run/{cuts}", None)))
        first = store.load_head(f"run/{cuts}")
        cut = interrupt_after(cuts, lambda: store.load_head(f"run/{cuts}"))  # noqa: B023 - it is called here
        free = store._combiner.take_turn()
        store._combiner.release_turn()
        assert free, f"cut off at {cuts}, a read has kept the turn"
        other = apsw.Connection(str(path))  # a held snapshot would prevent the checkpoint
        ((busy, _, _),) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        other.close()
        assert not busy, f"cut off at {cuts}, a read holds its snapshot"
        assert store.load_head(f"run/{cuts}") == first
        if not cut:
            break
    assert 30 < cuts < 999


def interrupt_after(opcodes: int, read: Any) -> bool:
    """Raise KeyboardInterrupt at that bytecode of the store's code; return whether it was reached."""
    left = opcodes

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in {sqlite.__file__, reader.__file__, queries.__file__}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # from Python 3.12 on, it is looked at now
    sys.settrace(trace)
    try:
        read()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_the_connection_of_an_interrupted_reader_is_discarded(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    first = store.load_head("run/a")

    def cut(*values: object) -> Any:
        raise KeyboardInterrupt

    assert store.load_head("run/a") == first
    with monkeypatch.context() as patch:
        patch.setattr(reader, "fetch_rows", cut)
        with pytest.raises(KeyboardInterrupt):
            store.load_head("run/a")
    assert store._readers.connection is None
    assert store.load_head("run/a") == first
