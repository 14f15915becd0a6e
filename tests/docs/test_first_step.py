"""The commands of the tutorial's second page, run as a reader would: the process really dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "02-first-step.md"


def program() -> str:
    """The file that the page asks for."""
    after = PAGE.read_text(encoding="utf-8").split("tests/docs/test_first_step.py", 1)[1]
    return after.split("```python\n", 1)[1].split("```", 1)[0]


@pytest.mark.req("WAL-8")
def test_a_killed_process_is_followed_by_one_that_finishes_unattended(tmp_path: Path) -> None:
    (tmp_path / "pay.py").write_text(program(), encoding="utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "pay.py", *arguments],
            cwd=tmp_path,
            env={**os.environ, "ONCEMORE_STORE": str(tmp_path / "log.db")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert run("die").returncode == -signal.SIGKILL
    assert run().stdout == "paid\n"
    assert run().stdout == "paid\n"
    told = (tmp_path / "bank.txt").read_text(encoding="utf-8").splitlines()
    keys, numbers = {line.split()[0] for line in told}, [line.split()[-1] for line in told]
    assert (len(keys), numbers) == (1, ["1", "2"])
