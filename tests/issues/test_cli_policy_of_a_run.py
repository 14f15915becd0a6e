"""A run keeps its policy in another process: a worker goes on with it, replay and explain need no file."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = """
import oncemore

@oncemore.step(effect="idempotent", name="fetch", policy="./mine.yaml")
def fetch(day: str) -> str:
    raise TimeoutError("no answer")
"""
BEGIN = """
import oncemore, steps
with oncemore.open("log.db"):
    print(steps.fetch.submit("monday").run_id)
"""
CALL = """
import oncemore, steps
with oncemore.open("log.db"):
    print(steps.fetch.run("monday").status)
"""


def policy_text(version: str, attempts: int, delay: float) -> str:
    delays = ", ".join(str(round(delay * (1 + n / 8), 6)) for n in range(attempts - 1))
    return (
        f'profile: mine\nversion: "{version}"\n'
        f"retry_policy: {{max_attempts: {attempts}, delays_s: [{delays}]}}\nafter_failure: raise\n"
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "steps.py").write_text(STEPS)

    def run_python(*words: str) -> str:
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run_python


def test_a_worker_goes_on_with_the_old_policy_and_replay_needs_no_file(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(policy_text("1", 3, 0.125))
    program = ("-m", "oncemore")
    digest = json.loads(run(*program, "policy", "show", "mine.yaml", "--json"))["digest"]
    run_id = run("-c", BEGIN).strip()
    file.write_text(policy_text("2", 7, 0.01))
    run(*program, "worker", "steps", "--store", "log.db", "--drain")
    assert run("-c", CALL).strip() == "HARD_FAIL"
    file.unlink()
    told: dict[str, Any] = json.loads(run(*program, "explain", run_id, "--store", "log.db", "--json"))
    proofs = [one["proof"] for one in told["told"]]
    assert [proof["delay_s"] for proof in proofs] == [0.125, 0.140625, 0.0]
    assert {proof["policy"]["digest"] for proof in proofs} == {digest}
    assert {proof["policy"]["version"] for proof in proofs} == {"1"}
    assert all(
        "keeps the policy it began with, mine@1:" in " ".join(one["sentences"]) for one in told["told"]
    )
    assert "agrees" in run(*program, "replay", run_id, "--store", "log.db")
    assert "1 runs: 1 agree, 0 drift" in run(*program, "replay", "--all", "--store", "log.db")
