"""The meaning of exit codes and output, and the exit code that is passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox

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
def test_exit_codes_are_judged_by_the_lists_and_the_effect(
    sandbox: ExecSandbox, effect: str, options: tuple[str, ...], code: int, attempts: int, status: str
) -> None:
    report = sandbox.report("--key", "k", "--effect", effect, "--wait", "0.01", *options, *ends(code))
    assert (report["exit_code"], report["by"], report["status"]) == (code, "program", status)
    assert (report["attempts"], len(sandbox.read_runs())) == (attempts, attempts)


def test_a_program_that_succeeds_at_attempt_3_sees_its_attempt_fence_and_key(
    sandbox: ExecSandbox,
) -> None:
    script = 'echo "$ONCEMORE_ATTEMPT $ONCEMORE_FENCE $ONCEMORE_KEY $ONCEMORE_RUN_ID" >> "$RAN"; '
    script += '[ "$ONCEMORE_ATTEMPT" = 3 ]'
    words = ("--correlation-id", "c-7", "--key", "k", "--effect", "idempotent", "--wait", "0.01")
    report = sandbox.report(*words, "--", "sh", "-c", script)
    assert report["exit_code"] == 0
    rows = [line.split() for line in sandbox.read_runs()]
    assert [row[:2] for row in rows] == [["1", "1"], ["2", "2"], ["3", "3"]]
    assert {row[2] for row in rows} == {report["key"]}
    assert {row[3] for row in rows} == {report["run_id"]}


@pytest.mark.parametrize(
    ("printed", "pattern", "attempts"),
    [
        ("head -c 300000 /dev/zero; echo; echo try again >&2; head -c 300000 /dev/zero", "^try again$", 2),
        ("echo gone for good", "temporarily", 1),
    ],
)
def test_a_matching_line_of_output_leads_to_another_attempt(
    sandbox: ExecSandbox, printed: str, pattern: str, attempts: int
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
    assert sandbox.run(*words, "--", "sh", "-c", script).returncode == 1
    assert len(sandbox.read_runs()) == attempts


def test_matching_output_does_not_turn_a_success_into_a_failure(sandbox: ExecSandbox) -> None:
    assert sandbox.run("--key", "k", "--retry-on-output", "oops", "--", "echo", "oops").returncode == 0


def test_an_endless_expression_is_stopped_with_a_note(sandbox: ExecSandbox) -> None:
    script = f"echo {'a' * 60}b; exit 4"
    done = sandbox.run("--key", "k", "--retry-on-output", "(a+)+$", "--", "sh", "-c", script)
    assert done.returncode == 4
    assert b"--retry-on-output took more than" in done.stderr


def test_a_program_killed_by_a_signal_has_the_exit_code_of_shells(sandbox: ExecSandbox) -> None:
    report = sandbox.report(
        "--key", "k", "--attempts", "1", "--effect", "pure", "--", "sh", "-c", "kill -SEGV $$"
    )
    assert (report["exit_code"], report["by"], report["status"]) == (139, "program", "HARD_FAIL")


def test_a_policy_can_name_exit_codes(sandbox: ExecSandbox) -> None:
    (sandbox.folder / "mine.yaml").write_text(
        'version: "1"\nprofile: mine\nretry_policy:\n  max_attempts: 4\n  base_delay_s: 0.01\n'
        "classify:\n  retryable: [EXIT_7]\n  non_retryable: [EXIT_8]\n"
    )
    words = ("--policy", "mine.yaml", "--effect", "idempotent")
    assert sandbox.run("--key", "7", *words, *ends(7)).returncode == 7
    assert len(sandbox.read_runs()) == 4
    assert sandbox.run("--key", "8", *words, *ends(8)).returncode == 8
    assert len(sandbox.read_runs()) == 5


def test_the_example_of_the_readme_runs_as_printed(sandbox: ExecSandbox) -> None:
    script = sandbox.folder / "monthly-report.sh"
    script.write_text("#!/bin/sh\necho 1,234 rows\n")
    script.chmod(0o755)
    words = ("--key", "report-2026-11", "--policy", "p2-batch-reporting", "--", "./monthly-report.sh")
    for _ in range(2):
        done = sandbox.run(*words)
        assert (done.returncode, done.stdout) == (0, b"1,234 rows\n")
