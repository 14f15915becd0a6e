"""The benchmark still runs and names everybody; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_measures_every_subject_and_judges_every_goal() -> None:
    command = [sys.executable, "bench/telemetry.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    report = json.loads(done.stdout)
    subjects = {group["name"]: {row["subject"] for row in group["rows"]} for group in report["groups"]}
    assert len(subjects) == 2
    for rows in subjects.values():
        assert {"without hooks", "off", "on_event", "OpenTelemetry", "Prometheus", "both"} <= rows
    assert len(report["goals"]) == 7
