"""The benchmark still runs and measures every simulation; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_measures_every_simulation_and_judges_its_rate() -> None:
    command = [sys.executable, "bench/simulate.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    group = report["groups"][0]
    assert {row["subject"] for row in group["rows"]} >= {
        "as recorded", "another policy", "tuned, other signals", "reading the runs",
    }  # fmt: skip
    assert all(row["cost"]["median"] > 0 for row in group["rows"])
    assert len(report["goals"]) == 9
