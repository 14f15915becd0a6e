"""`oncemore worker --drain` leaves nothing due, or says what is left (1.10)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from subprocess import CompletedProcess

__all__ = ["_isolated"]

STEPS = """
import oncemore

@oncemore.step(effect="idempotent", name="drained.pay", rate="50/s")
def pay(x: int) -> int:
    return x
"""


@pytest.fixture
def engine() -> oncemore.Engine:
    Path("drained.py").write_text(STEPS)
    return oncemore.open("log.db")


def submit_runs(engine: oncemore.Engine, count: int) -> None:
    scope: dict[str, oncemore.Step[[int], int]] = {}
    exec(STEPS, scope)  # noqa: S102 - the text above
    with engine:
        for n in range(count):
            scope["pay"].submit(n)


def drain(*options: str) -> CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "oncemore",
        "worker",
        "drained",
        "--store",
        "log.db",
        "--drain",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_all_runs_of_a_step_with_a_rate_are_done(engine: oncemore.Engine) -> None:
    submit_runs(engine, 20)
    done = drain("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 20
    assert json.loads(done.stdout)["leftovers"] == []


def test_a_switch_that_is_on_is_named_and_is_not_nothing_to_do(engine: oncemore.Engine) -> None:
    submit_runs(engine, 3)
    with engine:
        engine.switches.on(reason="the bank is down", by="operator")
    done = drain()
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "nothing to do" in done.stderr) == (1, False), done.stderr
    assert "worker ended: no work done; left: 3 of drained.pay (the switch all_execution is on since" in last
    assert last.endswith("(operator: the bank is down))")


def test_what_is_due_after_the_limit_is_named_and_is_no_failure(engine: oncemore.Engine) -> None:
    scope: dict[str, oncemore.Step[[int], int]] = {}
    exec(STEPS, scope)  # noqa: S102 - the text above
    with engine:
        scope["pay"].submit(1, at=engine.now() + 3000)
    done = drain("--wait", "1s")
    assert done.returncode == 0, done.stderr
    assert "left: 1 of drained.pay (due later, the first at 20" in done.stderr.splitlines()[-1]


def test_a_wait_limit_without_drain_is_refused(engine: oncemore.Engine) -> None:
    command = [sys.executable, "-m", "oncemore", "worker", "drained", "--wait", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "--wait needs --drain" in done.stderr) == (2, True), done.stderr
