"""The SQLite file: formats, pruned bodies, the clock over reboots, and refused files."""

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
from oncemore.log.sqlite import reader, schema
from oncemore.log.sqlite import store as sqlite
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, EntryWrite, HeadIndex, HeadQuery, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path)
    yield made
    made.close()


class Machine:
    """A machine whose clocks are set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, boot: str = "boot 1") -> None:
        self.boot, self.wall, self.up = boot, 1_000_000.0, 100.0
        monkeypatch.setattr(place, "boot_id", lambda: self.boot)
        monkeypatch.setattr(time, "clock_gettime", lambda clock: self.up)
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
    """Store an entry and return the time of the store's clock."""
    require_stored(append_writes(store, make_write(entity, store.load_head(entity))))
    return store.now()


def test_time_starts_at_the_wall_clock_and_follows_the_kernel(path: Path, machine: Machine) -> None:
    store = SqliteStore(path)
    assert store.now() == 1_000_000
    machine.passes(50)
    machine.wall += 86_400 * 365  # somebody sets the clock
    assert store.now() == SqliteStore(path).now() == 1_000_050
    machine.wall -= 86_400 * 700
    assert store.now() == SqliteStore(path).now() == 1_000_050


def test_after_a_reboot_time_is_the_wall_clock_again(path: Path, machine: Machine) -> None:
    written_at(SqliteStore(path), "run/a")
    machine.reboots(wall=1_000_500.0)
    store = SqliteStore(path)
    assert store.now() == 1_000_500
    machine.passes(7)
    assert store.now() == 1_000_507


def test_after_a_reboot_time_is_never_before_a_stored_entry(path: Path, machine: Machine) -> None:
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


def test_a_wall_clock_that_jumped_ahead_does_not_stop_the_clock(path: Path, machine: Machine) -> None:
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
    assert any("clock: +31535905 s" in note for note in store.open_maintenance().describe_store().notes)
    machine.reboots(wall=1_000_400.0 + 2 * year)
    assert SqliteStore(path).now() == machine.wall


def test_the_mark_is_written_seldom(path: Path, machine: Machine) -> None:
    store = SqliteStore(path)
    marks = set()
    for n in range(60):
        machine.passes(0.5)
        written_at(store, f"run/{n}")
        ((mark,),) = store.query_rows("SELECT value FROM meta WHERE name='mark'")
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
    ((mark,),) = store.query_rows("SELECT value FROM meta WHERE name='mark'")
    assert mark >= store.now()
    assert len(read_verified_entries(store, "run/b")) == 1


def test_a_later_mark_of_another_process_is_kept(path: Path, machine: Machine) -> None:
    one, other = SqliteStore(path), SqliteStore(path)
    other._wall_at_boot += 1000
    written_at(other, "run/a")
    written_at(one, "run/b")
    ((mark,),) = one.query_rows("SELECT value FROM meta WHERE name='mark'")
    assert mark >= other.now()


def test_without_a_boot_id_the_clock_is_not_set_ahead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_older_file_is_migrated_in_one_transaction(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_stored(append_writes(store, make_write("run/a", None, b"old")))
    store.close()
    monkeypatch.setattr(schema, "FORMAT", 4)
    monkeypatch.setitem(schema.MIGRATIONS, 2, "CREATE TABLE extra(a); INSERT INTO extra VALUES ('first')")
    monkeypatch.setitem(schema.MIGRATIONS, 3, "this is not SQL")
    with pytest.raises(StoreError, match="SQLite refused"):
        SqliteStore(path)
    assert query_file(path, "SELECT value FROM meta WHERE name='format'") == [(2,)]
    assert query_file(path, "SELECT name FROM sqlite_master WHERE name='extra'") == []
    monkeypatch.setitem(schema.MIGRATIONS, 3, "UPDATE extra SET a=a || ', second'")
    for _ in range(2):
        renewed = SqliteStore(path)
        assert [entry.body for entry in read_verified_entries(renewed, "run/a")] == [b"old"]
        renewed.close()
    assert query_file(path, "SELECT value FROM meta WHERE name='format'") == [(4,)]
    assert query_file(path, "SELECT a FROM extra") == [("first, second",)]


def test_a_file_that_is_too_old_is_refused(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr(schema, "FORMAT", 3)
    with pytest.raises(StoreError, match="has format 2, which oncemore wrote before its first release"):
        SqliteStore(path)


def query_file(path: Path, sql: str) -> list[object]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_the_database_of_another_program_is_refused_unchanged(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE meta(a)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's database"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"log\.db: (File exists|Not a directory)"):
        SqliteStore(tmp_path / "file" / "log.db")


@pytest.mark.parametrize(
    ("pragma", "says"), [("journal_mode", "write-ahead log"), ("synchronous", "wait for")]
)
def test_an_engine_that_ignores_a_setting_is_refused(path: Path, pragma: str, says: str) -> None:
    class Stubborn(apsw.Connection):
        """A connection whose engine ignores a setting."""

        def pragma(self, name: str, value: object = None, **_: object) -> object:
            return "delete" if name == pragma else super().pragma(name, value)  # type: ignore[arg-type]

    path.touch()
    with pytest.raises(StoreError, match=says):
        schema.set_up_file(Stubborn(str(path)), path)


def test_pruned_bodies_are_nowhere_in_the_file(store: SqliteStore, path: Path) -> None:
    for n in range(30):
        secret = b"the patient's name, " * (1, 40, 500)[n % 3]
        require_stored(
            append_writes(
                store,
                make_write("run/a", store.load_head("run/a"), secret),
                make_write(f"run/{n}", None, b"other matters"),
            )
        )
    assert found_in_files(path, "the patient's name") > 0
    store.open_maintenance().prune_bodies({"run/a": 99})
    assert found_in_files(path, "the patient's name") == 0
    assert found_in_files(path, "other matters") >= 30
    read_verified_entries(store, "run/a", pruned=99)


def found_in_files(path: Path, text: str) -> int:
    """Count a text in the store's files, in another process: closing them here would drop our locks."""
    counts = (
        "import pathlib, sys; "
        "print(sum(f.read_bytes().count(sys.argv[2].encode()) for f in pathlib.Path(sys.argv[1]).iterdir()))"
    )
    command = [sys.executable, "-c", counts, str(path.parent), text]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout)


def test_pruning_does_not_wait_for_a_reader(store: SqliteStore, path: Path) -> None:
    require_stored(append_writes(store, make_write("run/a", None, b"secret")))
    reader = apsw.Connection(str(path))
    reading = reader.execute("SELECT body FROM log UNION ALL SELECT body FROM log")
    assert next(reading) == (b"secret",)
    store.open_maintenance().prune_bodies({"run/a": 9})
    read_verified_entries(store, "run/a", pruned=9)
    assert next(reading) == (b"secret",)
    reader.close(True)


def test_pruning_works_during_writes_and_reads(store: SqliteStore) -> None:
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(40):
                require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"), b"%d" % n)))
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        head = store.load_head("run/a")
        store.open_maintenance().prune_bodies({"run/a": head.version if head else 0})
    thread.join()
    assert not faults
    assert [entry.body for entry in store.read_entries("run/a")][-1] == b"39"


def test_a_damaged_file_is_reported_by_readers_and_pruning(store: SqliteStore, path: Path) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    other = apsw.Connection(str(path))
    other.execute("ALTER TABLE log RENAME TO gone")
    for use in (
        lambda: store.load_head("run/a"),
        lambda: store.open_maintenance().prune_bodies({"run/a": 9}),
    ):
        with pytest.raises(StoreError, match="no such table"):
            use()
    other.execute("ALTER TABLE gone RENAME TO log")
    other.close()
    assert store.load_head("run/a") is not None


def test_a_value_that_sqlite_cannot_store_fails_only_its_own_batch(store: SqliteStore) -> None:
    def bad(**changes: object) -> EntryWrite:
        return make_write("run/bad", None)._replace(**changes)

    for one in (bad(entity="\ud800"), bad(expect=2**70), bad(head=object()), bad(body=bytes(1_000_000_001))):
        with pytest.raises(UsageError, match="value that SQLite cannot store"):
            append_writes(store, one)
    require_stored(append_writes(store, make_write("run/good", None)))
    assert [entry.entity for entry in store.read_entries()] == ["run/good"]


def test_only_a_batch_that_asks_for_it_waits_for_the_disk(store: SqliteStore) -> None:
    for sync, level in ((False, 1), (True, 2), (False, 1)):
        head = store.load_head("run/a")
        require_stored(append_writes(store, make_write("run/a", head), sync=sync))
        assert store._writer is not None
        assert store._writer.connection.pragma("synchronous") == level


def test_every_entry_points_to_the_previous_one(store: SqliteStore) -> None:
    for n in range(3):
        require_stored(
            append_writes(store, make_write("run/a", store.load_head("run/a")), make_write(f"run/{n}", None))
        )
    assert store.query_rows("SELECT seq, before FROM log WHERE entity='run/a'") == [(1, 0), (3, 1), (5, 3)]
    for after in range(5):
        assert [entry.version for entry in store.read_entries("run/a", after=after)] == [1, 2, 3][after:]
    assert list(store.read_entries("run/none")) == []


def test_seqs_have_no_duplicates_after_a_failed_transaction(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    with pytest.raises(UsageError):
        append_writes(store, make_write("run/b", None), make_write("run/c", None)._replace(entity="\ud800"))
    assert append_writes(store, make_write("run/c", None)) == Stored((2,))
    assert store.load_head("run/b") is None


def test_due_heads_are_found_by_the_index(store: SqliteStore) -> None:
    for n in range(20):
        due = None if n % 2 else float(n)
        append_writes(store, *[make_write(f"run/{n}-{k}", None, due=due) for k in range(10)], sync=False)
    plan = store.query_rows(
        "EXPLAIN QUERY PLAN SELECT entity FROM head WHERE kind='run' AND due IS NOT NULL AND due<=9 "
        "ORDER BY due, entity LIMIT 5"
    )
    assert "head_due" in plan[0][3]
    found = [head.entity for head in store.list_heads(HeadQuery("run", due_by=4.0, limit=12))]
    assert found == [f"run/0-{k}" for k in range(10)] + ["run/2-0", "run/2-1"]


def test_all_entries_are_read_page_by_page(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PAGE", 3)
    for n in range(8):
        append_writes(
            store, make_write(f"run/{n % 2}", store.load_head(f"run/{n % 2}"), b"%d" % n), sync=False
        )
    assert [entry.body for entry in store.read_entries()] == [b"%d" % n for n in range(8)]
    assert [entry.seq for entry in store.read_entries(after=6)] == [7, 8]


def test_waiting_for_a_change_ends_at_its_timeout(store: SqliteStore) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    assert store.wait_for_change(0, 5.0) == 1
    assert store.wait_for_change(1, 0.05) == 1


def test_a_batch_may_have_only_guards(store: SqliteStore) -> None:
    entry = EntryWrite("run/a", 0, b"h", b"b", b"x" * 32, b"{}", HeadIndex("run"))
    assert store.append(Batch((), {"run/a": 0})).wait() == Stored(())
    assert store.append(Batch((entry,), {"run/b": 0})).wait() == Stored((1,))
