"""A store has one name: hard links and symbolic links to its files are refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import oncemore

if TYPE_CHECKING:
    from pathlib import Path

runs: list[str] = []


@oncemore.step(effect="once", name="links.pay")
def pay(order: str) -> str:
    runs.append(order)
    return f"paid {order}"


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """The file of a closed store in which one run is complete."""
    runs.clear()
    path = tmp_path / "log.db"
    with oncemore.open(path):
        pay("a")
    return path


def test_a_store_with_two_hard_links_is_refused_under_both_names(log_file: Path, tmp_path: Path) -> None:
    os.link(log_file, tmp_path / "other.db")
    for name in ("log.db", "other.db"):
        says = rf"{name} has 2 hard links.*remove the other name"
        with oncemore.open(tmp_path / name), pytest.raises(oncemore.StoreError, match=says):
            pay("b")
    assert runs == ["a"]
    (tmp_path / "other.db").unlink()
    with oncemore.open(log_file):
        assert pay("a") == "paid a"


def test_a_second_name_of_a_store_in_use_is_refused(log_file: Path, tmp_path: Path) -> None:
    with oncemore.open(log_file) as one:
        pay("b")
        os.link(log_file, tmp_path / "other.db")
        with oncemore.open(tmp_path / "other.db"), pytest.raises(oncemore.StoreError, match="2 hard links"):
            pay("c")
        assert pay.bind(one)("b") == "paid b"
    assert runs == ["a", "b"]


def test_the_second_name_that_a_killed_backup_left_is_removed(log_file: Path, tmp_path: Path) -> None:
    os.link(log_file, tmp_path / ".log.db.0a1b2c3d.part")
    with oncemore.open(log_file):
        assert pay("a") == "paid a"
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_to_a_database_is_refused_and_its_target_named(
    log_file: Path, tmp_path: Path, exists: bool
) -> None:
    target = log_file if exists else tmp_path / "nothing.db"
    (tmp_path / "link.db").symlink_to(target)
    says = rf"link\.db is a symbolic link to .*{target.name}; name the target itself"
    with oncemore.open(tmp_path / "link.db"), pytest.raises(oncemore.StoreError, match=says):
        pay("b")
    assert runs == ["a"]
    assert target.exists() is exists


def test_a_store_in_a_folder_behind_a_symbolic_link_is_the_same_store(log_file: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(tmp_path)
    with oncemore.open(tmp_path / "folder" / "log.db"):
        assert pay("a") == "paid a"
    assert runs == ["a"]


@pytest.mark.parametrize("companion", ["wal", "shm", "door", "reserve", "workers"])
def test_a_companion_that_is_a_symbolic_link_is_refused_and_its_target_untouched(
    log_file: Path, tmp_path: Path, companion: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir() if companion == "workers" else victim.write_bytes(b"precious")
    path = tmp_path / f"log.db-{companion}"
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    says = rf"log\.db-{companion} is a symbolic link; remove it"
    with oncemore.open(log_file), pytest.raises(oncemore.StoreError, match=says):
        pay("b")
    assert runs == ["a"]
    assert not any(victim.iterdir()) if companion == "workers" else victim.read_bytes() == b"precious"


@pytest.mark.parametrize("companion", ["door", "reserve"])
def test_a_companion_with_two_hard_links_is_refused(log_file: Path, tmp_path: Path, companion: str) -> None:
    path = tmp_path / f"log.db-{companion}"
    os.link(path, tmp_path / "other")
    says = rf"log\.db-{companion} has 2 hard links"
    with oncemore.open(log_file), pytest.raises(oncemore.StoreError, match=says):
        pay("b")
    assert runs == ["a"]


@pytest.mark.parametrize("suffix", ["", ".sent", ".refused"])
def test_a_spool_does_not_write_through_a_symbolic_link(tmp_path: Path, suffix: str) -> None:
    from oncemore.audit.spool import AuditSpool

    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f"audit.jsonl{suffix}").symlink_to(victim)
    with pytest.raises(oncemore.StoreError, match=rf"audit\.jsonl{suffix} is a symbolic link"):
        AuditSpool(tmp_path / "audit.jsonl", lambda message: None)
    assert victim.read_bytes() == b"precious"


def test_the_doctor_reports_a_second_hard_link(log_file: Path, tmp_path: Path) -> None:
    from oncemore.queries.doctor import check_store
    from oncemore.queries.stores import open_read_only

    os.link(log_file, tmp_path / "other.db")
    with open_read_only(str(log_file)) as store:
        (check,) = [check for check in check_store(store).checks if check.name == "links"]
    assert check.status == "bad"
    assert "log.db has 2 hard links" in check.observation
