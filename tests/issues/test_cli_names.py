"""Issue 15, 1.5: the command line takes both spellings (NFC and NFD) of a name."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import oncemore
from tests.issues.test_names import NFC, NFD
from tests.shell import run, told

if TYPE_CHECKING:
    from pathlib import Path


def test_the_commands_take_both_spellings(tmp_path: Path) -> None:
    store = str(tmp_path / "log.db")
    with oncemore.open(store), suppress(ConnectionRefusedError):
        oncemore.Breaker(NFC, failures=1, shared=True).call(_refuse)
    given = ("--store", store, "--reason", "test")
    assert run("control", "switch", "on", "--tenant", NFD, "--by", NFD, *given).returncode == 0
    (thrown,) = told("control", "switch", "status", "--store", store, code=1)["switches"]
    assert (thrown["name"], thrown["by"]) == (f"tenant:{NFC}", NFC)
    command = ("exec", "--store", store, "--effect", "idempotent", "--key", "k", "--", "true")
    assert f"tenant:{NFC}" in run(*command[:3], "--tenant", NFC, *command[3:]).stderr
    assert run("control", "switch", "off", "--tenant", NFC, *given).returncode == 0
    assert run(*command[:3], "--tenant", NFD, *command[3:]).returncode == 0
    (row,) = told("runs", "--store", store, "--tenant", NFD)
    assert row["tenant"] == NFC
    assert told("limits", "breakers", "show", NFD, "--store", store)["name"] == NFC


def _refuse() -> None:
    raise ConnectionRefusedError
