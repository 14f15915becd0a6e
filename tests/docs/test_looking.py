"""The commands on the pages about looking are run as a reader would, and print what the pages say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = {
    "find-harmful-retries.md": "loader.py",
    "see-why-it-waited.md": "flows.py",
    "prove-to-an-auditor.md": "pay.py",
    "recover-after-a-crash.md": "pay.py",
}


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```", text)


def missing(shown: str, printed: str) -> list[str]:
    """The parts of what a page shows that were not printed, in this order; … stands for anything."""
    left, at = [], 0
    printed = " ".join(printed.split())
    for part in re.split(r"…|\n", shown):
        words = " ".join(part.split())
        found = printed.find(words, at)
        if found < 0:
            left.append(words)
        else:
            at = found + len(words)
    return left


def commands_print_what_it_says(text: str, folder: Path) -> None:
    """Run the commands of a page in one shell, and compare each block with what it printed."""
    folder.joinpath("oncemore.toml").touch()
    bin_ = folder / "bin"
    bin_.mkdir()
    for command, words in (("oncemore", f"{sys.executable} -m oncemore"), ("python", sys.executable)):
        bin_.joinpath(command).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        bin_.joinpath(command).chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ONCEMORE_")}
    # A page starts many processes, which share the bytecode of all other tests: compiling takes longer.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = {**kept, "PATH": f"{bin_}:{kept['PATH']}", "COLUMNS": "100", "PYTHONUTF8": "1"}
    commands = re.findall(r"(?ms)^```sh\n(.*?)^```\s*^```text\n(.*?)^```", text)
    assert len(commands) == len(blocks(text, "sh")) == len(blocks(text, "text"))
    # One shell for the page: what a command sets, a later one uses.
    script = "\n".join(f"{command}\necho '== end {at}'" for at, (command, _) in enumerate(commands))
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    rest = ran.stdout
    for at, (command, shown) in enumerate(commands):
        printed, found, rest = rest.partition(f"== end {at}\n")
        assert found, ran.stderr
        assert missing(shown, printed) == [], f"{command}\n{printed}\n{ran.stderr}"


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_print_what_it_says(name: str, tmp_path: Path) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    # The blocks of a page before this heading are run by tests/test_docs.py.
    text = text.partition("\n## In a terminal\n")[2] or text
    (program,) = blocks(text, "python")
    tmp_path.joinpath(PAGES[name]).write_text(program, encoding="utf-8")
    commands_print_what_it_says(text, tmp_path)


RUN_PAGES = sorted(
    page for folder in ("retries", "retry-loop") for page in (DOCS.parent / folder).glob("*/**/*.md")
)


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.stem)
def test_the_page_of_an_example_shows_what_it_prints(page: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("examples").symlink_to(DOCS.parents[1] / "examples")
    commands_print_what_it_says(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.req("CLI-10")
def test_every_command_of_the_runbook_runs_on_a_store_after_a_bad_night(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    shop.joinpath("__init__.py").touch()
    shop.joinpath("orders.py").write_bytes(
        Path(__file__).with_name("night").joinpath("orders.py").read_bytes()
    )
    tmp_path.joinpath("oncemore.toml").touch()
    subprocess.run([sys.executable, "-m", "shop.orders"], cwd=tmp_path, check=True, timeout=60)
    commands_print_what_it_says((DOCS / "runbook.md").read_text(encoding="utf-8"), tmp_path)


def test_what_a_page_says_and_a_command_does_not_is_found() -> None:
    assert missing("a … c\nd", "a b c d") == []
    assert missing("a … c\nd", "a c b") == ["d"]
    assert missing("b … a", "a b") == ["a"]
