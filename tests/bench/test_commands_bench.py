"""The benchmark still runs and names every command; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_starts_every_command_and_judges_it() -> None:
    command = [sys.executable, "bench/commands.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    rows = {row["subject"]: row for group in report["groups"] for row in group["rows"]}
    named = ("runs", "show RUN", "store doctor", "store tail", "--version")
    assert {f"oncemore {name}" for name in named} <= rows.keys()
    assert all(row["cost"]["median"] > 0 for row in rows.values())
    assert {goal["what"] for goal in report["goals"]} == {
        name for name in rows if name.startswith("oncemore ")
    }
