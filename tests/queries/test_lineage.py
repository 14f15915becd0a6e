"""Lineage: a window that failed and was run again elsewhere equals an undisturbed one."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import RunFilter, find_run, list_runs
from oncemore.queries.stores import open_read_only
from tests.shell import environment, run, told

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = """
import os, signal, sys
import oncemore

SALT = {"salt": os.environ.get("SALT", "")}

@oncemore.step(effect="pure", name="sample", config=SALT, artifact="sample.csv")
def sample(day: str):
    if day == os.environ.get("DIE_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    drawn = sorted({oncemore.current().seeded.random() for _ in range(50)})
    return oncemore.current().put(repr((day, drawn, os.environ.get("DIRT"))).encode(), date=day)

@oncemore.step(effect="pure", name="summed")
def summed(kept) -> int:
    return len(kept.read())

with oncemore.open(sys.argv[1]):
    for day in ("2026-10-01", "2026-10-02", "2026-10-03"):
        summed(sample(day))
"""


def window(folder: Path, store: str, **changes: str) -> int:
    """Compute the window in a new process; return its exit code."""
    script = folder / "window.py"
    script.write_text(WINDOW, encoding="utf-8")
    where = folder / store
    where.mkdir(exist_ok=True)
    command = [sys.executable, str(script), str(where / "log.db")]
    return subprocess.run(command, cwd=where, env=environment(**changes), check=False, timeout=60).returncode


HERE = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
ELSEWHERE = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}


@pytest.mark.req("ART-4", "LIN-6", "TEST-6")
def test_a_killed_window_run_again_elsewhere_equals_an_undisturbed_one(tmp_path: Path) -> None:
    assert window(tmp_path, "whole", **HERE) == 0
    assert window(tmp_path, "again", **HERE, DIE_AT="2026-10-02") == -signal.SIGKILL
    assert window(tmp_path, "again", **ELSEWHERE) == 0
    whole, again = (str(tmp_path / name / "log.db") for name in ("whole", "again"))
    held = run("store", "health", "--store", again, "--against", whole)
    assert held.returncode == 0, held.stdout
    assert "6 results compared" in " ".join(held.stdout.split())
    with open_read_only(whole) as one, open_read_only(again) as other:
        for row in list_runs(one, RunFilter()):
            first, second = (
                load_timeline(one, find_run(one, row.key)),
                load_timeline(other, find_run(other, row.key)),
            )
            assert first.row.run_id != second.row.run_id
            assert first.lineage == second.lineage is not None
            assert [each.digest for each in first.given] == [each.digest for each in second.given]
            if row.step == "summed":
                (made,) = (step.state for step in second.steps[-1:])
                assert len(second.lineage.used) == 2, "its arguments, and the artifact that is among them"
                assert len(second.lineage.derived) == 2
                assert made.input_hash in "".join(second.lineage.used)
    shown = told("show", row.run_id, "--store", whole)["lineage"]
    assert shown["activity"].startswith("urn:oncemore:activity:")


def test_a_window_with_different_results_is_reported(tmp_path: Path) -> None:
    assert window(tmp_path, "whole") == window(tmp_path, "dirty", DIRT="dust") == 0
    whole, dirty = (str(tmp_path / name / "log.db") for name in ("whole", "dirty"))
    found = told("store", "health", "--store", dirty, "--against", whole, code=1)
    first = found["criteria"][0]
    assert (found["healthy"], first["holds"]) == (False, False)
    assert {example.split()[0] for example in first["examples"]} == {"sample"}
    assert [one["holds"] for one in found["criteria"][1:]] == [True, True, True]


def test_work_under_another_configuration_is_not_compared(tmp_path: Path) -> None:
    assert window(tmp_path, "whole") == window(tmp_path, "salted", SALT="a pinch", DIRT="dust") == 0
    whole, salted = (str(tmp_path / name / "log.db") for name in ("whole", "salted"))
    found = told("store", "health", "--store", salted, "--against", whole)
    assert "0 results compared" in found["criteria"][0]["observation"]
