"""The same key again: the same answer, and nothing is run."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.exec.conftest import RAN

if TYPE_CHECKING:
    from tests.exec.conftest import Desk


def test_a_program_that_is_done_is_not_run_again_and_says_the_same(desk: Desk) -> None:
    first, second = (desk.run("--key", "k", "--", *RAN) for _ in range(2))
    assert desk.ran() == ["ran"]
    assert (first.returncode, first.stdout) == (second.returncode, second.stdout) == (0, b"out\n")
    assert first.stderr.endswith(b"err\n")  # after the remark that a log was created
    assert re.fullmatch(rb"oncemore: nothing was run: this work is done since [\d :-]+\nerr\n", second.stderr)


def test_quiet_prints_nothing_the_first_time_and_later(desk: Desk) -> None:
    desk.run("--key", "other", "--", "true")
    for _ in range(2):
        done = desk.run("--key", "k", "--quiet", "--", *RAN)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert desk.ran() == ["ran"]


def test_a_program_that_failed_for_good_fails_the_same_way_until_a_rerun_with_a_reason(desk: Desk) -> None:
    words = ("--key", "k", "--fail-on-exit", "3", "--", "sh", "-c", 'echo ran >> "$RAN"; echo out; exit 3')
    first, second = desk.run(*words), desk.run(*words)
    assert (first.returncode, first.stdout) == (second.returncode, second.stdout) == (3, b"out\n")
    assert b"failed after 1 attempt" in second.stderr
    assert b"--rerun --reason" in second.stderr
    assert desk.ran() == ["ran"]
    assert desk.run("--rerun", *words).returncode == 125
    again = desk.run("--rerun", "--reason", "the disk is there now", *words)
    assert (again.returncode, desk.ran()) == (3, ["ran", "ran"])


def test_another_command_under_the_same_key_is_refused(desk: Desk) -> None:
    desk.run("--key", "k", "--", *RAN)
    other = desk.run("--key", "k", "--", "sh", "-c", 'echo other >> "$RAN"')
    assert other.returncode == 122
    assert b"belongs to another command" in other.stderr
    assert desk.ran() == ["ran"]


def test_names_tenants_and_buckets_keep_keys_apart_and_args_can_be_the_key(desk: Desk) -> None:
    for words in ([], ["--name", "nightly"], ["--tenant", "t-1"], ["--bucket", "day"]):
        assert desk.run("--key", "k", *words, "--", *RAN).returncode == 0
    assert desk.ran() == ["ran"] * 4
    for last in ("1", "2", "1"):
        desk.run("--key-from-args", "--", *RAN, last)
    assert desk.ran() == ["ran"] * 6


def test_inputs_count_for_a_key_that_is_given_they_conflict_for_args_they_are_new_work(desk: Desk) -> None:
    data = desk.folder / "data.csv"
    data.write_text("1")
    by_args = ("--key-from-args", "--input", "data.csv", "--", *RAN)
    by_key = ("--key", "k", "--input", "data.csv", "--", *RAN)
    assert [desk.run(*words).returncode for words in (by_args, by_key)] == [0, 0]
    data.write_text("2")
    assert [desk.run(*words).returncode for words in (by_args, by_key)] == [0, 122]
    assert desk.ran() == ["ran"] * 3
    assert desk.run("--key", "x", "--input", "gone.csv", "--", *RAN).returncode == 125


def test_while_another_process_is_at_it_a_call_waits_or_ends_as_told(desk: Desk) -> None:
    words = ("--", "sh", "-c", 'echo ran >> "$RAN"; while [ ! -e go ]; do sleep 0.05; done; echo out')
    first = desk.start("--key", "k", *words)
    desk.await_lines(1)
    refused = desk.run("--key", "k", "--if-running", "fail", *words)
    assert (refused.returncode, refused.stdout) == (119, b"")
    waits = desk.start("--key", "k", *words, stdout=subprocess.PIPE)
    (desk.folder / "go").touch()
    out, _ = waits.communicate(timeout=60)
    assert (first.wait(60), waits.returncode, out) == (0, 0, b"out\n")
    assert desk.ran() == ["ran"]


def test_a_wait_that_is_too_long_is_parked_and_says_until_when(desk: Desk) -> None:
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
    told = desk.report(*words)
    assert (told["exit_code"], told["by"], told["status"], told["ran"]) == (
        120,
        "oncemore",
        "SOFT_FAIL",
        True,
    )
    assert told["until"] > 1_700_000_000
    again = desk.run(*words)
    assert again.returncode == 120
    assert b"is parked until 20" in again.stderr
    assert desk.ran() == ["ran"]


@pytest.mark.parametrize(("word", "code", "ran"), [("applied", 0, 1), ("not-applied", 0, 2)])
def test_what_is_held_is_settled_by_a_person_with_a_reason(
    desk: Desk, word: str, code: int, ran: int
) -> None:
    words = ("--key", "k", "--", "sh", "-c", 'echo ran >> "$RAN"; test -e fixed')
    assert [desk.run(*words).returncode for _ in range(2)] == [1, 1]
    assert desk.ran() == ["ran"]
    held = desk.report(*words)
    assert (held["status"], held["reason"], held["ran"]) == ("SOFT_FAIL", "outcome_unknown", False)
    assert "--settle" in held["hint"]
    (desk.folder / "fixed").touch()
    assert desk.run("--settle", word, *words).returncode == 125
    assert desk.run("--settle", word, "--reason", "looked at the ledger", *words).returncode == code
    assert len(desk.ran()) == ran
    assert desk.run(*words).returncode == code
    assert desk.run("--settle", word, "--reason", "again", *words).returncode == 125  # nothing is held
