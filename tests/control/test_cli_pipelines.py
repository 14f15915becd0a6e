"""A halted pipeline, from process to process: it stays halted until one command releases it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from oncemore import cli

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
import oncemore
from oncemore import PolicyViolation as Violation

@oncemore.step(effect="idempotent", name="first", policy="kfm-rules", pipeline="ingest")
def first():
    raise Violation("SCHEMA_INVALID", "no id")

@oncemore.step(effect="idempotent", name="second", pipeline="ingest")
def second():
    print("ran")

with oncemore.open(sys.argv[1]):
    try:
        globals()[sys.argv[2]]()
    except oncemore.CallRefused as error:
        print(type(error).__name__)
"""


@pytest.mark.timeout(120)
def test_a_halt_outlives_its_process_and_one_command_releases_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, log = tmp_path / "program.py", tmp_path / "log.db"
    file.write_text(PROGRAM)

    def ran(which: str) -> str:
        command = [sys.executable, str(file), str(log), which]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert [ran("first"), ran("second")] == ["Quarantined", "NotPermitted"]
    assert cli.run_command(["control", "switch", "status", "--store", str(log)]) == 1
    assert "pipeline:ingest" in capsys.readouterr().out
    release = [
        "control",
        "switch",
        "off",
        "--pipeline",
        "ingest",
        "--reason",
        "set aside",
        "--store",
        str(log),
    ]
    assert [cli.run_command(release), cli.run_command(release)] == [0, 1]
    assert capsys.readouterr().out.splitlines() == [
        "turned off pipeline:ingest",
        "The switch pipeline:ingest was not on.",
    ]
    assert ran("second") == "ran"
