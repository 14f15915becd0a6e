"""What a newcomer stumbles over in the second hour (issue 17), each shown by a test named so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import oncemore
from tests.fixtures import _isolated
from tests.timing import wait_until

__all__ = ["_isolated"]

PIPELINE = """
import threading, time
from pathlib import Path
import oncemore

@oncemore.step(effect="idempotent", name="nightly")
def nightly(day):
    with Path("begun.txt").open("a") as file:
        file.write("begun\\n")
    while not Path("go_on").exists():
        time.sleep(0.01)
    return f"report of {day}"
"""


def run_oncemore(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oncemore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def count_starts() -> int:
    path = Path("begun.txt")
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_newcomer_restarts_a_deploy_three_times() -> None:
    """A deploy that restarts its workers spends no budget: the work is neither failed nor quarantined."""
    Path("pipeline.py").write_text(PIPELINE)
    scope: dict[str, oncemore.Step[[str], str]] = {}
    exec(PIPELINE, scope)  # noqa: S102 - the text above
    with oncemore.open("log.db") as engine:
        run = scope["nightly"].submit("2026-11-18")
        command = [sys.executable, "-m", "oncemore", "worker", "pipeline", "--store", "log.db"]
        for restart in range(1, 5):
            worker = subprocess.Popen([*command, "--grace", "0.1"], stderr=subprocess.DEVNULL)
            try:
                wait_until(lambda restart=restart: count_starts() == restart)
                os.kill(worker.pid, signal.SIGTERM)
                assert worker.wait(30) == 1, "work was left"
            finally:
                worker.kill()
                worker.wait(30)
        Path("go_on").touch()
        assert run_oncemore("worker", "pipeline", "--store", "log.db", "--drain").returncode == 0
        assert run.wait(10).value == "report of 2026-11-18"
        state = run.wait(0).state
        assert (state.attempt, state.attempt_count, state.crash_count) == (5, 1, 0)
        assert list(engine.quarantine) == []


# Typed arguments ----------------------------------------------------------------------------------------


@dataclass
class Parcel:
    number: str
    weights: list[float] = field(default_factory=list)


def test_newcomer_passes_a_dataclass_to_a_step() -> None:
    shipped = []

    @oncemore.step(effect="pure")
    def pack(number: str) -> Parcel:
        return Parcel(number, [1.5])

    @oncemore.step(effect="idempotent")
    def ship(parcel: Parcel) -> str:
        shipped.append(parcel)
        return f"label of {parcel.number}"

    with oncemore.open("log.db") as engine:
        parcel = pack("A-17")
        ship.submit(parcel)
        oncemore.Worker(engine, [ship]).run_until_idle()
        assert shipped == [Parcel("A-17", [1.5])]
        assert ship(pack("A-17")) == "label of A-17"
        assert len(shipped) == 1


SILENT = """
import oncemore

@oncemore.step(effect="idempotent", name="fetch")
def fetch(day):
    raise ConnectionError("refused, token=abcdef1234567890")

try:
    fetch("monday")
except oncemore.StepFailed:
    pass
"""


def test_newcomer_sees_what_a_step_does() -> None:
    """Silence: a script without any set-up shows each retry and the end, once, without secrets."""
    Path("script.py").write_text(SILENT, encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("fetch (")]
    assert [line.partition("): ")[2][:21] for line in lines] == [
        "attempt 1 of 3 failed",
        "attempt 2 of 3 failed",
        "failed after attempt ",
    ]
    assert "next attempt in " in lines[0]
    assert "no further attempt: max_attempts_exceeded" in lines[2]
    assert "ConnectionError: refused" in lines[2]
    assert "abcdef1234567890" not in done.stderr


SCRIPT = """
import oncemore

@oncemore.step(effect="idempotent", name="convert")
def convert(day):
    return {expression}

print(convert("2026-11-18"))
"""


def test_newcomer_fixes_a_bug_and_calls_again() -> None:
    """The script runs again after the bug is fixed: nobody has to learn of `rerun` first."""
    script = Path("convert.py")
    script.write_text(SCRIPT.format(expression='int("18th")'))
    command = [sys.executable, str(script)]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (failed.returncode, "PermanentFailure" in failed.stderr) == (1, True), failed.stderr
    script.write_text(SCRIPT.format(expression='int("18")'))
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "18\n"), done.stderr


def test_newcomer_uses_exec_and_it_retries() -> None:
    """Asked for retries without an effect, `exec` says before the program starts that there will be none."""
    program = "echo ran >> ran.txt; test $(wc -l < ran.txt) -gt 2"
    words = ("exec", "--key", "nightly", "--attempts", "3", "--wait", "0.01s")
    warned = run_oncemore(*words, "--", "sh", "-c", program)
    said = " ".join(warned.stderr.split())
    assert warned.returncode != 0
    assert "never repeats a program that failed: of 3 attempts there will be one" in said
    assert "Give --effect idempotent to allow retries" in said
    Path("ran.txt").unlink()
    done = run_oncemore(
        "exec", "--key", "hourly", "--effect", "idempotent", *words[3:], "--", "sh", "-c", program
    )
    assert (done.returncode, len(Path("ran.txt").read_text().splitlines())) == (0, 3), done.stderr
