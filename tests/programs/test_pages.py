"""The commands on the pages about exec run and print what the pages show; the exit codes agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemore.programs.outcome import EXIT_CODE_TEXTS

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "make-a-cron-job-exactly-once.md"
REFERENCE = ROOT / "docs" / "reference" / "cli.md"


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Return every block fenced as ```sh, with the ```text block after it."""
    found = re.finditer(r"(?ms)^```sh\n(.*?)^```\s*$(?:\s*^```text\n(.*?)^```\s*$)?", text)
    return [(block[1], block[2]) for block in found]


def fits(shown: str, printed: str) -> bool:
    """Return whether a text is the one that a page shows, regardless of line breaks; … matches anything."""
    pattern = ".*".join(re.escape(part) for part in " ".join(shown.split()).split("…"))
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


@pytest.fixture
def shell(sandbox: ExecSandbox) -> ExecSandbox:
    """A folder with `oncemore` on the PATH, as it is installed."""
    tool = sandbox.folder / "bin" / "oncemore"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -W error -m oncemore "$@"\n')
    tool.chmod(0o755)
    assert sandbox.run("--store", ".oncemore/log.db", "--key", "first", "--", "true").returncode == 0
    return sandbox


def run_page(shell: ExecSandbox, text: str) -> int:
    env = shell.environment()
    env["PATH"] = f"{shell.folder / 'bin'}:{env['PATH']}"
    commands = blocks(text)
    for code, shown in commands:
        done = subprocess.run(
            ["sh", "-e", "-c", code], cwd=shell.folder, env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stdout}"
        if shown is not None:
            assert fits(shown, done.stdout), f"{code}\n{done.stdout}"
    return len(commands)


def test_the_commands_of_the_how_to_run_and_print_what_it_says(shell: ExecSandbox) -> None:
    assert run_page(shell, HOW_TO.read_text(encoding="utf-8")) == 8


def test_the_commands_of_the_reference_and_of_the_readme_run(shell: ExecSandbox) -> None:
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


def test_a_page_with_other_output_is_detected(shell: ExecSandbox) -> None:
    with pytest.raises(AssertionError, match="echo two"):
        run_page(shell, "```sh\necho two\n```\n\n```text\none\n```\n")
    with pytest.raises(AssertionError, match="false"):
        run_page(shell, "```sh\nfalse\n```\n")
    assert fits("a … c", "a b\nc")
    assert not fits("a … c", "a b d")


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    table = dict(re.findall(r"(?m)^\| `(\d+)` \| (.+) \|$", REFERENCE.read_text(encoding="utf-8")))
    assert sorted(map(int, table)) == sorted(EXIT_CODE_TEXTS)
    for code, said in table.items():
        assert said.replace("`", "").partition(";")[0] == EXIT_CODE_TEXTS[int(code)].partition(";")[0]
