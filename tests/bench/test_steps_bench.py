"""The benchmark still runs and names everybody; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "steps.py"

LIMIT = "two commits by hand (limit)"
RAW = {"raw apsw, two commits of 600 B", "raw apsw, the same rows"}
DISK = "append 600 B and fdatasync, once"
MANY = {"oncemore", "oncemore, 32 tasks", "oncemore, 32 threads"}

#: What each table must at least have; tables come in this order. DBOS is there only where it is installed.
TABLES = {
    "a step at a time, on disk": RAW | {"oncemore", "oncemore, pure", DISK},
    "a step at a time, in memory": RAW | {"oncemore", "oncemore, pure", LIMIT},
    "32 at once, on disk": MANY | {DISK},
    "32 at once, a sync takes 2 ms": MANY,
    "a call of finished work": {"oncemore", "select by key, decoded (limit)"},
    "a step at a time, many stored": {"1,000 stored", "1,500 stored", DISK},
    "listing 100 runs that are due": {"1,000 stored", "1,500 stored"},
    "size of a run": {"oncemore", "oncemore, parked", LIMIT},
    "reading back": {
        "scan of all entries",
        "rebuild: every link checked, every state folded",
        "replay: … and every decision computed again",
    },
    "reading decisions back": {"scan of all entries", "replay: … and every decision computed again"},
}


def test_the_benchmark_measures_every_subject_and_judges_every_goal(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "--runs", "1500"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert [group["name"] for group in report["groups"]] == list(TABLES)
    for group in report["groups"]:
        assert TABLES[group["name"]] <= {row["subject"] for row in group["rows"]}
        for row in group["rows"]:
            for measured in (row["cost"], row["ratio"]):
                assert 0 < measured["low"] <= measured["median"] <= measured["high"], row
        assert f"\n{group['name']}  " in done.stderr
    assert {goal["row"] for goal in report["goals"]} == {"5", "6", "7", "8", "9", "10", "last"}
    for goal in report["goals"]:
        assert goal["verdict"].partition(",")[0] in ("inside", "OUTSIDE")
    assert "what it must cost" in done.stderr.split("\n\n")[-1]


def test_the_syncs_that_it_counts_are_those_of_the_store(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _COUNT, str(SCRIPT.parent), str(tmp_path / "log.db")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [2.0, 1.0, 2.0]


_COUNT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from contextlib import closing
from _durable import ours, pure, raw, Path
from _syncs import Syncs, opened
import oncemore
with opened() as connections, closing(oncemore.open(sys.argv[2])) as engine:
    subjects = [ours(engine), ours(engine, step=pure), raw(Path("raw.db"))]
    for subject in subjects:
        subject.run(1)
    syncs = Syncs(connections)
    print(json.dumps([syncs.each(subject.run, 10) for subject in subjects]))
"""


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    """Even where a part of it fails."""
    command = [sys.executable, "-c", _FAIL, str(SCRIPT.parent)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "no such part" in done.stderr
    assert list(tmp_path.iterdir()) == []


_FAIL = """
import sys
sys.path.insert(0, sys.argv[1])
import steps
with steps.place() as at:
    steps.work.bind(at.engine("ours"))(1)
    raise RuntimeError("no such part")
"""
