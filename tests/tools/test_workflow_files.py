"""Workflows: valid by the schema of GitHub, clean by a linter, and made of commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from oncemore.cli.commands import root
from oncemore.cli.init import SOURCE, WORKFLOWS

ROOT = Path(__file__).resolve().parents[2]
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SHIPPED = [SOURCE / name for name in WORKFLOWS]
PROGRAMS = Path(sys.executable).parent


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def list_commands(document: Any) -> list[str]:
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def find_command(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """Return the command that words of a command line call, and the remaining words."""
    command: click.Command | None = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words:
        command, words = command.get_command(context, words[0]), words[1:]
    return command, words


@pytest.mark.req("CI-7")
def test_workflows_are_valid() -> None:
    checks = {"vendor.github-workflows": [*OWN, *SHIPPED], "vendor.github-actions": [ROOT / "action.yml"]}
    for schema, files in checks.items():
        command = [PROGRAMS / "check-jsonschema", "--builtin-schema", schema, *files]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout


def test_a_linter_finds_nothing_in_workflows(tmp_path: Path) -> None:
    command = [PROGRAMS / "zizmor", "--offline", "--no-progress"]
    ran = subprocess.run(
        [*command, *OWN, *SHIPPED, ROOT / "action.yml"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    # The linter finds an action that is not pinned.
    bad = tmp_path / ".github" / "workflows" / "bad.yml"
    bad.parent.mkdir(parents=True)
    bad.write_text(re.sub(r"@[0-9a-f]{40}", "@main", OWN[0].read_text()))
    assert subprocess.run([*command, bad], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_workflows_call_make_targets_and_nothing_else(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    document = load(path)
    matrix = [
        target
        for job in document["jobs"].values()
        for target in job.get("strategy", {}).get("matrix", {}).get("target", [])
    ]
    for command in list_commands(document):
        words = command.replace("${{ matrix.target }}", " ".join(matrix)).split()
        assert words[0] == "make", command
        assert set(words[1:]) <= targets, command


@pytest.mark.req("CI-7")
@pytest.mark.parametrize("path", [*SHIPPED, ROOT / "action.yml"], ids=lambda path: path.name)
def test_shipped_workflows_call_commands_that_exist(path: Path) -> None:
    commands = list_commands(load(path))
    assert any(command.startswith("oncemore ") for command in commands)
    for line in commands:
        if line.startswith("python -m pip install "):
            continue
        program, *words = shlex.split(line)
        assert program == "oncemore", line
        command, rest = find_command(words)
        assert command is not None, line
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options, line


def test_hooks_call_commands_that_exist() -> None:
    for hook in load(ROOT / ".pre-commit-hooks.yaml"):
        _, *words = shlex.split(hook["entry"])
        assert find_command(words)[0] is not None, hook["entry"]


def test_the_loop_checks_the_three_environments() -> None:
    matrix = load(SOURCE / "kfm-ci.yml")["jobs"]["records"]["strategy"]["matrix"]
    assert matrix["environment"] == ["dev", "staging", "production"]
