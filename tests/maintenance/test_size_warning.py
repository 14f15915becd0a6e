"""Sizes of a store, warnings about them, and a bounded write-ahead log."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.log.store import StorageSpace
from oncemore.maintenance.size_warning import MB, SizeLimits, SizeMonitor
from oncemore.testing import FakeClock
from tests.crash.harness import open_engine_on
from tests.maintenance.test_prune import DAY, pay, ran, tell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def test_sizes_count_each_kind(engine: oncemore.Engine, clock: FakeClock) -> None:
    pay("a")
    tell("b")
    sizes = engine.measure_sizes()
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
    assert engine.measure_sizes()[-2:] == (1, 7)


def test_sizes_without_an_artifact_store_report_none() -> None:
    assert open_engine_on(MemoryStore()).measure_sizes().artifacts is None


def test_pruned_space_is_reused_inside_the_file(tmp_path: Path, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="house.big")
    def big(n: int) -> str:
        return "x" * 100_000

    with oncemore.open(tmp_path / "log.db") as engine:
        for n in range(20):
            big(n)
        engine.store.open_maintenance().checkpoint_wal()
        before = engine.measure_sizes()
        clock.advance(DAY)
        engine.prune(older_than=3600)
        after = engine.measure_sizes()
        assert after.spare > before.spare + 1_500_000
        for n in range(100, 115):
            big(n)
        engine.store.open_maintenance().checkpoint_wal()
        assert engine.measure_sizes().file < before.file * 1.2


# What is said ---------------------------------------------------------------------------------------


class FixedSizes(MemoryStore):
    """A maintenance interface with given sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = StorageSpace(0, 0, 10**12)
        self.reason = ""

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        return self.sizes

    def checkpoint_wal(self) -> str:
        if not self.reason:
            self.sizes = self.sizes._replace(wal=0)
        return self.reason


class FixedSizeStore(MemoryStore):
    """A store with that maintenance interface."""

    def __init__(self) -> None:
        super().__init__()
        self.at = FixedSizes()

    def open_maintenance(self) -> FixedSizes:
        return self.at


@pytest.fixture
def make_monitored_engine() -> tuple[oncemore.Engine, FixedSizes, list[Any]]:
    heard: list[Any] = []
    store = FixedSizeStore()
    engine = oncemore.Engine(
        lambda: store,
        "memory:",
        warn=SizeLimits(100, 10, 50),
        on_event=heard.append,
    )
    assert engine.store is store
    return engine, store.at, heard


def count_warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno == logging.WARNING for record in caplog.records)


def test_a_size_warning_is_given_once_and_again_after_the_size_fell(
    make_monitored_engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, house, heard = make_monitored_engine
    engine.leases.renew_leases()
    assert heard == []
    house.sizes = StorageSpace(101 * MB, 0, 10**12)
    for _ in range(5):
        engine.leases.renew_leases()
    assert [(one.what, one.size_bytes, one.limit_bytes) for one in heard] == [
        ("the store", 101 * MB, 100 * MB)
    ]
    assert count_warnings(caplog) == 1
    assert "the store is 101 MiB, the limit is 100 MiB; prune finished runs" in caplog.text
    house.sizes = StorageSpace(95 * MB, 0, 10**12)
    engine.leases.renew_leases()
    house.sizes = StorageSpace(101 * MB, 0, 10**12)
    engine.leases.renew_leases()
    assert len(heard) == 1, "to and fro around the limit is no news"
    house.sizes = StorageSpace(80 * MB, 0, 10**12)
    engine.leases.renew_leases()
    house.sizes = StorageSpace(120 * MB, 0, 10**12)
    engine.leases.renew_leases()
    assert len(heard) == 2


def test_a_low_disk_warning_is_given_once(
    make_monitored_engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, house, heard = make_monitored_engine
    for left in (200, 49, 20, 52, 10, 200, 5):
        house.sizes = StorageSpace(0, 0, left * MB)
        engine.leases.renew_leases()
    assert [one.size_bytes // MB for one in heard] == [49, 5]
    assert "the free space of the disk is 49 MiB" in caplog.text


def test_a_wal_that_can_be_emptied_causes_no_warning(make_monitored_engine: Any) -> None:
    engine, house, heard = make_monitored_engine
    house.sizes = StorageSpace(0, 11 * MB, None)
    engine.leases.renew_leases()
    assert heard == []
    assert house.sizes.wal == 0


def test_a_wal_that_cannot_shrink_is_reported_once_with_the_reason(make_monitored_engine: Any) -> None:
    engine, house, heard = make_monitored_engine
    house.sizes, house.reason = StorageSpace(0, 11 * MB, None), "somebody reads"
    for _ in range(3):
        engine.leases.renew_leases()
    assert [(one.what, one.advice) for one in heard] == [("its write-ahead file", "somebody reads")]
    house.sizes = StorageSpace(0, 1, None)
    engine.leases.renew_leases()
    house.sizes = StorageSpace(0, 12 * MB, None)
    engine.leases.renew_leases()
    assert len(heard) == 2


def test_a_limit_of_zero_disables_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = FixedSizeStore()
    engine = oncemore.Engine(lambda: store, "memory:", warn=SizeLimits(0, 0, 0))
    store.at.sizes = StorageSpace(10**15, 10**15, 0)
    assert engine.store is store
    engine.leases.renew_leases()
    assert count_warnings(caplog) == 0


def test_an_unreachable_store_causes_no_size_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    engine = open_engine_on(store)
    broken = SizeMonitor(SizeLimits())

    class Broken(MemoryStore):
        def open_maintenance(self) -> Any:
            raise oncemore.StoreError("it is gone")

    broken.check_sizes(engine, Broken())
    assert count_warnings(caplog) == 0
    engine.leases.renew_leases()


def test_a_listener_gets_an_event_that_can_be_serialized(tmp_path: Path) -> None:
    heard: list[Any] = []
    with oncemore.open(tmp_path / "log.db", on_event=heard.append, warn_file_mb=0.001) as engine:
        pay("a")
        engine.leases.renew_leases()
        engine.leases.renew_leases()
    (event,) = heard
    assert (event.event_type, event.retry_category, event.operation) == ("store_size", "STORE", "the store")
    assert event.size_bytes > event.limit_bytes
    from oncemore.audit.events import parse_event

    assert parse_event(event.to_dict()) == event


@pytest.mark.parametrize("name", ["warn_file_mb", "warn_wal_mb", "warn_left_mb"])
def test_an_invalid_limit_is_refused(name: str) -> None:
    told: Any = {name: -1}
    with pytest.raises(oncemore.UsageError, match=f"{name} is -1; it takes 0 to 1e"):
        oncemore.open("memory:", **told)


# The write-ahead file -------------------------------------------------------------------------------


def test_the_wal_grows_during_a_long_read_and_shrinks_afterwards(
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
        assert engine.measure_sizes().wal > 3 * MB
        engine.leases.renew_leases()
        engine.leases.renew_leases()
        assert [event.operation for event in heard] == ["its write-ahead file"]
        assert "a reader holds a snapshot" in heard[0].advice
        reader.execute("ROLLBACK")
        reader.close()
        engine.leases.renew_leases()
        assert engine.measure_sizes().wal == 0
        assert len(heard) == 1


def test_the_wal_stays_small_without_long_readers(tmp_path: Path) -> None:
    with FakeClock(), oncemore.open(tmp_path / "log.db") as engine:
        most = 0
        for n in range(600):
            pay(f"{n}")
            if n % 50 == 0:
                most = max(most, engine.store.open_maintenance().measure_space().wal)
        assert most < 8 * MB
    assert not (tmp_path / "log.db-wal").exists(), "closing empties it"
    shutil.copy(tmp_path / "log.db", tmp_path / "whole.db")
    with oncemore.open(tmp_path / "whole.db"):
        assert pay("599") == "paid 599", "so that the file alone is all of it"
