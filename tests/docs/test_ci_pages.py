"""The commands on the pages about migration, CI and the supply chain run and print what the pages show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.test_pages import blocks, fits
from tests.shell import environment

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = {
    "check-your-supply-chain.md": 3,
    "migrate-with-one-command.md": 2,
    "refuse-harmful-retries-in-ci.md": 3,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run_and_print_what_it_says(name: str, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "oncemore"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -W error -m oncemore "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "work").mkdir()
    env = environment(PATH=f"{tool.parent}{os.pathsep}{os.environ['PATH']}", TERM="dumb")
    commands = blocks((HOW_TO / name).read_text(encoding="utf-8"))
    assert len(commands) == PAGES[name]
    for code, shown in commands:
        done = subprocess.run(
            ["sh", "-e", "-c", code], cwd=tmp_path / "work", env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stdout}"
        if shown is not None:
            assert fits(shown, done.stdout), f"{code}\n{done.stdout}"
