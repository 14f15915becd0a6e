"""The programs of examples/elsewhere run, where their engines are installed (`make engines`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.programs import PATIENCE_S

ELSEWHERE = Path(__file__).resolve().parents[2] / "examples" / "elsewhere"


def run_program(name: str) -> Any:
    words = [sys.executable, str(ELSEWHERE / name)]
    return json.loads(subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE_S).stdout)


def test_celery_tasks_retry_and_are_repeated() -> None:
    pytest.importorskip("celery")
    assert run_program("celery_tasks.py") == {
        "results": ["page of a", "receipt of o-1", "receipt of o-1"],
        "calls": {"fetch": 3, "charge": 4},
    }


def test_temporal_activities_know_their_attempt_and_their_progress() -> None:
    pytest.importorskip("temporalio")
    assert run_program("temporal_activities.py") == {
        "first": "the service is busy",
        "final": True,
        "receipt": "receipt of o-1 under test-test",
        "copied": 1,
    }
