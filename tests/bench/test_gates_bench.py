"""The benchmark still runs and names everybody; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_measures_every_subject_and_judges_every_goal() -> None:
    for rival in ("pybreaker", "purgatory", "circuitbreaker", "interlock"):
        pytest.importorskip(rival)
    command = [sys.executable, "bench/gates.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    report = json.loads(done.stdout)
    subjects = {group["name"]: {row["subject"] for row in group["rows"]} for group in report["groups"]}
    assert {
        "oncemore.retry, breaker=",
        "pybreaker",
        "purgatory",
        "circuitbreaker",
        "interlock-cb",
    } <= subjects["a closed breaker, sync"]
    assert "durable step, open dataset" in subjects["a durable step, its dataset open"]
    assert len(subjects) == 5
    assert len(report["goals"]) == 4
