"""Programs are ended at their limit and by signals, together with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs.conftest import PROGRAM
from tests.timing import is_process_alive, wait_until

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox

#: Deaf to SIGTERM; with a child in the background, one in a session of its own, and one of a dead parent.
FAMILY = """
trap '' TERM INT HUP
sleep 300 & echo $! >> "$RAN"
setsid sleep 301 & echo $! >> "$RAN"
(setsid sh -c 'trap "" TERM; echo $$ >> "$RAN"; while :; do sleep 1; done' &)
echo $$ >> "$RAN"
while :; do sleep 1; done
"""


def pids(sandbox: ExecSandbox) -> list[int]:
    return [int(line) for line in sandbox.wait_for_lines(4)]


def all_gone(found: list[int]) -> None:
    wait_until(lambda: not any(map(is_process_alive, found)), f"the end of {found}", 15)


@pytest.mark.parametrize(
    ("effect", "code", "status"), [("pure", 124, "HARD_FAIL"), ("once", 124, "SOFT_FAIL")]
)
def test_the_time_limit_ends_the_program_and_all_its_descendants(
    sandbox: ExecSandbox, effect: str, code: int, status: str
) -> None:
    policy = sandbox.write_policy("after_failure: raise")
    words = ("--key", "k", "--timeout", "1.5s", "--grace", "0.3s", "--attempts", "1", "--effect", effect,
             "--policy", policy)  # fmt: skip
    report = sandbox.report(*words, "--", "sh", "-c", FAMILY)
    found = pids(sandbox)
    assert [pid for pid in found if is_process_alive(pid)] == []  # when we are report, it has happened
    assert (report["exit_code"], report["by"], report["status"]) == (code, "oncemore", status)
    assert report["program"]["ended_by"] == "limit"
    assert sandbox.run(*words, "--", "sh", "-c", FAMILY).returncode == code
    assert len(sandbox.read_runs()) == 4


def test_a_program_that_handles_sigterm_gets_its_grace_period(sandbox: ExecSandbox) -> None:
    script = 'trap "echo bye; exit 0" TERM; echo $$ >> "$RAN"; while :; do sleep 0.05; done'
    words = ("--key", "k", "--timeout", "1s", "--grace", "30s", "--attempts", "1", "--effect", "pure")
    began = time.monotonic()
    done = sandbox.run(*words, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (
        124,
        b"bye\n",
    )  # too late is too late, whatever it says of itself
    assert time.monotonic() - began < 20


def test_timeout_limits_one_attempt_and_total_timeout_limits_all(sandbox: ExecSandbox) -> None:
    script = 'echo ran >> "$RAN"; [ "$ONCEMORE_ATTEMPT" = 2 ] || sleep 60'
    words = ("--effect", "idempotent", "--wait", "0.01", "--grace", "0.2s")
    assert sandbox.run("--key", "a", "--timeout", "1s", *words, "--", "sh", "-c", script).returncode == 0
    assert sandbox.read_runs() == ["ran", "ran"]
    report = sandbox.report("--key", "b", "--total-timeout", "1s", *words, "--", "sh", "-c", "sleep 60")
    assert (report["exit_code"], report["attempts"], report["status"]) == (124, 1, "HARD_FAIL")


def test_processes_left_behind_are_ended_unless_leave_running_is_given(sandbox: ExecSandbox) -> None:
    script = '(setsid sleep 300 & echo $! >> "$RAN"); echo out'
    done = sandbox.run("--key", "a", "--grace", "0.5s", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, b"out\n")
    assert b"1 background process(es) of the program were ended" in done.stderr
    assert not is_process_alive(int(sandbox.read_runs()[0]))
    stays = sandbox.run("--key", "b", "--leave-running", "--", "sh", "-c", script)
    pid = int(sandbox.read_runs()[1])
    assert (stays.returncode, is_process_alive(pid)) == (0, True)
    assert {file.name for file in Path(f"/proc/{pid}/fd").iterdir()} == {
        "0",
        "1",
        "2",
    }  # nothing of ours: no lock, no socket
    os.kill(pid, signal.SIGKILL)


def test_output_of_background_processes_is_waited_for(sandbox: ExecSandbox) -> None:
    done = sandbox.run("--key", "k", "--", "sh", "-c", "(sleep 0.5; echo late) & echo early")
    assert (done.returncode, done.stdout) == (0, b"early\nlate\n")


@pytest.mark.parametrize(
    ("number", "effect", "then", "runs"),
    [(signal.SIGINT, "idempotent", 0, 2), (signal.SIGTERM, "once", 121, 1), (signal.SIGHUP, "once", 121, 1)],
)
def test_a_signal_is_forwarded_recorded_and_gives_the_exit_code(
    sandbox: ExecSandbox, number: signal.Signals, effect: str, then: int, runs: int
) -> None:
    script = f'trap "echo heard; exit 0" {number.name[3:]}; echo ran >> "$RAN"; '
    script += "[ -e go ] || while :; do sleep 0.05; done"
    words = ("--key", "k", "--effect", effect, "--", "sh", "-c", script)
    program = sandbox.start(*words, stdout=subprocess.PIPE)
    sandbox.wait_for_lines(1)
    program.send_signal(number)
    out, _ = program.communicate(timeout=60)
    assert (program.returncode, out) == (128 + number, b"heard\n")
    (sandbox.folder / "go").touch()
    assert sandbox.run(*words).returncode == then
    assert len(sandbox.read_runs()) == runs


def test_the_second_signal_kills_without_a_grace_period(sandbox: ExecSandbox) -> None:
    program = sandbox.start("--key", "k", "--grace", "10m", "--", "sh", "-c", FAMILY)
    found = pids(sandbox)
    program.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert is_process_alive(found[3])
    program.send_signal(signal.SIGTERM)
    assert program.wait(30) == 128 + signal.SIGTERM
    all_gone(found)


def test_a_signal_ends_a_wait_and_a_later_call_continues(sandbox: ExecSandbox) -> None:
    words = (
        "--key",
        "k",
        "--effect",
        "idempotent",
        "--wait",
        "50s",
        "--",
        "sh",
        "-c",
        'echo ran >> "$RAN"; exit 1',
    )
    program = sandbox.start(*words, stderr=subprocess.PIPE)
    assert program.stderr is not None
    said = b""
    while b"next attempt in" not in said:
        said = program.stderr.readline()
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=30)
    assert program.returncode == 128 + signal.SIGTERM
    assert sandbox.read_runs() == ["ran"]


def test_the_program_keeps_the_ignored_signals_of_nohup(sandbox: ExecSandbox) -> None:
    code = "import os, signal, sys; signal.signal(1, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    mask = "grep SigIgn /proc/self/status"
    done = sandbox.run("--key", "k", "--", "sh", "-c", mask, program=[sys.executable, "-c", code, *PROGRAM])
    ignored = int(done.stdout.split()[1], 16)
    assert ignored & (1 << (signal.SIGHUP - 1))
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    plain = int(sandbox.run("--key", "l", "--", "sh", "-c", mask).stdout.split()[1], 16)
    assert not plain & (1 << (signal.SIGHUP - 1))


def test_a_killed_guardian_ends_the_program_even_if_the_worker_is_stopped(sandbox: ExecSandbox) -> None:
    program = sandbox.start("--key", "k", "--", "sh", "-c", 'echo $$ $PPID >> "$RAN"; exec sleep 300')
    pid, guard = map(int, sandbox.wait_for_lines(1)[0].split())
    program.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not is_process_alive(pid), "the program's end", 15)
    program.kill()
    program.wait(30)


def test_a_killed_guardian_counts_as_a_lost_attempt(sandbox: ExecSandbox) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--wait", "0.01", "--")
    script = 'echo $$ $PPID >> "$RAN"; [ "$ONCEMORE_ATTEMPT" = 2 ] || sleep 300'
    program = sandbox.start(*words, "sh", "-c", script)
    pid, guard = map(int, sandbox.wait_for_lines(1)[0].split())
    assert "guardian.py" in Path(f"/proc/{guard}/cmdline").read_text()
    os.kill(guard, signal.SIGKILL)
    assert program.wait(30) == 0  # the second attempt
    assert not is_process_alive(pid)
    assert len(sandbox.read_runs()) == 2
