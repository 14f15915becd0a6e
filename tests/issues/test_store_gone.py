"""The database is deleted or replaced beneath a process, or is missing next to its companions."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.queries.stores import remove_companions
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

runs: list[str] = []
in_step: list[Callable[[], object]] = []


@oncemore.step(effect="once", name="gone.pay")
def pay(order: str) -> str:
    runs.append(order)
    for do in in_step:
        do()
    return f"paid {order}"


@pytest.fixture(autouse=True)
def _begin() -> Iterator[None]:
    runs.clear()
    in_step.clear()
    with FakeClock():  # a lost answer is asked for again, with waits
        yield


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """The file of a closed store in which one run is complete."""
    path = tmp_path / "log.db"
    with oncemore.open(path):
        pay("a")
    return path


def replace_file(path: Path) -> None:
    """Put a copy in the place of a database, as a restore by rename does."""
    copy = path.with_name("restored.db")
    shutil.copy(path, copy)
    copy.replace(path)


DELETED = r"log\.db was deleted or moved while this process had it open"
REPLACED = r"log\.db was replaced by another file while this process had it open"


def test_a_deleted_database_is_noticed_before_the_claim_is_acknowledged(log_file: Path) -> None:
    with oncemore.open(log_file):
        pay("b")
        log_file.unlink()
        for _ in range(2):
            with pytest.raises(oncemore.StoreError, match=DELETED):
                pay("c")
    assert runs == ["a", "b"]
    assert not log_file.exists()


def test_a_database_that_is_deleted_during_the_work_does_not_acknowledge_the_result(log_file: Path) -> None:
    in_step.append(log_file.unlink)
    with oncemore.open(log_file), pytest.raises(oncemore.StoreError, match=DELETED):
        pay("b")


def test_a_replaced_database_is_noticed_and_the_new_file_is_not_written_to(log_file: Path) -> None:
    with oncemore.open(log_file):
        pay("b")
        replace_file(log_file)
        before = log_file.read_bytes()
        for _ in range(2):
            with pytest.raises(oncemore.StoreError, match=REPLACED):
                pay("c")
        assert log_file.read_bytes() == before
    assert runs == ["a", "b"]


def test_a_thread_that_reads_for_the_first_time_does_not_read_the_new_file(log_file: Path) -> None:
    with oncemore.open(log_file) as engine:
        pay("b")
        replace_file(log_file)
        found: list[object] = []

        def read() -> None:
            try:
                found.append(pay.bind(engine).last_run("b"))
            except oncemore.StoreError as error:
                found.append(str(error))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join(30)
    assert "was replaced by another file" in str(found[0])


def test_maintenance_of_a_deleted_store_is_refused(log_file: Path) -> None:
    with oncemore.open(log_file) as engine:
        pay("b")
        log_file.unlink()
        with pytest.raises(oncemore.StoreError, match=DELETED):
            engine.prune(older_than=60)


def test_a_database_that_is_put_back_in_time_goes_on(log_file: Path, tmp_path: Path) -> None:
    with oncemore.open(log_file):
        pay("b")
        log_file.rename(tmp_path / "aside.db")
        with pytest.raises(oncemore.StoreError, match=DELETED):
            pay("c")
        (tmp_path / "aside.db").rename(log_file)
        assert pay("d") == "paid d"
    assert runs == ["a", "b", "d"]


def test_a_start_refuses_companions_without_their_database(log_file: Path, tmp_path: Path) -> None:
    log_file.unlink()
    says = r"log\.db is missing, but log\.db-door, log\.db-reserve.* of it are here.*--remove-companions"
    for _ in range(2):
        with oncemore.open(log_file), pytest.raises(oncemore.StoreError, match=says):
            pay("a")
    assert runs == ["a"]
    assert not log_file.exists()
    for companion in tmp_path.glob("log.db-*"):
        shutil.rmtree(companion) if companion.is_dir() else companion.unlink()
    with oncemore.open(log_file):
        pay("a")
    assert runs == ["a", "a"], "nothing was left of the former store"


def test_a_start_refuses_artifacts_without_their_database(tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="gone.make")
    def make() -> None:
        oncemore.current().put(b"1,2", name="table.csv")

    path = tmp_path / "log.db"
    with oncemore.open(path):
        make()
    for rest in tmp_path.glob("log.db*"):
        shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    with (
        oncemore.open(path),
        pytest.raises(oncemore.StoreError, match="missing, but artifacts of it are"),
    ):
        pay("a")
    with oncemore.open(tmp_path / "other.db"):
        pay("a")
    assert runs == ["a"], "another store may share the folder of artifacts"
    assert remove_companions(str(path)) == [f"the mark of this store in {tmp_path / 'artifacts'}"]
    assert remove_companions(str(path)) == []
    with oncemore.open(path):
        make()


def test_many_threads_that_create_one_store_at_once_all_succeed(tmp_path: Path) -> None:
    from oncemore.log.sqlite.store import SqliteStore

    faults: list[BaseException] = []
    begin = threading.Barrier(8)

    def create(n: int) -> None:
        begin.wait(30)
        try:
            SqliteStore(tmp_path / f"{n}" / "log.db").close()
        except BaseException as fault:
            faults.append(fault)

    for n in range(5):
        threads = [threading.Thread(target=create, args=(n,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not faults
