"""What is in the file: formats, pruned bodies, time over reboots, and what is refused."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from oncemore.errors import StoreError, UsageError
from oncemore.log.sqlite import machine as place
from oncemore.log.sqlite import store as sqlite
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Index, Query, Stored, Write
from oncemore.testing.store_contract import put, stored, whole, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path)
    yield made
    made.close()


class Machine:
    """A machine whose clocks are set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, boot: str = "boot 1") -> None:
        self.boot, self.wall, self.up = boot, 1_000_000.0, 100.0
        monkeypatch.setattr(place, "boot_id", lambda: self.boot)
        monkeypatch.setattr(place, "since_boot", lambda: self.up)
        monkeypatch.setattr(time, "time", lambda: self.wall)

    def passes(self, seconds: float) -> None:
        self.up += seconds
        self.wall += seconds

    def reboots(self, wall: float) -> None:
        self.boot += "'"
        self.up, self.wall = 1.0, wall


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def written_at(store: SqliteStore, entity: str) -> float:
    """Store an entry and return the time it was stored at."""
    stored(put(store, write(entity, store.head(entity))))
    return store.now()


def test_time_is_the_walls_at_first_and_then_the_kernels(path: Path, machine: Machine) -> None:
    store = SqliteStore(path)
    assert store.now() == 1_000_000
    machine.passes(50)
    machine.wall += 86_400 * 365  # somebody sets the clock
    assert store.now() == SqliteStore(path).now() == 1_000_050
    machine.wall -= 86_400 * 700
    assert store.now() == SqliteStore(path).now() == 1_000_050


def test_after_a_reboot_time_is_the_walls_again(path: Path, machine: Machine) -> None:
    written_at(SqliteStore(path), "run/a")
    machine.reboots(wall=1_000_500.0)
    store = SqliteStore(path)
    assert store.now() == 1_000_500
    machine.passes(7)
    assert store.now() == 1_000_507


def test_after_a_reboot_time_is_never_before_what_was_stored(path: Path, machine: Machine) -> None:
    store = SqliteStore(path)
    last = 0.0
    for _ in range(40):
        machine.passes(1.7)
        last = written_at(store, "run/a")
    machine.reboots(wall=5.0)  # the battery is empty
    again = SqliteStore(path)
    assert last <= again.now() <= last + sqlite.MARK_AHEAD_S
    machine.passes(10)
    assert again.now() >= last + 10
    last = written_at(again, "run/a")
    machine.reboots(wall=6.0)
    assert SqliteStore(path).now() >= last


def test_one_jump_ahead_does_not_stop_time_for_ever(path: Path, machine: Machine) -> None:
    year = 86_400.0 * 365
    machine.wall += year
    wrong = written_at(SqliteStore(path), "run/a")
    machine.reboots(wall=1_000_100.0)  # the clock is right again, a year before what is stored
    store = SqliteStore(path)
    begins = store.now()
    assert begins >= wrong
    for _ in range(5):
        machine.passes(60)
        assert written_at(store, "run/a") == pytest.approx(begins + 60)
        begins += 60
    assert any("clock: +31535905 s" in note for note in store.facts().notes)
    machine.reboots(wall=1_000_400.0 + 2 * year)
    assert SqliteStore(path).now() == machine.wall


def test_the_mark_is_written_seldom(path: Path, machine: Machine) -> None:
    store = SqliteStore(path)
    marks = set()
    for n in range(60):
        machine.passes(0.5)
        written_at(store, f"run/{n}")
        ((mark,),) = store._read("SELECT value FROM meta WHERE name='mark'")
        assert mark >= store.now()
        marks.add(mark)
    assert 5 <= len(marks) <= 7


def test_a_mark_that_was_not_committed_is_set_again(path: Path, machine: Machine) -> None:
    store = SqliteStore(path)
    written_at(store, "run/a")
    machine.passes(60)
    assert store._writer is not None
    store._writer.connection.set_commit_hook(lambda: True)  # the engine fails the commit
    with pytest.raises(StoreError, match="SQLite refused"):
        written_at(store, "run/b")
    written_at(store, "run/b")
    ((mark,),) = store._read("SELECT value FROM meta WHERE name='mark'")
    assert mark >= store.now()
    assert len(whole(store, "run/b")) == 1


def test_the_mark_of_a_process_that_is_further_is_kept(path: Path, machine: Machine) -> None:
    one, other = SqliteStore(path), SqliteStore(path)
    other._wall_at_boot += 1000
    written_at(other, "run/a")
    written_at(one, "run/b")
    ((mark,),) = one._read("SELECT value FROM meta WHERE name='mark'")
    assert mark >= other.now()


def test_where_boots_have_no_id_the_clock_is_not_set_ahead(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, boot="")
    last = 0.0
    for n in range(20):
        store = SqliteStore(path)
        assert store.now() == machine.wall
        last = written_at(store, f"run/{n}")
        store.close()
        machine.passes(0.1)
    machine.wall = 5.0
    assert SqliteStore(path).now() == last


def test_an_older_file_is_brought_to_the_current_format_in_one_go(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(put(store, write("run/a", None, b"old")))
    store.close()
    monkeypatch.setattr(sqlite, "FORMAT", 3)
    monkeypatch.setitem(sqlite.MIGRATIONS, 1, "CREATE TABLE extra(a); INSERT INTO extra VALUES ('first')")
    monkeypatch.setitem(sqlite.MIGRATIONS, 2, "this is not SQL")
    with pytest.raises(StoreError, match="SQLite refused"):
        SqliteStore(path)
    assert asked(path, "SELECT value FROM meta WHERE name='format'") == [(1,)]
    assert asked(path, "SELECT name FROM sqlite_master WHERE name='extra'") == []
    monkeypatch.setitem(sqlite.MIGRATIONS, 2, "UPDATE extra SET a=a || ', second'")
    for _ in range(2):
        renewed = SqliteStore(path)
        assert [entry.body for entry in whole(renewed, "run/a")] == [b"old"]
        renewed.close()
    assert asked(path, "SELECT value FROM meta WHERE name='format'") == [(3,)]
    assert asked(path, "SELECT a FROM extra") == [("first, second",)]


def test_a_file_that_is_too_old_is_refused(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr(sqlite, "FORMAT", 2)
    with pytest.raises(StoreError, match="has format 1, which is too old for this oncemore"):
        SqliteStore(path)


def asked(path: Path, sql: str) -> list[object]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE meta(a)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's database"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"log\.db: (File exists|Not a directory)"):
        SqliteStore(tmp_path / "file" / "log.db")


@pytest.mark.parametrize(
    ("pragma", "says"), [("journal_mode", "write-ahead log"), ("synchronous", "wait for")]
)
def test_an_engine_that_does_not_do_as_told_is_refused(path: Path, pragma: str, says: str) -> None:
    class Stubborn(apsw.Connection):
        """A connection whose engine answers something else than it was asked for."""

        def pragma(self, name: str, value: object = None, **_: object) -> object:
            return "delete" if name == pragma else super().pragma(name, value)  # type: ignore[arg-type]

    path.touch()
    with pytest.raises(StoreError, match=says):
        sqlite._set_up(Stubborn(str(path)), path)


def test_pruned_bodies_are_nowhere_in_the_file(store: SqliteStore, path: Path) -> None:
    for n in range(30):
        secret = b"the patient's name, " * (1, 40, 500)[n % 3]
        stored(
            put(store, write("run/a", store.head("run/a"), secret), write(f"run/{n}", None, b"other matters"))
        )
    assert found_in_files(path, "the patient's name") > 0
    store.prune({"run/a": 99})
    assert found_in_files(path, "the patient's name") == 0
    assert found_in_files(path, "other matters") >= 30
    whole(store, "run/a", pruned=99)


def found_in_files(path: Path, text: str) -> int:
    """Count a text in the store's files; by another process, whose closing of them drops no lock of ours."""
    counts = (
        "import pathlib, sys; "
        "print(sum(f.read_bytes().count(sys.argv[2].encode()) for f in pathlib.Path(sys.argv[1]).iterdir()))"
    )
    command = [sys.executable, "-c", counts, str(path.parent), text]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout)


def test_pruning_does_not_wait_for_one_that_reads(store: SqliteStore, path: Path) -> None:
    stored(put(store, write("run/a", None, b"secret")))
    reader = apsw.Connection(str(path))
    reading = reader.execute("SELECT body FROM log UNION ALL SELECT body FROM log")
    assert next(reading) == (b"secret",)
    store.prune({"run/a": 9})
    whole(store, "run/a", pruned=9)
    assert next(reading) == (b"secret",)
    reader.close(True)


def test_pruning_goes_on_while_others_write_and_read(store: SqliteStore) -> None:
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(40):
                stored(put(store, write("run/a", store.head("run/a"), b"%d" % n)))
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        head = store.head("run/a")
        store.prune({"run/a": head.version if head else 0})
    thread.join()
    assert not faults
    assert [entry.body for entry in store.entries("run/a")][-1] == b"39"


def test_a_damaged_file_is_reported_by_readers_and_pruning(store: SqliteStore, path: Path) -> None:
    stored(put(store, write("run/a", None)))
    other = apsw.Connection(str(path))
    other.execute("ALTER TABLE log RENAME TO gone")
    for use in (lambda: store.head("run/a"), lambda: store.prune({"run/a": 9})):
        with pytest.raises(StoreError, match="no such table"):
            use()
    other.execute("ALTER TABLE gone RENAME TO log")
    other.close()
    assert store.head("run/a") is not None


def test_what_sqlite_cannot_hold_is_the_callers_mistake_and_hurts_nobody_else(store: SqliteStore) -> None:
    def bad(**changes: object) -> Write:
        return write("run/bad", None)._replace(**changes)

    for one in (bad(entity="\ud800"), bad(expect=2**70), bad(head=object()), bad(body=bytes(1_000_000_001))):
        with pytest.raises(UsageError, match="what SQLite cannot store"):
            put(store, one)
    stored(put(store, write("run/good", None)))
    assert [entry.entity for entry in store.entries()] == ["run/good"]


def test_only_a_batch_that_asks_for_it_waits_for_the_disk(store: SqliteStore) -> None:
    for sync, level in ((False, 1), (True, 2), (False, 1)):
        head = store.head("run/a")
        stored(put(store, write("run/a", head), sync=sync))
        assert store._writer is not None
        assert store._writer.connection.pragma("synchronous") == level


def test_every_entry_leads_to_the_one_before(store: SqliteStore) -> None:
    for n in range(3):
        stored(put(store, write("run/a", store.head("run/a")), write(f"run/{n}", None)))
    assert store._read("SELECT seq, before FROM log WHERE entity='run/a'") == [(1, 0), (3, 1), (5, 3)]
    for after in range(5):
        assert [entry.version for entry in store.entries("run/a", after=after)] == [1, 2, 3][after:]
    assert list(store.entries("run/none")) == []


def test_seqs_are_not_given_again_when_a_transaction_fails(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(put(store, write("run/a", None)))
    with pytest.raises(UsageError):
        put(store, write("run/b", None), write("run/c", None)._replace(entity="\ud800"))
    assert put(store, write("run/c", None)) == Stored((2,))
    assert store.head("run/b") is None


def test_the_next_due_are_found_without_reading_the_others(store: SqliteStore) -> None:
    for n in range(20):
        due = None if n % 2 else float(n)
        put(store, *[write(f"run/{n}-{k}", None, due=due) for k in range(10)], sync=False)
    plan = store._read(
        "EXPLAIN QUERY PLAN SELECT entity FROM head WHERE kind='run' AND due IS NOT NULL AND due<=9 "
        "ORDER BY due, entity LIMIT 5"
    )
    assert "head_due" in plan[0][3]
    found = [head.entity for head in store.heads(Query("run", due_by=4.0, limit=12))]
    assert found == [f"run/0-{k}" for k in range(10)] + ["run/2-0", "run/2-1"]


def test_all_entries_are_read_page_by_page(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PAGE", 3)
    for n in range(8):
        put(store, write(f"run/{n % 2}", store.head(f"run/{n % 2}"), b"%d" % n), sync=False)
    assert [entry.body for entry in store.entries()] == [b"%d" % n for n in range(8)]
    assert [entry.seq for entry in store.entries(after=6)] == [7, 8]


def test_waiting_for_a_change_ends_with_its_time(store: SqliteStore) -> None:
    stored(put(store, write("run/a", None)))
    assert store.changed(0, 5.0) == 1
    assert store.changed(1, 0.05) == 1


def test_a_batch_may_hold_nothing_but_guards(store: SqliteStore) -> None:
    entry = Write("run/a", 0, b"h", b"b", b"x" * 32, b"{}", Index("run"))
    assert store.append(Batch((), {"run/a": 0})).wait() == Stored(())
    assert store.append(Batch((entry,), {"run/b": 0})).wait() == Stored((1,))
