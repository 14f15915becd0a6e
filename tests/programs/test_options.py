"""Usage errors, reports, and secrets that never reach the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from oncemore import cli
from tests.programs.conftest import RAN

if TYPE_CHECKING:
    from pathlib import Path

    from tests.programs.conftest import ExecSandbox


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--", "true"), 125, "--key"),
        (("--key", "a", "--key-from-args", "--", "true"), 125, "--key"),
        (("--key", "", "--", "true"), 125, "--key takes"),
        (("--key", "a", "--name", "", "--", "true"), 125, "--name takes"),
        (("--key", "a\udcff", "--", "true"), 125, "--key is 'a\\udcff', which is not valid UTF-8"),
        (("--key", "a"), 125, "Missing argument"),
        (("--key", "a", "--bogus", "--", "true"), 125, "--bogus"),
        (("--key", "a", "--timeout", "soon", "--", "true"), 125, "is not a duration"),
        (("--key", "a", "--wait", "1s,x", "--", "true"), 125, "--wait is"),
        (("--key", "a", "--bucket", "fortnight", "--", "true"), 125, "bucket is 'fortnight'"),
        (("--key", "a", "--retry-on-exit", "x", "--", "true"), 125, "--retry-on-exit is 'x'"),
        (("--key", "a", "--retry-on-exit", "1", "--ok-exit", "1", "--", "true"), 125, "1 is in --ok-exit"),
        (("--key", "a", "--retry-on-output", "(", "--", "true"), 125, "is not a regular expression"),
        (("--key", "a", "--policy", "nonesuch", "--", "true"), 125, "nonesuch"),
        (("--key", "a", "--secret-env", "NONESUCH_X", "--", "true"), 125, "that variable is not set"),
        (("--key", "a", "--reason", "x", "--", "true"), 125, "--reason needs"),
        (("--key", "a", "--rerun", "--", "true"), 125, "--reason is missing"),
        (
            ("--key", "a", "--rerun", "--settle", "applied", "--reason", "x", "--", "true"),
            125,
            "give either --settle or --rerun",
        ),
        (("--key", "a", "--rerun", "--reason", "x", "--", "true"), 125, "was never run"),
        (("--key", "a", "--stdin", "gone.txt", "--", "cat"), 125, "gone.txt cannot be read"),
        (("--key", "a", "--cwd", "/no/such", "--", "true"), 126, "--cwd is '/no/such'"),
        (("--key", "a", "--", "nonesuch"), 127, "there is no such command"),
        (("--key", "a", "--", "./nonesuch"), 127, "No such file"),
        (("--key", "a", "--", "/etc/passwd"), 126, "may not be executed"),
    ],
)
def test_a_usage_error_is_one_sentence_and_records_nothing(
    words: tuple[str, ...], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONCEMORE_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run_command(["exec", *words]) == code
    out, err = capfd.readouterr()
    assert (out, message in err) == ("", True), err
    store = tmp_path / ".oncemore" / "log.db"
    if store.exists():
        import oncemore

        with oncemore.open(store) as engine:
            assert [entry for entry in engine.store.read_entries() if entry.entity.startswith("run/")] == []


def test_a_program_may_have_options_with_our_names(sandbox: ExecSandbox) -> None:
    done = sandbox.run("--key", "k", "--", "echo", "--json", "--key", "--help", "--")
    assert (done.returncode, done.stdout) == (0, b"--json --key --help --\n")
    bare = sandbox.run("--key", "l", "echo", "-n", "--json")  # the first word that is no option begins it
    assert (bare.returncode, bare.stdout) == (0, b"--json")
    wrong = sandbox.run("--key", "m", "--timeout", "x", "--", "echo", "--json")
    assert wrong.stderr.startswith(b"oncemore: ")


def test_json_is_our_only_line_on_standard_error(sandbox: ExecSandbox) -> None:
    policy = sandbox.write_policy("after_failure: raise")
    words = ("--key", "k", "--json", "--effect", "idempotent", "--wait", "0.01", "--attempts", "2",
             "--policy", policy, "--")  # fmt: skip
    done = sandbox.run(*words, "sh", "-c", "echo err >&2; exit 5")
    *before, last = done.stderr.decode().splitlines()
    report = json.loads(last)
    assert [line for line in before if "created a new store" not in line] == ["err", "err"]
    assert (report["exit_code"], report["by"], report["ran"], report["attempts"]) == (5, "program", True, 2)
    assert report["program"]["stderr"]["bytes"] == 4
    again = json.loads(sandbox.run(*words, "sh", "-c", "echo err >&2; exit 5").stderr.splitlines()[-1])
    assert (again["exit_code"], again["ran"], again["key"]) == (5, False, report["key"])


def test_a_program_gets_its_folder_its_variables_and_an_empty_stdin(sandbox: ExecSandbox) -> None:
    (sandbox.folder / "inner").mkdir()
    (sandbox.folder / "data.txt").write_text("given\n")
    words = ("--cwd", "inner", "--env", "COLOUR=blue")
    script = 'pwd; echo "$COLOUR"; cat'
    done = sandbox.run("--key", "k", *words, "--", "sh", "-c", script)
    assert done.stdout.decode().splitlines() == [str(sandbox.folder / "inner"), "blue"]
    (sandbox.folder / "inner" / "tool").write_text('#!/bin/sh\necho "$0"\n')
    (sandbox.folder / "inner" / "tool").chmod(0o755)
    assert sandbox.run("--key", "m", *words, "--", "./tool").stdout == b"./tool\n"
    done = sandbox.run("--key", "l", "--stdin", "data.txt", "--", "cat")
    assert done.stdout == b"given\n"
    (sandbox.folder / "data.txt").write_text("other\n")
    assert sandbox.run("--key", "l", "--stdin", "data.txt", "--", "cat").returncode == 122


def test_every_attempt_reads_standard_input_from_the_start(sandbox: ExecSandbox) -> None:
    (sandbox.folder / "data.txt").write_text("given\n")
    words = ("--effect", "idempotent", "--wait", "0.01", "--attempts", "2", "--stdin", "data.txt")
    done = sandbox.run("--key", "k", *words, "--", "sh", "-c", 'cat; [ "$ONCEMORE_ATTEMPT" = 2 ]')
    assert done.stdout == b"given\ngiven\n"


def test_no_secret_reaches_the_log_or_a_message(sandbox: ExecSandbox) -> None:
    secret = "Tr0ub4dor-and-3"
    words = (
        "--key",
        "k",
        "--secret-env",
        "DB_WORD",
        "--env",
        f"OTHER_VALUE={secret}9",
        "--keep-output",
        "never",
    )
    script = 'echo "$DB_WORD $OTHER_VALUE"; exit 3'
    for _ in range(2):
        done = sandbox.run(
            *words, "--json", "--", "sh", "-c", script, secret, f"--password={secret}9", DB_WORD=secret
        )
        assert done.returncode == 3
        assert secret.encode() not in done.stderr
    for file in (sandbox.folder / ".oncemore").rglob("*"):
        assert file.is_dir() or secret.encode() not in file.read_bytes(), file


def test_the_log_has_the_command_and_its_correlation_id(sandbox: ExecSandbox) -> None:
    import oncemore

    sandbox.run("--key", "k", "--tenant", "t-1", "--", *RAN, ONCEMORE_CORRELATION_ID="outer-7")
    with oncemore.open(sandbox.folder / ".oncemore" / "log.db") as engine:
        first = next(entry for entry in engine.store.read_entries() if entry.entity.startswith("run/"))
        body = json.loads(first.body or b"")
        digest = body["arguments"].pop("command_hmac")
        assert len(bytes.fromhex(digest)) == 32
        assert body["arguments"] == {"key": "k", "command": list(RAN), "inputs": {}}
        assert b"outer-7" in first.header
        assert b"t-1" in first.header


def test_help_shows_every_option_in_a_group(sandbox: ExecSandbox) -> None:
    import subprocess

    from tests.programs.conftest import PROGRAM

    text = subprocess.run(
        [*PROGRAM, "--help"], capture_output=True, text=True, env=sandbox.environment(), check=True
    ).stdout
    assert text.index("Identity:") < text.index("--key TEXT") < text.index("Retries:")
    options = text.partition("Options:")[2].partition("Identity:")[0]
    assert options.split()[0] == "-h," or options.split()[0] == "--help"
