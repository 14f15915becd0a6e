"""The benchmark of workflows still runs; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_measures_every_subject(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "workflows.py"), "--quick", "--json", "--sleeping", "50"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    report = json.loads(done.stdout)
    five, sleeping = report["groups"]
    assert {row["subject"] for row in five["rows"]} >= {
        "workflow of five steps", "five steps without a workflow"
    }  # fmt: skip
    assert "50 sleeping workflows: 1 row and" in sleeping["note"]
