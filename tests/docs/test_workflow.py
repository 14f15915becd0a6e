"""The commands of the tutorial's workflow, run as a reader would: the worker really dies."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "04-a-workflow.md"


def test_a_workflow_that_is_killed_slept_and_signalled_ends_once(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (module, *_) = re.findall(r"(?ms)^```python\n(.*?)^```$", text)
    (tmp_path / "shop.py").write_text(module, encoding="utf-8")
    commands = re.findall(r"(?ms)^```sh\n(.*?)^```\s*^```text\n(.*?)^```$", text)
    assert len(commands) == 3
    program = f'oncemore() {{ "{sys.executable}" -m oncemore "$@"; }}; export ONCEMORE_STORE=log.db\n'
    for script, printed in commands:
        done = subprocess.run(
            ["bash", "-c", program + script.replace("DIE=charged oncemore", "DIE=charged run_oncemore")
             .replace("run_oncemore", f'"{sys.executable}" -m oncemore')],
            cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        output = [line for line in done.stdout.splitlines() if "PENDING" not in line]
        assert output == printed.splitlines(), done.stderr
    assert "sent 'approved' to shop.fulfil" in (tmp_path / "sent.txt").read_text()
