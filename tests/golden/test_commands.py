"""What programs read of a store with --json stays as it is, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.commands import COMMANDS, mask_volatile, print_json
from tests.golden.stored import store_golden

EXPECTED = json.loads((Path(__file__).parent / "commands.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "log.db"
    store_golden(path)
    return path


def test_every_command_has_its_expected_output() -> None:
    assert list(EXPECTED) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_json_of_a_command_is_as_it_was(command: str, golden_store: Path) -> None:
    assert mask_volatile(print_json(command, golden_store)) == EXPECTED[command]


@pytest.mark.parametrize(
    ("document", "masked"),
    [
        ({"left": 5, "name": "x"}, {"left": "int", "name": "x"}),
        ([{"checks": [{"observation": "a"}]}], [{"checks": [{"observation": "str"}]}]),
    ],
)
def test_only_fields_of_the_machine_are_masked(document: Any, masked: Any) -> None:
    assert mask_volatile(document) == masked
