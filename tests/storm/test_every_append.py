"""A message whose process is killed with SIGKILL after every single append, and that is delivered again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shell
from tests.storm.redelivery import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.req("PROD-3")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_after_every_append_and_a_redelivery_each_time_leave_one_copy_of_the_effect(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, "-m", "tests.storm.redelivery", str(tmp_path), kind]
    ran = subprocess.run(
        command, cwd=ROOT, env=shell.environment(), capture_output=True, text=True, check=False, timeout=150
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert set(told["copies"]) == {1}, told
    assert told["killed"] >= 4
    record_property("deliveries killed", told["killed"])
