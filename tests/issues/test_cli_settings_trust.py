"""The command line with a settings file that another user controls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OTHER_USER = 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_the_command_line_warns_and_does_not_start_the_program(tmp_path: Path) -> None:
    (tmp_path / "oncemore.toml").write_text(f'notify = [{{command = ["touch", "{tmp_path}/started"]}}]\n')
    os.chown(tmp_path / "oncemore.toml", OTHER_USER, OTHER_USER)
    command = [sys.executable, "-m", "oncemore", "exec", "--effect", "once", "--key", "k", "--", "false"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode != 0
    assert "belongs to another user" in ran.stderr
    assert "oncemore.toml" in ran.stderr
    assert not (tmp_path / "started").exists()
