"""Real processes on one SQLite file: a cooldown outlives them, applies to all, and counts through kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import oncemore

ROOT = Path(__file__).resolve().parents[3]
#: Around the commit itself; every other moment is tried without processes (`test_crashes`).
WHENS = ("commit", "synced")


def ran(store: Path, turn: str, mark: str = "", when: str = "") -> str:
    """Run a process to its end, or to its kill; return what it said."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.limits.cooldowns.victim", str(store), mark, when, turn],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if mark else 0), done.stderr
    return done.stdout.strip()


def asked(store: Path) -> int:
    file = Path(f"{store}.asked")
    return len(file.read_text().splitlines()) if file.exists() else 0


def count(store: Path) -> tuple[int, str]:
    with oncemore.open(store) as engine:
        found = engine.cooldowns.get("p")
        return (0, "") if found is None else (found.attempt_count_total, found.last_attempt_outcome)


@pytest.mark.req("COOL-14", "CONC-6", "COOL-1")
def test_a_second_process_started_in_a_cooldown_asks_nobody(tmp_path: Path) -> None:
    store = tmp_path / "log.db"
    assert ran(store, "throttled") == "RetriesExhausted"
    assert (asked(store), count(store)) == (1, (1, "RETRYABLE_FAILURE"))
    assert ran(store, "well") == "SKIPPED_BACKOFF"
    with oncemore.open(store) as engine:
        (left,) = engine.cooldowns
        assert (left.resource, left.last_error_class) == ("p", "HTTP_429")
    assert (asked(store), count(store)) == (1, (1, "RETRYABLE_FAILURE"))


@pytest.mark.req("COOL-6")
@pytest.mark.parametrize("when", WHENS)
def test_a_kill_around_the_end_of_a_success_counts_it_once(tmp_path: Path, when: str) -> None:
    store = tmp_path / "log.db"
    ran(store, "well", "COMMIT", when)
    written = count(store)[0]
    assert written == (1 if when == "synced" else 0)
    # One attempt is all there is: what was lost before its end was written waits for a person.
    assert ran(store, "well") == ("SKIPPED_QUARANTINED" if not written else "well")
    assert count(store)[0] == asked(store) == 1


@pytest.mark.parametrize("when", WHENS)
def test_a_kill_around_the_end_of_a_failure_counts_it_once(tmp_path: Path, when: str) -> None:
    store = tmp_path / "log.db"
    ran(store, "throttled", "HARD_FAIL", when)
    written = count(store)[0]
    assert written == (1 if when == "synced" else 0)
    assert ran(store, "well") == ("SKIPPED_BACKOFF" if written else "SKIPPED_QUARANTINED")
    assert count(store)[0] == asked(store) == 1
