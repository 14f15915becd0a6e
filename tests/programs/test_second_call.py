"""A second call of the same key returns the same outcome and runs nothing."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.programs.conftest import RAN

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox


def test_a_second_call_of_a_finished_program_replays_its_output(sandbox: ExecSandbox) -> None:
    first, second = (sandbox.run("--key", "k", "--", *RAN) for _ in range(2))
    assert sandbox.read_runs() == ["ran"]
    assert (first.returncode, first.stdout) == (second.returncode, second.stdout) == (0, b"out\n")
    assert first.stderr.endswith(b"err\n")  # after the remark that a log was created
    assert re.fullmatch(rb"oncemore: not run: this work was completed at [\d :-]+\nerr\n", second.stderr)


def test_quiet_prints_nothing_the_first_time_and_later(sandbox: ExecSandbox) -> None:
    sandbox.run("--key", "other", "--", "true")
    for _ in range(2):
        done = sandbox.run("--key", "k", "--quiet", "--", *RAN)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sandbox.read_runs() == ["ran"]


def test_a_failed_program_fails_the_same_way_until_a_rerun_with_a_reason(sandbox: ExecSandbox) -> None:
    words = ("--key", "k", "--fail-on-exit", "3", "--", "sh", "-c", 'echo ran >> "$RAN"; echo out; exit 3')
    first, second = sandbox.run(*words), sandbox.run(*words)
    assert (first.returncode, first.stdout) == (second.returncode, second.stdout) == (3, b"out\n")
    assert b"failed after 1 attempt" in second.stderr
    assert b"--rerun --reason" in second.stderr
    assert sandbox.read_runs() == ["ran"]
    assert sandbox.run("--rerun", *words).returncode == 125
    again = sandbox.run("--rerun", "--reason", "the disk is there now", *words)
    assert (again.returncode, sandbox.read_runs()) == (3, ["ran", "ran"])


def test_another_command_under_the_same_key_is_refused(sandbox: ExecSandbox) -> None:
    sandbox.run("--key", "k", "--", *RAN)
    other = sandbox.run("--key", "k", "--", "sh", "-c", 'echo other >> "$RAN"')
    assert other.returncode == 122
    assert b"belongs to another command" in other.stderr
    assert sandbox.read_runs() == ["ran"]


def test_names_tenants_and_buckets_keep_keys_apart_and_args_can_be_the_key(sandbox: ExecSandbox) -> None:
    for words in ([], ["--name", "nightly"], ["--tenant", "t-1"], ["--bucket", "day"]):
        assert sandbox.run("--key", "k", *words, "--", *RAN).returncode == 0
    assert sandbox.read_runs() == ["ran"] * 4
    for last in ("1", "2", "1"):
        sandbox.run("--key-from-args", "--", *RAN, last)
    assert sandbox.read_runs() == ["ran"] * 6


def test_changed_inputs_conflict_under_a_key_and_are_new_work_from_args(sandbox: ExecSandbox) -> None:
    data = sandbox.folder / "data.csv"
    data.write_text("1")
    by_args = ("--key-from-args", "--input", "data.csv", "--", *RAN)
    by_key = ("--key", "k", "--input", "data.csv", "--", *RAN)
    assert [sandbox.run(*words).returncode for words in (by_args, by_key)] == [0, 0]
    data.write_text("2")
    assert [sandbox.run(*words).returncode for words in (by_args, by_key)] == [0, 122]
    assert sandbox.read_runs() == ["ran"] * 3
    assert sandbox.run("--key", "x", "--input", "gone.csv", "--", *RAN).returncode == 125


def test_if_running_decides_whether_a_call_waits_for_another_process(sandbox: ExecSandbox) -> None:
    words = ("--", "sh", "-c", 'echo ran >> "$RAN"; while [ ! -e go ]; do sleep 0.05; done; echo out')
    first = sandbox.start("--key", "k", *words)
    sandbox.wait_for_lines(1)
    refused = sandbox.run("--key", "k", "--if-running", "fail", *words)
    assert (refused.returncode, refused.stdout) == (119, b"")
    waits = sandbox.start("--key", "k", *words, stdout=subprocess.PIPE)
    (sandbox.folder / "go").touch()
    out, _ = waits.communicate(timeout=60)
    assert (first.wait(60), waits.returncode, out) == (0, 0, b"out\n")
    assert sandbox.read_runs() == ["ran"]


def test_a_wait_longer_than_max_wait_is_deferred_with_its_due_time(sandbox: ExecSandbox) -> None:
    words = (
        "--key",
        "k",
        "--retry-on-exit",
        "75",
        "--wait",
        "1h",
        "--max-wait",
        "1m",
        "--",
        "sh",
        "-c",
        'echo ran >> "$RAN"; exit 75',
    )
    report = sandbox.report(*words)
    assert (report["exit_code"], report["by"], report["status"], report["ran"]) == (
        120,
        "oncemore",
        "SOFT_FAIL",
        True,
    )
    assert report["until"] > 1_700_000_000
    again = sandbox.run(*words)
    assert again.returncode == 120
    assert b"is deferred until 20" in again.stderr
    assert sandbox.read_runs() == ["ran"]


@pytest.mark.parametrize(("word", "code", "ran"), [("applied", 0, 1), ("not-applied", 0, 2)])
def test_a_held_run_is_settled_by_an_operator_with_a_reason(
    sandbox: ExecSandbox, word: str, code: int, ran: int
) -> None:
    words = ("--key", "k", "--", "sh", "-c", 'echo ran >> "$RAN"; test -e fixed')
    assert [sandbox.run(*words).returncode for _ in range(2)] == [1, 1]
    assert sandbox.read_runs() == ["ran"]
    held = sandbox.report(*words)
    assert (held["status"], held["reason"], held["ran"]) == ("SOFT_FAIL", "outcome_unknown", False)
    assert "--settle" in held["hint"]
    (sandbox.folder / "fixed").touch()
    assert sandbox.run("--settle", word, *words).returncode == 125
    assert sandbox.run("--settle", word, "--reason", "looked at the ledger", *words).returncode == code
    assert len(sandbox.read_runs()) == ran
    assert sandbox.run(*words).returncode == code
    assert sandbox.run("--settle", word, "--reason", "again", *words).returncode == 125  # nothing is held
