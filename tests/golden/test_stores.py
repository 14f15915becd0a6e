"""Stores as released versions wrote them open, mean the same and continue; other formats are refused."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

import oncemore
from oncemore.cli.commands import root
from tests.golden import stored_file

HERE = Path(__file__).parent
STORES = sorted(HERE.glob("store-*.db"))


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden store, because opening one writes into it."""
    return Path(shutil.copyfile(request.param, tmp_path / "log.db"))


def set_format(path: Path, number: int) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute("update meta set value = ? where name = 'format'", (number,))
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize("copy", STORES, indirect=True, ids=lambda path: path.stem)
def test_a_store_of_a_released_version_opens_and_continues(copy: Path) -> None:
    stored_file.calls.clear()
    with oncemore.open(str(copy), restored_copy="trust") as engine:
        # Finished work gives the stored value, with its types, and does not run again.
        assert stored_file.charge("order-1", 100) == {"order": "order-1", "cents": 100, "parts": (50, None)}
        assert stored_file.charge("order-2", 250)["parts"] == (125, None)
        assert stored_file.calls == []
        # Work that was submitted then runs now.
        assert stored_file.charge("order-4", 80)["cents"] == 80
        assert stored_file.calls == ["order-4"]
        assert engine.describe_store() is not None
    for words in (["store", "verify"], ["store", "doctor"], ["runs", "--json"]):
        ran = CliRunner().invoke(root, [*words, "--store", str(copy)])
        assert ran.exit_code == 0, (words, ran.output)
    assert ran.output.count('"COMPLETE"') == 3
    assert ran.output.count('"HARD_FAIL"') == 1


@pytest.mark.parametrize("copy", STORES[:1], indirect=True, ids=lambda path: path.stem)
@pytest.mark.parametrize(("number", "message"), [(1, "before its first release"), (99, "newer")])
def test_another_format_is_refused_and_nothing_is_changed(copy: Path, number: int, message: str) -> None:
    before = set_format(copy, number)
    with oncemore.open(str(copy)) as engine, pytest.raises(oncemore.StoreError, match=message):
        engine.describe_store()
    assert copy.read_bytes() == before
