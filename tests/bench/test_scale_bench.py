"""The benchmark on servers still runs and judges; how quick anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import nats

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "scale.py"


@pytest.mark.torture
@pytest.mark.skipif(os.environ.get("ONCEMORE_TORTURE") != "1", reason="takes long: make torture runs it")
def test_the_benchmark_measures_and_judges_what_there_is_a_server_for(tmp_path: Path) -> None:
    try:
        nats.find_binary()
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100)
    report = json.loads(done.stdout)
    ours = [group for group in report["groups"] if group["name"].startswith("NATS")]
    assert len(ours) == 4
    for group in ours:
        for row in group["rows"]:
            for measured in (row["cost"], row["ratio"]):
                assert 0 < measured["low"] <= measured["median"] <= measured["high"], row
    verdicts = [goal["verdict"] for goal in report["goals"] if goal["row"] == "NATS"]
    assert len(verdicts) == 4
    assert all(verdict.partition(",")[0] in ("inside", "OUTSIDE") for verdict in verdicts)
