"""Issue 15, 1.2: a replay and a second store agree on work that changes its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import oncemore
from tests.issues import arguments
from tests.issues.arguments import append_nine
from tests.shell import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock


def test_work_that_failed_twice_is_replayed_and_compared_as_equal(tmp_path: Path, clock: FakeClock) -> None:
    for store, failures in (("calm.db", 0), ("rough.db", 2)):
        arguments.failures[0] = failures
        with oncemore.open(tmp_path / store):
            key = append_nine.key([1])
            assert append_nine([1]) == [1, 9]
    rough, calm = str(tmp_path / "rough.db"), str(tmp_path / "calm.db")
    module = ("--verify", "--module", "tests.issues.arguments")
    replayed = run("replay", key, "--store", rough, *module, PYTHONPATH=str(ROOT))
    assert (replayed.returncode, replayed.stderr) == (0, ""), replayed.stdout
    assert "equal" in replayed.stdout
    held = run("store", "health", "--store", rough, "--against", calm)
    assert (held.returncode, held.stderr) == (0, ""), held.stdout
