"""`oncemore store doctor` on a path where companions have lost their database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.maintenance.test_cli_maintenance import run

if TYPE_CHECKING:
    from pathlib import Path


@oncemore.step(effect="once", name="gone.file")
def make(order: str) -> str:
    oncemore.current().put(order.encode(), name="table.csv")
    return order


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a store whose database was deleted."""
    path = tmp_path / "log.db"
    monkeypatch.setenv("ONCEMORE_STORE", str(path))
    with oncemore.open(path):
        make("a")
    path.unlink()
    return path


@pytest.mark.parametrize("words", [("store", "doctor"), ("runs",), ("store", "verify")])
def test_looking_at_a_missing_database_names_the_companions(missing: Path, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.code != 0
    assert "log.db is missing, but log.db-door" in ran.err
    assert "oncemore store doctor --store" in ran.err
    assert not missing.exists()


def test_the_companions_are_removed_when_the_operator_says_so(missing: Path, tmp_path: Path) -> None:
    refused = run("store", "doctor", "--remove-companions")
    assert (refused.code, "Confirm with --yes" in refused.err) == (2, True)
    assert list(tmp_path.glob("log.db-*"))
    ran = run("store", "doctor", "--remove-companions", "--yes")
    assert ran.code == 0
    assert "log.db-door" in ran.out
    assert "the mark of this store in" in ran.out
    assert not list(tmp_path.glob("log.db-*"))
    with oncemore.open(missing):
        assert make("a") == "a"
    assert "There are no companion files" not in run("store", "doctor", "--remove-companions", "--yes").out


def test_companions_of_a_database_that_exists_are_not_removed(missing: Path, tmp_path: Path) -> None:
    missing.touch()
    ran = run("store", "doctor", "--remove-companions", "--yes")
    assert ran.code == 2
    assert "exists, and its companions belong to it; nothing was removed" in ran.err
    assert list(tmp_path.glob("log.db-*"))


def test_companions_are_not_removed_while_a_process_works_there(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with oncemore.open(path):
        make("a")
        path.unlink()
        ran = run("store", "doctor", "--remove-companions", "--yes", "--store", str(path))
    assert ran.code != 0
    assert "a process still works on the former" in ran.err
