"""The benchmark still runs and names everybody; how quick anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "retry.py"

LIMIT = "hand-written (limit)"
PLAIN = {"oncemore", "tenacity", "stamina", "backoff", "google-api-core"}
AWAITED = PLAIN | {"hyx"}

#: What each table must at least have; tables come in this order.
TABLES = {
    "first success, sync": PLAIN | {LIMIT, "bare function"},
    "first success, async": AWAITED | {LIMIT, "bare function"},
    "third attempt, sync": PLAIN | {LIMIT, "oncemore, own error class"},
    "third attempt, async": AWAITED | {LIMIT, "oncemore, own error class"},
    "with attempt, first success": {LIMIT, "oncemore, made each time", "tenacity, made each time"},
    "import": AWAITED | {"oncemore, first @retry"},
    "decisions": {
        f"{what}, {policy}" for what in ("decide", "decide and proof") for policy in ("standard", "kfm-loop")
    },
    "100 async calls that wait": AWAITED | {LIMIT, "asyncio.sleep"},
}


def test_the_benchmark_measures_every_subject_and_judges_every_goal() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert [group["name"] for group in report["groups"]] == list(TABLES)
    for group in report["groups"]:
        assert TABLES[group["name"]] <= {row["subject"] for row in group["rows"]}
        for row in group["rows"]:
            for measured in (row["cost"], row["ratio"]):
                assert 0 < measured["low"] <= measured["median"] <= measured["high"], row
        assert f"\n{group['name']}  " in done.stderr
    assert {goal["row"] for goal in report["goals"]} == {"1", "2", "3", "4", "last"}
    for goal in report["goals"]:
        assert goal["verdict"].partition(",")[0] in ("inside", "OUTSIDE")
    assert "what it must cost" in done.stderr.split("\n\n")[-1]
    assert "third-party modules that ours loads: none" in done.stderr
