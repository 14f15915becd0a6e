"""Runs `oncemore exec` as real processes, started as a shell would start them, in a folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from tests.timing import wait_until

if TYPE_CHECKING:
    from subprocess import CompletedProcess

PROGRAM = [sys.executable, "-W", "error", "-m", "oncemore", "exec"]
#: Long enough for a busy machine; a working test waits for much less.
PATIENCE_S = 60.0


class ExecSandbox:
    """A folder for programs: its log, and the file in which programs note that they ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "ran.txt"

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
        kept["PYTHONPATH"] = str(Path(oncemore.__file__).parents[1])  # the same as ours, wherever it is
        return {**kept, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONUTF8": "1", "RAN": str(self.log), **changes}

    def write_policy(self, text: str) -> str:
        """Write a policy file with these lines; return its path."""
        retry_policy = "" if "retry_policy" in text else "retry_policy: {}\n"
        (self.folder / "policy.yaml").write_text(f'version: "1"\n{retry_policy}{text}\n')
        return "policy.yaml"

    def run(self, *words: str, program: list[str] = PROGRAM, **changes: str) -> CompletedProcess[bytes]:
        return subprocess.run(
            [*program, *words], capture_output=True, cwd=self.folder, env=self.environment(**changes),
            timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(
        self, *words: str, program: list[str] = PROGRAM, changes: dict[str, str] | None = None, **how: Any
    ) -> subprocess.Popen[bytes]:
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **how}
        return subprocess.Popen(
            [*program, *words], cwd=self.folder, env=self.environment(**(changes or {})),
            stdin=subprocess.DEVNULL, **streams,
        )  # fmt: skip

    def report(self, *words: str, **changes: str) -> dict[str, Any]:
        """Run a call and return its JSON report."""
        done = self.run("--report", "report.json", *words, **changes)
        assert (self.folder / "report.json").exists(), done.stderr.decode()
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        assert report["exit_code"] == done.returncode
        return report

    def read_runs(self) -> list[str]:
        """Return the notes of the programs that ran, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for_lines(self, count: int) -> list[str]:
        wait_until(lambda: len(self.read_runs()) >= count, f"{count} lines in {self.log}")
        return self.read_runs()


@pytest.fixture
def sandbox(tmp_path: Path) -> ExecSandbox:
    return ExecSandbox(tmp_path)


#: A program that notes that it ran.
RAN = ("sh", "-c", 'echo ran >> "$RAN"; echo out; echo err >&2')
