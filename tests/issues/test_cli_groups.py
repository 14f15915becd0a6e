"""Groups of commands about a store take `--json` and `--store` as documented (issue 15, section 5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import oncemore
from oncemore import cli
from tests.fixtures import _isolated

__all__ = ["_isolated"]

#: Each group, the command that it stands for without one, and what that says of an empty store.
GROUPS: list[tuple[str, str, Any]] = [
    ("limits breakers", "list", []),
    ("limits rates", "list", []),
    ("limits cooldowns", "list", []),
    ("quarantine", "list", []),
    ("control switch", "status", {"is_stopped": False, "switches": [], "moved_to": ""}),
]


@pytest.fixture(autouse=True)
def _store() -> None:
    with oncemore.open("log.db") as engine:
        engine.store.load_head("run/none")


@pytest.mark.parametrize(("group", "command", "said"), GROUPS)
def test_a_group_takes_the_options_of_its_usual_command(
    group: str, command: str, said: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    forms = (
        ["--json", "--store", "log.db"],
        ["--store=log.db", "--json"],
        [command, "--json", "--store", "log.db"],
        ["--json", "--store", "log.db", command],
        ["--store", "log.db", command, "--json"],
    )
    for words in forms:
        assert cli.run_command([*group.split(), *words]) == 0, words
        out, error = capfd.readouterr()
        assert (json.loads(out), error) == (said, ""), words
    assert cli.run_command([*group.split(), "--store", "log.db"]) == 0
    assert capfd.readouterr().out


@pytest.mark.parametrize("group", [group for group, _, _ in GROUPS])
def test_a_store_that_is_not_there_is_named_as_json(group: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command([*group.split(), "--json", "--store", "gone.db"]) == 2
    out, error = capfd.readouterr()
    assert (out, "gone.db" in json.loads(error)["error"]["message"]) == ("", True)


def test_options_before_a_command_reach_it(capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "control",
        "switch",
        "--store",
        "log.db",
        "--json",
        "on",
        "--reason",
        "status",
        "--by",
        "operator",
    ]
    assert cli.run_command(words) == 0
    assert json.loads(capfd.readouterr().out)["reason"] == "status"
    assert (
        cli.run_command(["control", "switch", "--store", "log.db"]) == 1
    )  # as `switch status` does while one is on


def test_help_and_mistakes_stay_those_of_the_group(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["limits", "breakers", "--help"]) == 0
    assert "Commands:" in capfd.readouterr().out
    assert cli.run_command(["limits", "breakers", "lst"]) == 2
    assert "list" in capfd.readouterr().err
