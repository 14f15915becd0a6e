"""A real disk that is really full, at each phase: a clear error, nothing lost, and on it goes when there is
room.

Where this process may not mount, the whole file runs again in a namespace where it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.queries.import_keys import KeyFile, import_key_file
from oncemore.testing import FakeClock
from tests.maintenance.disk import Disk, may_mount, mount_disk
from tests.maintenance.test_prune import pay, ran

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSIDE = "ONCEMORE_TEST_INSIDE"
FULL = r"log\.db: the disk of .* is full: [0-9,]+ bytes are left, and 2,097,152 or more are needed"
DAY = 86_400.0


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> bool:
    return may_mount(tmp_path_factory.mktemp("probe"))


@pytest.fixture
def disk(tmp_path: Path, allowed: bool) -> Iterator[Disk]:
    if not allowed:
        assert INSIDE not in os.environ, "not even a namespace of our own may mount"
        pytest.skip("runs in a namespace of its own, see the last test")
    ran.clear()
    with mount_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def engine(disk: Disk) -> Iterator[oncemore.Engine]:
    with FakeClock(), oncemore.open(disk.path / "log.db") as engine:
        pay("before")
        yield engine


def check_disk_recovers(engine: oncemore.Engine, disk: Disk) -> None:
    """Check that the engine works with free space again, and that every acknowledged entry is stored."""
    disk.free()
    assert pay("after") == "paid after"
    assert pay("before") == "paid before"
    assert ran.count("before") == 1
    engine.verify()


@oncemore.step(effect="once", name="house.once")
def once(name: str) -> str:
    ran.append(name)
    _FILL[0].fill()
    return f"done {name}"


_FILL: list[Any] = [None]


def test_a_claim_on_a_full_disk_runs_nothing_and_says_so(engine: oncemore.Engine, disk: Disk) -> None:
    disk.fill()
    refused = 0
    for n in range(200):  # what room there is inside the file is used first
        try:
            pay(f"n{n}")
        except oncemore.StoreError as error:
            refused += "is full" in str(error) and f"n{n}" not in ran
    assert refused > 100
    assert refused + len(ran) - 1 == 200
    with pytest.raises(oncemore.StoreError, match=FULL):
        pay("one more")
    assert pay("before") == "paid before", "what is stored can be read"
    for name in list(ran):
        assert pay(name) == f"paid {name}", "what was run is written down"
    check_disk_recovers(engine, disk)
    assert len(ran) == len(set(ran)), "nothing was run twice"


def test_stored_results_are_readable_on_a_full_disk_even_by_a_new_engine(
    engine: oncemore.Engine, disk: Disk
) -> None:
    async def fetch(name: str) -> str:
        ran.append(name)
        return f"fetched {name}"

    later = oncemore.step(effect="idempotent", name="house.fetch")(fetch)
    names = [f"n{n}" for n in range(30)]
    for name in names:
        pay(name)
        asyncio.run(later(name))  # type: ignore[arg-type]
    disk.fill()
    for name in names:
        assert pay(name) == f"paid {name}"
        assert asyncio.run(later(name)) == f"fetched {name}"  # type: ignore[arg-type]
    check_disk_recovers(engine, disk)


def test_a_result_on_a_full_disk_is_written_into_the_reserve(engine: oncemore.Engine, disk: Disk) -> None:
    _FILL[0] = disk
    for n in range(5):
        assert once(f"x{n}") == f"done x{n}", "a once effect is not left in doubt because the disk is full"
        if disk.path.joinpath("log.db-reserve").exists():
            disk.free()
            continue
        with pytest.raises(oncemore.StoreError, match=FULL):
            once("new")
        disk.free()
    assert "new" not in ran
    assert sorted(ran[1:]) == sorted(set(ran[1:]))
    check_disk_recovers(engine, disk)
    assert disk.path.joinpath("log.db-reserve").exists(), "the reserve is made again"


def test_without_a_reserve_a_once_effect_is_held_and_never_repeated(
    engine: oncemore.Engine, disk: Disk
) -> None:
    _FILL[0] = disk

    @oncemore.step(effect="once", name="house.large")
    def large(name: str) -> str:
        ran.append(name)
        disk.fill()
        return "x" * 3_000_000  # more than the reserve can hold

    with pytest.raises(oncemore.StoreError, match=FULL):
        large("a")
    disk.free()
    with pytest.raises(oncemore.OutcomeUnknown):
        large("a")
    assert ran.count("a") == 1
    large.settle(oncemore.applied("found"), "a", reason="it was there")
    assert large("a") == "found"
    check_disk_recovers(engine, disk)


def test_an_idempotent_step_without_commit_runs_again_with_its_key(
    engine: oncemore.Engine, disk: Disk
) -> None:
    keys: list[str] = []

    @oncemore.step(effect="idempotent", name="house.large-too")
    def large(size: int) -> str:
        keys.append(oncemore.current().key)
        if len(keys) == 1:
            disk.fill()
        return "x" * size

    with pytest.raises(oncemore.StoreError, match=FULL):
        large(3_000_000)
    disk.free()
    assert len(large(3_000_000)) == 3_000_000
    assert len(keys) == 2
    assert keys[0] == keys[1]
    check_disk_recovers(engine, disk)


def test_a_checkpoint_on_a_full_disk_raises_in_the_step_and_the_last_one_stays(
    engine: oncemore.Engine, disk: Disk
) -> None:
    seen: list[Any] = []

    @oncemore.step(effect="idempotent", name="house.steps")
    def steps() -> int:
        at = oncemore.current().resume(0)
        seen.append(at)
        oncemore.current().checkpoint(at + 1)
        if at == 0:
            disk.fill()
            try:
                for _ in range(3):
                    oncemore.current().checkpoint("x" * 2_500_000)
            finally:
                disk.free()
        return at

    assert steps() == 1, "a store that is full passes: the work is tried again from its last checkpoint"
    assert seen == [0, 1]
    check_disk_recovers(engine, disk)


def test_an_artifact_on_a_full_disk_raises_in_the_step_and_leaves_nothing(
    engine: oncemore.Engine, disk: Disk
) -> None:
    errors: list[str] = []

    @oncemore.step(effect="idempotent", name="house.put")
    def put() -> oncemore.Artifact:
        if not errors:
            disk.fill()
            try:
                oncemore.current().put(b"y" * 3_000_000, name="it")
            except oncemore.StoreError as error:
                errors.append(str(error))
                raise
            finally:
                disk.free()
        return oncemore.current().put(b"small", name="it")  # type: ignore[no-any-return]

    assert put().read() == b"small"
    assert "cannot be written to: No space left on device" in errors[0]
    files = [path for path in (disk.path / "artifacts").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1000
    check_disk_recovers(engine, disk)


def test_a_full_disk_can_be_pruned_and_erased(engine: oncemore.Engine, disk: Disk) -> None:
    @oncemore.step(effect="idempotent", name="house.heap")
    def heap(n: int) -> str:
        return "z" * 100_000

    for n in range(20):
        heap(n)
    from oncemore import clock as clocks

    clocks.current.advance(DAY)  # type: ignore[attr-defined]
    disk.fill()
    with contextlib.suppress(oncemore.StoreError):
        engine.prune(older_than=3600)
    engine.verify()
    disk.free()
    engine.prune(older_than=3600)
    assert all(task.state == "DONE" for task in engine.maintenance_tasks())
    engine.verify()
    with pytest.raises(oncemore.KeyExpired):
        heap(3)
    assert pay("after") == "paid after"


def test_a_backup_on_a_full_disk_leaves_no_file_and_an_unchanged_store(
    engine: oncemore.Engine, disk: Disk, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    with mount_disk(small, "16k") as full:
        with pytest.raises(oncemore.StoreError, match=r"the disk of .*small is full"):
            engine.backup(full.path / "b.db")
        assert list(full.path.iterdir()) == []
    engine.backup(disk.path / "b.db")
    check_disk_recovers(engine, disk)


def test_an_import_on_a_full_disk_stops_between_groups_and_can_be_repeated(
    engine: oncemore.Engine, disk: Disk, tmp_path: Path
) -> None:
    sheet = tmp_path / "done.csv"
    sheet.write_text("order\n" + "".join(f"i{n}\n" for n in range(600)))
    disk.fill()
    with pytest.raises(oncemore.StoreError, match="is full"):
        import_key_file(engine, pay, KeyFile(sheet, {}), reason="r", by="b")
    disk.free()
    engine.verify()
    found = import_key_file(engine, pay, KeyFile(sheet, {}), reason="r", by="b")
    assert found.imported + found.already_done == 600
    assert all(task.state == "DONE" for task in engine.maintenance_tasks())
    check_disk_recovers(engine, disk)


def test_a_store_cannot_be_created_on_a_full_disk_and_can_be_with_free_space(disk: Disk) -> None:
    disk.fill()
    engine = oncemore.open(disk.path / "new.db")
    with pytest.raises(oncemore.StoreError, match=r"new\.db.*(is full|No space left)"):
        pay.bind(engine)("a")
    disk.free()
    assert pay.bind(engine)("a") == "paid a"
    engine.close()


def test_these_tests_also_run_in_a_mount_namespace(allowed: bool) -> None:
    if allowed or INSIDE in os.environ:
        return
    command = ["unshare", "-rm", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        command, env={**os.environ, INSIDE: "1"}, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
