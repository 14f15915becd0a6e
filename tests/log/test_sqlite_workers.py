"""The lock of a worker ends with its process, in any way that the process ends, and with nothing else."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemore.errors import StoreError, UsageError
from oncemore.log.sqlite.store import SqliteStore
from oncemore.testing.store_contract import append_writes, make_write, require_stored

ENTER = """
    import sys
    from oncemore.log.sqlite.store import SqliteStore
    store = SqliteStore(sys.argv[1])
    here = [store.register_worker(name) for name in sys.argv[2:]]
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path)
    yield made
    made.close()


def started(path: Path, *names: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENTER), str(path), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    return child


def ended(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate(timeout=20)


def files(path: Path) -> list[str]:
    return sorted(file.name for file in (path.parent / "log.db-workers").iterdir())


def test_a_killed_process_is_gone_at_once_and_leaves_no_file(store: SqliteStore, path: Path) -> None:
    child = started(path, "w1", "w2")
    assert not store.is_worker_gone("w1")
    assert files(path) == ["w1", "w2"]
    ended(child)
    assert store.is_worker_gone("w1")
    assert store.is_worker_gone("w1")
    assert files(path) == ["w2"]
    assert store.is_worker_gone("w2")
    assert files(path) == []


def test_a_stopped_process_is_not_gone(store: SqliteStore, path: Path) -> None:
    child = started(path, "w1")
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert not store.is_worker_gone("w1")
    child.send_signal(signal.SIGCONT)
    assert not store.is_worker_gone("w1")
    ended(child)
    assert store.is_worker_gone("w1")


def test_the_file_of_an_ended_process_is_deleted_by_the_next_registration(
    store: SqliteStore, path: Path
) -> None:
    child = started(path, "w1")
    child.communicate("go\n", timeout=20)
    (path.parent / "log.db-workers" / ".keep").touch()
    store.register_worker("w2")
    assert files(path) == [".keep", "w2"]


def test_a_query_for_an_own_worker_does_not_drop_its_lock(store: SqliteStore, path: Path) -> None:
    here = store.register_worker("w1")
    other = SqliteStore(path)
    for handle in (store, other):
        assert not handle.is_worker_gone("w1")
    asked = query_in_another_process(path, "w1")
    assert asked == "False"
    other.close()
    assert query_in_another_process(path, "w1") == "False"
    here.close()
    here.close()
    assert files(path) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(here._file)
    assert store.is_worker_gone("w1")
    assert query_in_another_process(path, "w1") == "True"


def query_in_another_process(path: Path, name: str) -> str:
    asks = (
        "import sys; from oncemore.log.sqlite.store import SqliteStore; "
        "print(SqliteStore(sys.argv[1]).is_worker_gone(sys.argv[2]))"
    )
    return subprocess.run(
        [sys.executable, "-c", asks, str(path), name], capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()


def test_closing_the_store_unregisters_its_workers(store: SqliteStore, path: Path) -> None:
    store.register_worker("w1")
    other = SqliteStore(path)
    other.register_worker("w2")
    store.close()
    assert other.is_worker_gone("w1")
    assert not other.is_worker_gone("w2")
    other.close()
    for use in (
        lambda: other.register_worker("w3"),
        lambda: other.is_worker_gone("w2"),
        lambda: other.open_maintenance().prune_bodies({"run/a": 1}),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_a_forked_child_has_none_of_its_parents_workers(path: Path) -> None:
    """In another program: this one has threads, and a forked child would inherit their locks locked."""
    forks = textwrap.dedent("""
        import os, sys
        from oncemore.log.sqlite.store import SqliteStore
        store = SqliteStore(sys.argv[1])
        here = store.register_worker("w1")
        child = os.fork()
        if child == 0:
            # It opens and closes the file, which must not hurt the parent.
            alive = not store.is_worker_gone("w1")
            here.close()
            own = store.register_worker("w2")
            fine = alive and not store.is_worker_gone("w1") and not store.is_worker_gone("w2")
            del own
            store.close()
            os._exit(0 if fine else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(store.is_worker_gone("w1"), store.is_worker_gone("w2"), flush=True)
        sys.stdin.readline()
        here.close()
        print("left", flush=True)
        sys.stdin.readline()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", forks, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["0\n", "False True\n"]
        assert query_in_another_process(path, "w1") == "False"
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "left\n"
        assert query_in_another_process(path, "w1") == "True"
        parent.communicate("\n", timeout=20)


def test_a_child_that_outlives_its_parent_does_not_keep_the_parents_workers_alive(
    store: SqliteStore, path: Path
) -> None:
    forks = textwrap.dedent("""
        import os, sys, time
        from oncemore.log.sqlite.store import SqliteStore
        store = SqliteStore(sys.argv[1])
        here = store.register_worker("w1")
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        sys.stdin.readline()
    """)
    parent = subprocess.Popen(
        [sys.executable, "-c", forks, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert not store.is_worker_gone("w1")
        parent.kill()
        parent.wait(20)
        assert store.is_worker_gone("w1")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate(timeout=20)


def test_a_name_is_used_once(store: SqliteStore, path: Path) -> None:
    store.register_worker("w1")
    with pytest.raises(UsageError, match="already registered"):
        store.register_worker("w1")
    child = started(path, "w2")
    with pytest.raises(UsageError, match="already registered"):
        store.register_worker("w2")
    assert not store.is_worker_gone("w2")
    ended(child)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../w", "a/b", ".hidden", "a b", "w\n", "é", "x" * 81, "a\0"]
)
def test_a_name_that_could_be_another_file_is_refused(store: SqliteStore, path: Path, name: str) -> None:
    for use in (store.register_worker, store.is_worker_gone):
        with pytest.raises(UsageError, match="not a name for a worker"):
            use(name)
    assert [file.name for file in path.parent.iterdir() if "workers" in file.name] == []
    store.register_worker("x" * 80).close()


def test_the_workers_folder_belongs_to_its_owner_alone(store: SqliteStore, path: Path) -> None:
    store.register_worker("w1")
    folder = path.parent / "log.db-workers"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "w1").stat().st_mode) == 0o600


def test_a_workers_folder_that_cannot_be_used_is_reported(store: SqliteStore, path: Path) -> None:
    (path.parent / "log.db-workers").write_text("in the way")
    for use in (store.register_worker, store.is_worker_gone):
        with pytest.raises(StoreError, match=r"log\.db-workers"):
            use("w1")


def test_concurrent_queries_for_a_dead_worker_agree(store: SqliteStore, path: Path) -> None:
    child = started(path, *[f"w{n}" for n in range(20)])
    ended(child)
    told: list[bool] = []
    threads = [
        threading.Thread(target=lambda: told.extend(store.is_worker_gone(f"w{n}") for n in range(20)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    require_stored(append_writes(store, make_write("run/a", None)))
    for thread in threads:
        thread.join(30)
    assert told == [True] * 160
    assert files(path) == []


def test_a_worker_that_is_registering_is_never_reported_dead(store: SqliteStore, path: Path) -> None:
    enters = textwrap.dedent("""
        import sys
        from oncemore.log.sqlite.store import SqliteStore
        store = SqliteStore(sys.argv[1])
        print("open", flush=True)
        for n in range(300):
            store.register_worker(f"w{n}")
        print("entered", flush=True)
        sys.stdin.readline()
    """)
    child = subprocess.Popen(
        [sys.executable, "-c", enters, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    folder = path.parent / "log.db-workers"
    seen: set[str] = set()
    while len(seen) < 300:
        for name in [file.name for file in folder.iterdir()] if folder.exists() else []:
            seen.add(name)
            assert not store.is_worker_gone(name)
    assert child.stdout.readline() == "entered\n"
    ended(child)
