"""A backup is complete or absent; a restored copy is held until it is acknowledged."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path

import apsw
import pytest

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.log.sqlite.store import SqliteStore
from oncemore.maintenance.backup import list_unfinished_runs
from oncemore.outbox import OutboxRelay
from oncemore.testing import FakeClock
from tests.crash.harness import open_engine_on
from tests.maintenance.test_prune import pay, ran, send_once, tell


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with a few runs."""
    path = tmp_path / "log.db"
    with oncemore.open(path):
        pay("a")
        send_once.run("held")
        tell("b")
    return path


def read_copy_notice(path: Path) -> str:
    with oncemore.open(path) as engine:
        return engine.store.open_maintenance().copy_notice()


# Backups --------------------------------------------------------------------------------------------


def test_a_backup_is_verified_private_and_marked_as_a_copy(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "backups" / "log.db"
    to.parent.mkdir()
    told: list[tuple[int, int]] = []
    with oncemore.open(store) as engine:
        made = engine.backup(to, by="an operator", progress=lambda done, of: told.append((done, of)))
        count = sum(1 for _ in engine.store.read_entries())
        assert [(task.task, task.state, task.actor) for task in engine.maintenance_tasks()] == [
            ("backup", "DONE", "an operator")
        ]
    assert [file.name for file in to.parent.iterdir()] == ["log.db"]
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    assert made.path == str(to)
    assert made.bytes == to.stat().st_size
    assert made.entries == count - 1, "all but the end of its own task"
    assert told[-1][0] == told[-1][1] > 0
    assert f"it is a backup of {store}, taken at 20" in read_copy_notice(to)


def test_a_backup_never_overwrites_and_takes_a_path(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "there.db"
    to.write_text("mine")
    with oncemore.open(store) as engine:
        with pytest.raises(oncemore.UsageError, match=r"there\.db exists; a backup never overwrites"):
            engine.backup(to)
        for wrong in ("", 7):
            with pytest.raises(oncemore.UsageError, match="it takes the path of a new file"):
                engine.backup(wrong)  # type: ignore[arg-type]
        with pytest.raises(oncemore.StoreError, match="cannot be written: No such file"):
            engine.backup(tmp_path / "nowhere" / "log.db")
    assert to.read_text() == "mine"


def test_a_file_created_meanwhile_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "late.db"

    def take(done: int, of: int) -> None:
        to.write_text("mine")

    with (
        oncemore.open(store) as engine,
        pytest.raises(oncemore.UsageError, match="was created by another process"),
    ):
        engine.backup(to, progress=take)
    assert to.read_text() == "mine"
    assert not list(tmp_path.glob(".late.db*"))


def test_a_backup_is_consistent_during_writes(store: Path, tmp_path: Path) -> None:
    stop, done = threading.Event(), []
    with oncemore.open(store) as engine:
        step = pay.bind(engine)

        def work() -> None:
            n = 0
            while not stop.is_set():
                step(f"n{n}")
                done.append(n)
                n += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for n in range(5):
                before = len(done)
                made = engine.backup(tmp_path / f"{n}.db")
                assert made.entries > 2 * before
        finally:
            stop.set()
            thread.join(30)
    assert done
    with oncemore.open(tmp_path / "4.db") as copy:
        copy.verify()


def test_a_copy_with_heads_that_differ_from_its_log_is_refused(store: Path, tmp_path: Path) -> None:
    db = apsw.Connection(str(store))
    db.execute("UPDATE head SET version=version+1 WHERE entity LIKE 'run/%'")
    db.close()
    says = "the heads of the copy do not match its entries"
    with oncemore.open(store) as engine, pytest.raises(oncemore.StoreError, match=says):
        engine.backup(tmp_path / "bad.db")
    assert not list(tmp_path.glob("*bad.db*"))


def test_files_of_a_killed_backup_are_removed_and_those_of_a_running_one_stay(
    store: Path, tmp_path: Path
) -> None:
    import fcntl

    dead, busy = tmp_path / ".a.db.00000000.part", tmp_path / ".b.db.11111111.part"
    (tmp_path / ".mine.part").write_text("not a backup")
    for part in (dead, busy):
        part.write_text("half")
    (tmp_path / ".a.db.00000000.part-journal").write_text("half")
    file = os.open(busy, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    with oncemore.open(store) as engine:
        engine.backup(tmp_path / "b.db")
    assert sorted(path.name for path in tmp_path.glob(".*")) == [busy.name, ".mine.part"]
    os.close(file)


def test_a_backup_of_a_memory_store_is_refused(tmp_path: Path) -> None:
    engine = open_engine_on(MemoryStore())
    with pytest.raises(oncemore.UsageError, match="there is nothing to back up"):
        engine.backup(tmp_path / "x.db")


# Copies ---------------------------------------------------------------------------------------------


def check_copy_held(path: Path, says: str) -> None:
    """Check that a copy runs only pure steps until it is acknowledged, and all steps afterwards."""
    ran.clear()
    with oncemore.open(path) as engine, FakeClock():
        assert pay("a") == "paid a", "what is done can be read"
        assert send_once.last_run("held") is not None
        with pytest.raises(oncemore.RestoredCopy, match=says):
            pay("new")
        with pytest.raises(oncemore.RestoredCopy, match="would be done twice; check the runs in doubt"):
            send_once("held")
        with pytest.raises(oncemore.RestoredCopy):
            OutboxRelay(engine, {"*": lambda message: None}).run_once()
        assert _pure(3) == 9
        assert ran == []
        engine.verify()
        assert {doubt.step for doubt in list_unfinished_runs(engine)} == {"house.letter"}
        engine.acknowledge(reason="the original is lost", by="an operator")
        assert pay("new") == "paid new"
        assert [task.task for task in engine.maintenance_tasks()][-1] == "restore"
        with pytest.raises(oncemore.UsageError, match="is not held; there is nothing to acknowledge"):
            engine.acknowledge(reason="again")
    assert read_copy_notice(path) == ""


@oncemore.step(effect="pure", name="house.square")
def _pure(x: int) -> int:
    return x * x


def test_an_opened_backup_is_held(store: Path, tmp_path: Path) -> None:
    with oncemore.open(store) as engine:
        engine.backup(tmp_path / "b.db")
    check_copy_held(tmp_path / "b.db", "is a copy: it is a backup of .*log.db, taken at 20..-")


def test_a_backup_in_the_place_of_the_original_is_held(store: Path, tmp_path: Path) -> None:
    with oncemore.open(store) as engine:
        engine.backup(tmp_path / "b.db")
        pay("deferred")
    for rest in tmp_path.glob("log.db*"):
        shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    (tmp_path / "b.db").rename(store)
    check_copy_held(store, "it is a backup of")


def test_a_copied_file_is_held_and_the_original_is_not(store: Path, tmp_path: Path) -> None:
    shutil.copy(store, tmp_path / "copy.db")
    assert read_copy_notice(store) == ""
    check_copy_held(
        tmp_path / "copy.db", "was copied or restored: it is not the file that was written before"
    )


def test_a_copied_folder_is_held(store: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path, tmp_path.with_name(tmp_path.name + "-copy"))
    check_copy_held(tmp_path.with_name(tmp_path.name + "-copy") / "log.db", "was copied or restored")


def test_a_file_overwritten_with_an_earlier_state_is_held(store: Path, tmp_path: Path) -> None:
    shutil.copy(store, tmp_path / "saved.db")
    with oncemore.open(store):
        pay("deferred")
    with store.open("r+b") as file, (tmp_path / "saved.db").open("rb") as saved:
        file.truncate()
        shutil.copyfileobj(saved, file)  # as cp does: the same file, with the old bytes
    check_copy_held(store, "was put back to an earlier state: entry .* had been written, and its last")


def test_a_file_that_is_renamed_or_moved_on_its_disk_is_the_original(store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    new = store.rename(tmp_path / "elsewhere" / "other.db")
    assert read_copy_notice(new) == ""
    with oncemore.open(new):
        pay("new")


def test_a_copy_stays_held_however_often_it_is_opened_and_moved(store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(store, tmp_path / "copy.db"))
    for _ in range(3):
        assert "was copied or restored" in read_copy_notice(copy)
    copy = copy.rename(tmp_path / "renamed.db")
    assert "was copied or restored" in read_copy_notice(copy)


def test_a_copy_can_be_opened_as_trusted(store: Path, tmp_path: Path) -> None:
    copy = shutil.copy(store, tmp_path / "copy.db")
    with oncemore.open(copy, restored_copy="trust"):
        pay("new")
    with pytest.raises(oncemore.UsageError, match="restored_copy is 'maybe'; the choices are hold, trust"):
        oncemore.open(copy, restored_copy="maybe")


def test_another_process_may_acknowledge_a_copy(store: Path, tmp_path: Path) -> None:
    copy = shutil.copy(store, tmp_path / "copy.db")
    with oncemore.open(copy) as one:
        with pytest.raises(oncemore.RestoredCopy):
            pay("new")
        with oncemore.open(copy) as other:
            other.acknowledge(reason="r", by="b")
        assert pay.bind(one)("new") == "paid new"


def test_a_finished_run_that_must_run_again_is_held_too(store: Path, tmp_path: Path) -> None:
    @oncemore.step(effect="idempotent", name="house.versions", version="1", on_version_change="new")
    def versions() -> str:
        return "one"

    with oncemore.open(store) as engine:
        versions.bind(engine)()
    copy = shutil.copy(store, tmp_path / "copy.db")

    @oncemore.step(effect="idempotent", name="house.versions", version="2", on_version_change="new")
    def later() -> str:
        ran.append("deferred")
        return "two"

    with oncemore.open(copy), pytest.raises(oncemore.RestoredCopy):
        later()
    assert "deferred" not in ran


def test_a_file_without_a_store_name_gets_one_and_is_not_held(store: Path) -> None:
    db = apsw.Connection(str(store))
    db.execute("DELETE FROM meta WHERE name IN ('store', 'home', 'copied')")
    db.close()
    assert read_copy_notice(store) == ""
    with oncemore.open(store) as engine:
        assert isinstance(engine.store, SqliteStore)
        assert len(engine.store.name) == 32


def test_an_unreadable_position_note_is_ignored(store: Path) -> None:
    store.with_name("log.db-door").write_bytes(b"\x00garbage")
    assert read_copy_notice(store) == ""


def test_the_position_note_is_updated_while_a_store_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        store = engine.store
        assert isinstance(store, SqliteStore)
        for n in range(3):
            store._mark = 0.0  # as if five seconds had gone by
            pay(str(n))
        with store._lock:
            name, seq = store._lock.read_progress()
        assert name == store.name
        assert seq >= 4
