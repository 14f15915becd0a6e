"""How much there is; what is said when it is too much, once; a write-ahead file that stays bounded."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.log.memory import MemoryHouse, MemoryStore
from oncemore.log.store import Room
from oncemore.maintenance.size_warning import MB, Limits, Watch
from oncemore.testing import FakeClock
from tests.house.crashing import engine_on
from tests.house.test_retention import DAY, pay, ran, tell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def test_sizes_tell_how_much_there_is_of_each_kind(engine: oncemore.Engine, clock: FakeClock) -> None:
    pay("a")
    tell("b")
    sizes = engine.sizes()
    assert {kind: weight[:2] for kind, weight in sizes.kinds.items()} == {
        "run": (2, 4), "event": (2, 2), "worker": (1, 1), "policy": (1, 1),
    }  # fmt: skip
    assert all(weight.bytes > 0 for weight in sizes.kinds.values())
    assert (sizes.artifacts, sizes.artifact_bytes) == (0, 0)
    if engine.url != "memory:":
        assert sizes.file > 0
        assert sizes.left is not None
        assert sizes.left > 0

    @oncemore.step(effect="pure", name="house.sized")
    def sized() -> oncemore.Artifact:
        return oncemore.current().put(b"1234567", name="it")  # type: ignore[no-any-return]

    sized()
    assert engine.sizes()[-2:] == (1, 7)


def test_an_engine_without_a_place_for_files_says_that_there_is_none() -> None:
    assert engine_on(MemoryStore()).sizes().artifacts is None


def test_what_was_pruned_is_free_inside_the_file_and_used_again(tmp_path: Path, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="house.big")
    def big(n: int) -> str:
        return "x" * 100_000

    with oncemore.open(tmp_path / "log.db") as engine:
        for n in range(20):
            big(n)
        engine.store.house().tidy()
        before = engine.sizes()
        clock.advance(DAY)
        engine.prune(older_than=3600)
        after = engine.sizes()
        assert after.spare > before.spare + 1_500_000
        for n in range(100, 115):
            big(n)
        engine.store.house().tidy()
        assert engine.sizes().file < before.file * 1.2


# What is said ---------------------------------------------------------------------------------------


class Told(MemoryHouse):
    """A house of whatever size."""

    def __init__(self) -> None:
        self.sizes = Room(0, 0, 10**12)
        self.reason = ""

    def room(self) -> Room:
        return self.sizes

    def tidy(self) -> str:
        if not self.reason:
            self.sizes = self.sizes._replace(wal=0)
        return self.reason


class Large(MemoryStore):
    """A store with such a house."""

    def __init__(self) -> None:
        super().__init__()
        self.at = Told()

    def house(self) -> Told:
        return self.at


@pytest.fixture
def watched() -> tuple[oncemore.Engine, Told, list[Any]]:
    heard: list[Any] = []
    store = Large()
    engine = oncemore.Engine(
        lambda: store,
        "memory:",
        warn=Limits(100, 10, 50),
        on_event=lambda what, seen: heard.append((what, seen)),
    )
    assert engine.store is store
    return engine, store.at, heard


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno == logging.WARNING for record in caplog.records)


def test_a_size_is_told_once_when_it_is_passed_and_again_after_it_was_kept(
    watched: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, house, heard = watched
    engine.beat()
    assert heard == []
    house.sizes = Room(101 * MB, 0, 10**12)
    for _ in range(5):
        engine.beat()
    assert [(what, one.what, one.bytes, one.limit) for what, one in heard] == [
        ("store_size", "the store", 101 * MB, 100 * MB)
    ]
    assert warnings(caplog) == 1
    assert "the store is 101 MiB, and 100 were meant; prune what is over" in caplog.text
    house.sizes = Room(95 * MB, 0, 10**12)
    engine.beat()
    house.sizes = Room(101 * MB, 0, 10**12)
    engine.beat()
    assert len(heard) == 1, "to and fro around the limit is no news"
    house.sizes = Room(80 * MB, 0, 10**12)
    engine.beat()
    house.sizes = Room(120 * MB, 0, 10**12)
    engine.beat()
    assert len(heard) == 2


def test_a_disk_with_little_left_is_told_once(watched: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine, house, heard = watched
    for left in (200, 49, 20, 52, 10, 200, 5):
        house.sizes = Room(0, 0, left * MB)
        engine.beat()
    assert [one.bytes // MB for _, one in heard] == [49, 5]
    assert "what the disk has left is 49 MiB" in caplog.text


def test_a_write_ahead_file_that_can_be_emptied_is_and_nobody_is_told(watched: Any) -> None:
    engine, house, heard = watched
    house.sizes = Room(0, 11 * MB, None)
    engine.beat()
    assert heard == []
    assert house.sizes.wal == 0


def test_a_write_ahead_file_that_cannot_shrink_is_told_once_with_the_reason(watched: Any) -> None:
    engine, house, heard = watched
    house.sizes, house.reason = Room(0, 11 * MB, None), "somebody reads"
    for _ in range(3):
        engine.beat()
    assert [(one.what, one.advice) for _, one in heard] == [("its write-ahead file", "somebody reads")]
    house.sizes = Room(0, 1, None)
    engine.beat()
    house.sizes = Room(0, 12 * MB, None)
    engine.beat()
    assert len(heard) == 2


def test_a_limit_of_nothing_is_none(caplog: pytest.LogCaptureFixture) -> None:
    store = Large()
    engine = oncemore.Engine(lambda: store, "memory:", warn=Limits(0, 0, 0))
    store.at.sizes = Room(10**15, 10**15, 0)
    assert engine.store is store
    engine.beat()
    assert warnings(caplog) == 0


def test_a_store_that_cannot_be_asked_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    engine = engine_on(store)
    broken = Watch(Limits())

    class Broken(MemoryStore):
        def house(self) -> Any:
            raise oncemore.StoreError("it is gone")

    broken.look(engine, Broken())
    assert warnings(caplog) == 0
    engine.beat()


def test_a_listener_gets_an_event_that_can_be_written_down(tmp_path: Path) -> None:
    heard: list[Any] = []
    with oncemore.open(tmp_path / "log.db", on_event=heard.append, warn_file_mb=0.001) as engine:
        pay("a")
        engine.beat()
        engine.beat()
    (event,) = heard
    assert (event.event_type, event.retry_category, event.operation) == ("store_size", "STORE", "the store")
    assert event.size_bytes > event.limit_bytes
    from oncemore.audit.events import event_from

    assert event_from(event.plain()) == event


@pytest.mark.parametrize("name", ["warn_file_mb", "warn_wal_mb", "warn_left_mb"])
def test_a_limit_that_makes_no_sense_is_refused(name: str) -> None:
    told: Any = {name: -1}
    with pytest.raises(oncemore.UsageError, match=f"{name} is -1; it takes 0 to 1e"):
        oncemore.open("memory:", **told)


# The write-ahead file -------------------------------------------------------------------------------


def test_a_long_reader_makes_the_write_ahead_file_grow_and_it_shrinks_when_they_are_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @oncemore.step(effect="idempotent", name="house.grow")
    def grow(n: int) -> str:
        return "x" * 100_000

    path = tmp_path / "log.db"
    heard: list[Any] = []
    with FakeClock(), oncemore.open(path, warn_wal_mb=1, on_event=heard.append) as engine:
        grow(0)
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchall()
        for n in range(1, 40):
            grow(n)
        assert engine.sizes().wal > 3 * MB
        engine.beat()
        engine.beat()
        assert [event.operation for event in heard] == ["its write-ahead file"]
        assert "somebody has been reading since" in heard[0].advice
        reader.execute("ROLLBACK")
        reader.close()
        engine.beat()
        assert engine.sizes().wal == 0
        assert len(heard) == 1


def test_without_long_readers_the_write_ahead_file_stays_small(tmp_path: Path) -> None:
    with FakeClock(), oncemore.open(tmp_path / "log.db") as engine:
        most = 0
        for n in range(600):
            pay(f"{n}")
            if n % 50 == 0:
                most = max(most, engine.store.house().room().wal)
        assert most < 8 * MB
    assert not (tmp_path / "log.db-wal").exists(), "closing empties it"
    shutil.copy(tmp_path / "log.db", tmp_path / "whole.db")
    with oncemore.open(tmp_path / "whole.db"):
        assert pay("599") == "paid 599", "so that the file alone is all of it"
