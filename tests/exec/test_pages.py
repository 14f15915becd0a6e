"""The commands on the pages about exec run, and print what the pages say; its codes are the program's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemore.programs.exit_code import CODES

if TYPE_CHECKING:
    from tests.exec.conftest import Desk

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "make-a-cron-job-exactly-once.md"
REFERENCE = ROOT / "docs" / "reference" / "cli.md"


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Every block fenced as ```sh, and what the ```text block right after it says that it prints."""
    found = re.finditer(r"(?ms)^```sh\n(.*?)^```\s*$(?:\s*^```text\n(.*?)^```\s*$)?", text)
    return [(block[1], block[2]) for block in found]


def fits(shown: str, printed: str) -> bool:
    """Whether a text is what a page shows, wherever its lines are broken; … stands for anything."""
    pattern = ".*".join(re.escape(part) for part in " ".join(shown.split()).split("…"))
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


@pytest.fixture
def shell(desk: Desk) -> Desk:
    """A folder with `oncemore` on the PATH, as it is installed."""
    tool = desk.folder / "bin" / "oncemore"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -W error -m oncemore "$@"\n')
    tool.chmod(0o755)
    assert desk.run("--store", ".oncemore/log.db", "--key", "first", "--", "true").returncode == 0
    return desk


def run_page(shell: Desk, text: str) -> int:
    env = shell.environment()
    env["PATH"] = f"{shell.folder / 'bin'}:{env['PATH']}"
    told = blocks(text)
    for code, shown in told:
        done = subprocess.run(
            ["sh", "-e", "-c", code], cwd=shell.folder, env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stdout}"
        if shown is not None:
            assert fits(shown, done.stdout), f"{code}\n{done.stdout}"
    return len(told)


def test_the_commands_of_the_how_to_run_and_print_what_it_says(shell: Desk) -> None:
    assert run_page(shell, HOW_TO.read_text(encoding="utf-8")) == 8


def test_the_commands_of_the_reference_and_of_the_readme_run(shell: Desk) -> None:
    section = REFERENCE.read_text(encoding="utf-8").partition("\n## oncemore exec\n")[2].partition("\n## ")[0]
    assert run_page(shell, section) == 1
    shutil.rmtree(shell.folder / ".oncemore")  # both take the same key
    assert shell.run("--key", "first", "--", "true").returncode == 0
    script = shell.folder / "monthly-report.sh"
    script.write_text("#!/bin/sh\necho done\n")
    script.chmod(0o755)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    third = [code for code, _ in blocks(readme) if "oncemore exec" in code]
    assert len(third) == 1
    assert run_page(shell, f"```sh\n{third[0]}```\n\n```text\ndone\n```\n") == 1


def test_a_page_that_says_something_else_would_be_noticed(shell: Desk) -> None:
    with pytest.raises(AssertionError, match="echo two"):
        run_page(shell, "```sh\necho two\n```\n\n```text\none\n```\n")
    with pytest.raises(AssertionError, match="false"):
        run_page(shell, "```sh\nfalse\n```\n")
    assert fits("a … c", "a b\nc")
    assert not fits("a … c", "a b d")


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    table = dict(re.findall(r"(?m)^\| `(\d+)` \| (.+) \|$", REFERENCE.read_text(encoding="utf-8")))
    assert sorted(map(int, table)) == sorted(CODES)
    for code, said in table.items():
        assert said.replace("`", "").partition(";")[0] == CODES[int(code)].partition(";")[0]
