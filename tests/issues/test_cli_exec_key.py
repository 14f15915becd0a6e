"""`oncemore exec` computes its key from the raw command line; what it shows is masked (issue 15, 1.1)."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from tests.fixtures import _isolated
from tests.programs.conftest import sandbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.programs.conftest import ExecSandbox

    Exec = Callable[..., tuple[int, str]]

__all__ = ["_isolated", "sandbox"]

SAY = ("sh", "-c", 'printf "%s\\n" "$*" >> ran.txt', "sh")
PLACE = "52.5201,13.4049"
#: Command lines that differ only in a part that the display masks, escapes or shortens.
PAIRS = [
    pytest.param((PLACE,), ("48.8566,2.3522",), id="coordinates"),
    pytest.param(("https://h/?code=DE",), ("https://h/?code=FR",), id="query"),
    pytest.param(("--session-id", "1"), ("--session-id", "2"), id="session id"),
    pytest.param(("--password=abc",), ("--password=abd",), id="password"),
    pytest.param((os.fsdecode(b"\xff"),), ("\\xff",), id="byte 0xff"),
    pytest.param(("a b",), ("a", "b"), id="words"),
    pytest.param((*"x" * 250, "a"), (*"x" * 250, "b"), id="many words"),
]


@pytest.fixture
def run_exec(tmp_path: Path) -> Exec:
    """Run `oncemore exec` in this process; returns its exit code and the run's key."""

    def run(*words: str) -> tuple[int, str]:
        report = tmp_path / "report.json"
        code = cli.run_command(["exec", "--report", str(report), "--quiet", *words])
        told: dict[str, Any] = json.loads(report.read_text())
        return code, told["key"]

    return run


def ran(folder: Path) -> list[str]:
    return [os.fsdecode(line) for line in (folder / "ran.txt").read_bytes().splitlines()]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_commands_that_differ_in_a_masked_part_are_different_work(
    run_exec: Exec, tmp_path: Path, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    keys = [run_exec("--key-from-args", "--", *SAY, *words)[1] for words in (one, other, one)]
    assert keys[0] == keys[2] != keys[1]
    assert ran(tmp_path) == [" ".join(one), " ".join(other)]
    codes = [run_exec("--key", "k", "--", *SAY, *words)[0] for words in (one, one, other)]
    assert codes == [0, 0, 122]


def test_variables_and_folder_of_the_command_line_are_part_of_the_key(
    run_exec: Exec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--env` by name and value, a secret one by its name alone; `--cwd` by its text; nothing inherited."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "data.txt").write_text("1")

    def key_of(*words: str) -> str:
        code, key = run_exec("--key-from-args", *words, "--", "true")
        assert code == 0
        return key

    different = [
        (),
        ("--env", "REGION=DE"),
        ("--env", "REGION=FR"),
        ("--env", "REGION=FR", "--env", "A=1"),
        ("--cwd", "inner"),
        ("--cwd", "./inner"),
        ("--input", "data.txt"),
        ("--stdin", "data.txt"),
    ]
    keys = [key_of(*words) for words in different]
    assert len(set(keys)) == len(different)
    # The order of --env does not count; of one name, the last value is in effect.
    assert key_of("--env", "A=1", "--env", "REGION=DE", "--env", "REGION=FR") == keys[3]
    secret = ("--secret-env", "TOKEN")
    tokens = {key_of(*secret, "--env", f"TOKEN={token}") for token in ("Tr0ub4dor-3", "correct-horse")}
    assert len(tokens) == 1
    assert not tokens & set(keys)
    monkeypatch.setenv("TOKEN", "correct-horse")
    assert key_of(*secret) == key_of() == keys[0]


def test_another_variable_or_folder_under_the_same_key_is_refused(
    run_exec: Exec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "inner").mkdir()
    first = ("--key", "k", "--env", "REGION=DE")
    assert run_exec(*first, "--", "true")[0] == 0
    for words in (("--key", "k", "--env", "REGION=FR"), (*first, "--cwd", "inner")):
        assert run_exec(*words, "--", "true")[0] == 122
    assert "belongs to another command, or to other inputs, --env or --cwd" in capfd.readouterr().err


def test_the_log_shows_a_masked_command_and_a_digest_that_only_its_store_computes(
    run_exec: Exec, tmp_path: Path
) -> None:
    found = []
    for name in ("a.db", "b.db"):
        _, key = run_exec("--store", name, "--key-from-args", "--", *SAY, "--password=hunter-0815")
        with oncemore.open(tmp_path / name) as engine:
            bodies = [json.loads(entry.body or b"{}") for entry in engine.store.read_entries(f"run/{key}")]
        arguments = bodies[0]["arguments"]
        assert arguments["command"][-1] == "--password=***"
        assert "hunter-0815" not in json.dumps(bodies)
        found.append((key, arguments["command_hmac"]))
    assert len({key for key, _ in found}) == len({digest for _, digest in found}) == 2


def test_keys_are_the_same_in_a_backup_and_in_a_copy(run_exec: Exec, tmp_path: Path) -> None:
    words = ("--key-from-args", "--", *SAY, PLACE)
    assert run_exec("--store", "a.db", *words)[0] == 0
    assert cli.run_command(["store", "backup", "b.db", "--store", "a.db"]) == 0
    assert (
        cli.run_command(
            ["store", "accept-copy", "--acknowledge", "--reason", "a disk is lost", "--store", "b.db"]
        )
        == 0
    )
    assert cli.run_command(["store", "move", "a.db", "c.db", "--reason", "a larger disk"]) == 0
    assert {run_exec("--store", name, *words) for name in ("b.db", "c.db")} == {
        run_exec("--store", "a.db", *words)
    }
    assert ran(tmp_path) == [PLACE]
    for command in (["store", "doctor", "--rebuild"], ["store", "verify"]):
        assert cli.run_command([*command, "--store", "c.db"]) == 0


def test_a_log_that_has_moved_gets_no_secret(run_exec: Exec, capfd: pytest.CaptureFixture[str]) -> None:
    with oncemore.open("a.db") as engine:
        engine.switches.on(reason="there is something to copy")
        engine.switches.off(reason="done")
    assert cli.run_command(["store", "move", "a.db", "b.db", "--reason", "moved"]) == 0
    assert run_exec("--store", "a.db", "--key-from-args", "--", *SAY)[0] == 122
    assert "has moved to" in capfd.readouterr().err
    assert run_exec("--store", "b.db", "--key-from-args", "--", *SAY)[0] == 0


def test_first_calls_at_once_agree_on_the_secret(sandbox: ExecSandbox) -> None:
    words = ("--key-from-args", "--", *SAY, PLACE)
    started = [sandbox.start(*words, stderr=subprocess.PIPE) for _ in range(3)]
    for process in started:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert ran(sandbox.folder) == [PLACE]
