"""A node whose process was killed with SIGKILL: a worker goes on, and `replay --verify` computes it again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.profiles.kfm.loop import last_run, retry_loop
from tests import shell
from tests.issues.nodes import CFG, INPUTS, Report

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.issues.nodes"


class Writes(Report):
    """A node that writes to its inputs."""

    node_id = "writes"

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        inputs["rows"].append(4)


@pytest.mark.timeout(180)
@pytest.mark.req("ART-5")
def test_a_worker_goes_on_with_a_killed_node_and_replay_computes_it_again(tmp_path: Path) -> None:
    log, quiet = tmp_path / "log.db", shell.environment(PYTHONPATH=str(ROOT))
    (tmp_path / "kill-me").touch()
    command = [sys.executable, "-m", MODULE, str(log)]
    killed = subprocess.run(command, cwd=tmp_path, env=quiet, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    worker = shell.run("worker", MODULE, "--drain", "--store", str(log), PYTHONPATH=str(ROOT))
    assert worker.returncode == 0, worker.stderr
    with oncemore.open(log):
        run = last_run(Report(), INPUTS, CFG)
    assert run is not None
    assert (run.status, run.value["total"], run.value["unit"]) == ("COMPLETE", 6, "kg")
    assert len(run.attempts) == 2
    (tmp_path / "kill-me").unlink()
    words = ("replay", run.key, "--store", str(log), "--verify", "--module", MODULE)
    replayed = shell.run(*words, PYTHONPATH=str(ROOT))
    assert replayed.returncode == 0, replayed.stderr
    assert "skipped" not in replayed.stdout
    assert "equal" in replayed.stdout
    again = subprocess.run(command, cwd=tmp_path, env=quiet, capture_output=True, text=True, check=True)
    assert again.stdout == "OK\n"
    with oncemore.open(log):
        told, writes = last_run(Report(), INPUTS, CFG), retry_loop(Writes(), INPUTS, CFG)
        wrote = last_run(Writes(), INPUTS, CFG)
    assert writes == "HARD_FAIL"
    assert wrote is not None
    assert "TypeError" in str(wrote.attempts[0].error)
    assert told is not None
    assert told.records()[-1]["reason"] == "artifact_exists"
