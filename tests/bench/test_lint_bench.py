"""The benchmark of the linter still runs; how quick it is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_measures_every_subject_and_judges_the_goal() -> None:
    command = [sys.executable, "bench/lint.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=90)
    report = json.loads(done.stdout)
    subjects = {row["subject"] for group in report["groups"] for row in group["rows"]}
    assert subjects == {"parse only", "oncemore lint, all rules"}
    assert len(report["goals"]) == 1
