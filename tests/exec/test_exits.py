"""What exit codes and output mean, and what is passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.exec.conftest import Desk

ENDS = 'echo ran >> "$RAN"; exit'


def ends(code: int) -> tuple[str, ...]:
    return "--", "sh", "-c", f"{ENDS} {code}"


@pytest.mark.parametrize(
    ("effect", "options", "code", "attempts", "status"),
    [
        ("idempotent", (), 1, 3, "HARD_FAIL"),
        ("pure", ("--retry-on-exit", "75,100-110"), 1, 1, "HARD_FAIL"),
        ("idempotent", ("--ok-exit", "2"), 2, 1, "COMPLETE"),
        ("once", (), 1, 1, "SOFT_FAIL"),
        ("once", ("--retry-on-exit", "75"), 75, 3, "HARD_FAIL"),
    ],
)
def test_exit_codes_are_read_by_lists_and_effect(
    desk: Desk, effect: str, options: tuple[str, ...], code: int, attempts: int, status: str
) -> None:
    told = desk.report("--key", "k", "--effect", effect, "--wait", "0.01", *options, *ends(code))
    assert (told["exit_code"], told["by"], told["status"]) == (code, "program", status)
    assert (told["attempts"], len(desk.ran())) == (attempts, attempts)


def test_a_program_that_passes_at_the_third_attempt_ends_well_and_each_attempt_knows_itself(
    desk: Desk,
) -> None:
    script = 'echo "$ONCEMORE_ATTEMPT $ONCEMORE_FENCE $ONCEMORE_KEY $ONCEMORE_RUN_ID" >> "$RAN"; '
    script += '[ "$ONCEMORE_ATTEMPT" = 3 ]'
    words = ("--correlation-id", "c-7", "--key", "k", "--effect", "idempotent", "--wait", "0.01")
    told = desk.report(*words, "--", "sh", "-c", script)
    assert told["exit_code"] == 0
    rows = [line.split() for line in desk.ran()]
    assert [row[:2] for row in rows] == [["1", "1"], ["2", "2"], ["3", "3"]]
    assert {row[2] for row in rows} == {told["key"]}
    assert {row[3] for row in rows} == {told["run_id"]}


@pytest.mark.parametrize(
    ("printed", "pattern", "attempts"),
    [
        ("head -c 300000 /dev/zero; echo; echo try again >&2; head -c 300000 /dev/zero", "^try again$", 2),
        ("echo gone for good", "temporarily", 1),
    ],
)
def test_a_line_of_output_can_say_that_it_is_worth_another_attempt(
    desk: Desk, printed: str, pattern: str, attempts: int
) -> None:
    words = (
        "--key",
        "k",
        "--retry-on-output",
        "nonesuch",
        "--retry-on-output",
        pattern,
        "--wait",
        "0.01",
        "--attempts",
        "2",
    )
    script = f'echo ran >> "$RAN"; {printed}; exit 1'
    assert desk.run(*words, "--", "sh", "-c", script).returncode == 1
    assert len(desk.ran()) == attempts


def test_output_that_matches_does_not_make_a_success_a_failure(desk: Desk) -> None:
    assert desk.run("--key", "k", "--retry-on-output", "oops", "--", "echo", "oops").returncode == 0


def test_an_expression_that_takes_for_ever_is_given_up_and_told(desk: Desk) -> None:
    script = f"echo {'a' * 60}b; exit 4"
    done = desk.run("--key", "k", "--retry-on-output", "(a+)+$", "--", "sh", "-c", script)
    assert done.returncode == 4
    assert b"--retry-on-output took more than" in done.stderr


def test_a_program_that_a_signal_kills_has_the_code_that_shells_give_it(desk: Desk) -> None:
    told = desk.report("--key", "k", "--attempts", "1", "--effect", "pure", "--", "sh", "-c", "kill -SEGV $$")
    assert (told["exit_code"], told["by"], told["status"]) == (139, "program", "HARD_FAIL")


def test_a_policy_can_name_exit_codes(desk: Desk) -> None:
    (desk.folder / "mine.yaml").write_text(
        'version: "1"\nprofile: mine\nretry_policy:\n  max_attempts: 4\n  base_delay_s: 0.01\n'
        "classify:\n  retryable: [EXIT_7]\n  non_retryable: [EXIT_8]\n"
    )
    words = ("--policy", "mine.yaml", "--effect", "idempotent")
    assert desk.run("--key", "7", *words, *ends(7)).returncode == 7
    assert len(desk.ran()) == 4
    assert desk.run("--key", "8", *words, *ends(8)).returncode == 8
    assert len(desk.ran()) == 5


def test_the_example_of_the_readme_runs_as_printed(desk: Desk) -> None:
    script = desk.folder / "monthly-report.sh"
    script.write_text("#!/bin/sh\necho 1,234 rows\n")
    script.chmod(0o755)
    words = ("--key", "report-2026-11", "--policy", "p2-batch-reporting", "--", "./monthly-report.sh")
    for _ in range(2):
        done = desk.run(*words)
        assert (done.returncode, done.stdout) == (0, b"1,234 rows\n")
