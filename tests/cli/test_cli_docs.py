"""The page about the command line says what the program does: every command, every option, every example."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncemore import cli
from oncemore.cli.commands import LazyGroup, root
from tests.golden.stored import store_golden

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")

#: What a sink has written of an operation that ran out of attempts.
_ENDS = {"tenant_id": "tenant-123", "correlation_id": "corr-456", "trace_id": None}
_OF = {"retry_category": "RETRY_KV_GET", "operation": "Get kill switch status"}
_WHY = ("TimeoutError", "no answer")
AUDIT = "".join(
    json.dumps(event) + "\n"
    for event in (
        *(
            {
                "event_type": "retry_attempt", **_OF, "attempt_number": number, "max_attempts": 3,
                "delay_seconds": wait, "exception_type": _WHY[0], "exception_message": _WHY[1], **_ENDS,
                "timestamp": f"2026-11-16T05:30:0{number - 1}.{number - 1}00Z",
            }
            for number, wait in ((1, 1.1), (2, 2.1))
        ),
        {
            "event_type": "retry_exhausted", **_OF, "total_attempts": 3, "final_exception_type": _WHY[0],
            "final_exception_message": _WHY[1], **_ENDS, "timestamp": "2026-11-16T05:30:03.200Z",
        },
    )
)  # fmt: skip

#: Said once, for all commands.
COMMON = {"--json", "--help", "-h", "--provider", "--store"}
#: Said once, for all commands that record a decision.
COMMON |= {"--sign-with", "--prepare", "--signed", "--token-file"}


def leaves(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, LazyGroup):
        return [(path, command)]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found += leaves(inner, f"{path} {name}")
    return found


COMMANDS = dict(leaves(root, "oncemore"))


def section(name: str) -> str:
    found = re.search(rf"(?ms)^## {re.escape(name)}$(.*?)(?=^## |\Z)", PAGE)
    return found[1] if found else ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_section_that_names_every_option(name: str) -> None:
    text = section(name)
    assert text, f"docs/reference/cli.md has no section '## {name}'"
    options = {one for param in COMMANDS[name].params for one in param.opts if one.startswith("--")}
    assert {option for option in options - COMMON if option not in text} == set()
    assert f"[`{name}`](#{name.replace(' ', '-')})" in PAGE, "it is missing in the table at the top"


def test_no_section_is_about_a_command_that_is_gone() -> None:
    assert set(re.findall(r"(?m)^## (oncemore .+)$", PAGE)) == COMMANDS.keys()


def examples() -> list[tuple[str, list[str]]]:
    """The commands in the page's text blocks with the lines shown below them."""
    blocks = re.findall(r"(?ms)^```text\n\$ (.*?)^```", PAGE)
    found = []
    for block in blocks:
        command, _, shown = re.sub(r"\\\n\s+", "", block).partition("\n")
        found.append((command, [line for line in shown.splitlines() if line.strip(" …")]))
    return found


@pytest.mark.parametrize(
    ("command", "shown"), examples(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_an_example_shows_is_what_it_prints(
    command: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ONCEMORE_POLICY_ROOT", "ONCEMORE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    tmp_path.joinpath("oncemore.toml").touch()
    store_golden(tmp_path / ".oncemore" / "log.db")
    tmp_path.joinpath("audit.jsonl").write_text(AUDIT, encoding="utf-8")
    tmp_path.joinpath("policies").mkdir()
    tmp_path.joinpath("policies", "mine.yaml").write_text(
        'version: "1"\nprofile: mine\nretry_policy:\n  max_attempt: 6\n  base_delay_s: -1\n'
    )
    program, *words = shlex.split(command)
    assert program == "oncemore"
    with CliRunner(env={"NO_COLOR": "1", "COLUMNS": "80"}).isolation() as (out, _, _):
        cli.run_command(words)
        printed = out.getvalue().decode().splitlines()
    assert [line for line in shown if line.removesuffix(" …") not in "\n".join(printed)] == []


def test_the_exit_codes_on_the_page_are_those_of_the_program() -> None:
    table = dict(re.findall(r"(?m)^\| (\d+) \| (.+) \|$", PAGE))
    assert table.keys() == {"0", str(cli.EXIT_NO), str(cli.EXIT_USAGE), str(cli.EXIT_INTERRUPTED)}
