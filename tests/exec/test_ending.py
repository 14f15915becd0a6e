"""Ended for real: at its limit, by a signal, and with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.exec.conftest import PROGRAM, alive, until

if TYPE_CHECKING:
    from tests.exec.conftest import Desk

#: Deaf to SIGTERM; with a child in the background, one in a session of its own, and one of a dead parent.
FAMILY = """
trap '' TERM INT HUP
sleep 300 & echo $! >> "$RAN"
setsid sleep 301 & echo $! >> "$RAN"
(setsid sh -c 'trap "" TERM; echo $$ >> "$RAN"; while :; do sleep 1; done' &)
echo $$ >> "$RAN"
while :; do sleep 1; done
"""


def pids(desk: Desk) -> list[int]:
    return [int(line) for line in desk.await_lines(4)]


def all_gone(found: list[int]) -> None:
    until(lambda: not any(map(alive, found)), f"the end of {found}", 15)


@pytest.mark.parametrize(
    ("effect", "code", "status"), [("pure", 124, "HARD_FAIL"), ("once", 124, "SOFT_FAIL")]
)
def test_at_the_limit_the_whole_family_is_ended(desk: Desk, effect: str, code: int, status: str) -> None:
    words = ("--key", "k", "--timeout", "1.5s", "--grace", "0.3s", "--attempts", "1", "--effect", effect)
    told = desk.report(*words, "--", "sh", "-c", FAMILY)
    found = pids(desk)
    assert [pid for pid in found if alive(pid)] == []  # when we are told, it has happened
    assert (told["exit_code"], told["by"], told["status"]) == (code, "oncemore", status)
    assert told["program"]["ended_by"] == "limit"
    assert desk.run(*words, "--", "sh", "-c", FAMILY).returncode == code
    assert len(desk.ran()) == 4


def test_a_program_that_heeds_sigterm_has_its_grace(desk: Desk) -> None:
    script = 'trap "echo bye; exit 0" TERM; echo $$ >> "$RAN"; while :; do sleep 0.05; done'
    words = ("--key", "k", "--timeout", "1s", "--grace", "30s", "--attempts", "1", "--effect", "pure")
    began = time.monotonic()
    done = desk.run(*words, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (
        124,
        b"bye\n",
    )  # too late is too late, whatever it says of itself
    assert time.monotonic() - began < 20


def test_a_limit_is_of_one_attempt_and_within_is_of_them_all(desk: Desk) -> None:
    script = 'echo ran >> "$RAN"; [ "$ONCEMORE_ATTEMPT" = 2 ] || sleep 60'
    words = ("--effect", "idempotent", "--wait", "0.01", "--grace", "0.2s")
    assert desk.run("--key", "a", "--timeout", "1s", *words, "--", "sh", "-c", script).returncode == 0
    assert desk.ran() == ["ran", "ran"]
    told = desk.report("--key", "b", "--within", "1s", *words, "--", "sh", "-c", "sleep 60")
    assert (told["exit_code"], told["attempts"], told["status"]) == (124, 1, "HARD_FAIL")


def test_what_a_program_leaves_behind_is_ended_with_it_unless_it_may_stay(desk: Desk) -> None:
    script = '(setsid sleep 300 & echo $! >> "$RAN"); echo out'
    done = desk.run("--key", "a", "--grace", "0.5s", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, b"out\n")
    assert b"1 process(es) that the program left behind were ended" in done.stderr
    assert not alive(int(desk.ran()[0]))
    stays = desk.run("--key", "b", "--leave-running", "--", "sh", "-c", script)
    pid = int(desk.ran()[1])
    assert (stays.returncode, alive(pid)) == (0, True)
    assert {file.name for file in Path(f"/proc/{pid}/fd").iterdir()} == {
        "0",
        "1",
        "2",
    }  # nothing of ours: no lock, no socket
    os.kill(pid, signal.SIGKILL)


def test_what_a_shell_writes_behind_its_own_end_is_waited_for(desk: Desk) -> None:
    done = desk.run("--key", "k", "--", "sh", "-c", "(sleep 0.5; echo late) & echo early")
    assert (done.returncode, done.stdout) == (0, b"early\nlate\n")


@pytest.mark.parametrize(
    ("number", "effect", "then", "runs"),
    [(signal.SIGINT, "idempotent", 0, 2), (signal.SIGTERM, "once", 121, 1), (signal.SIGHUP, "once", 121, 1)],
)
def test_a_signal_goes_to_the_program_is_recorded_and_ends_with_its_number(
    desk: Desk, number: signal.Signals, effect: str, then: int, runs: int
) -> None:
    script = f'trap "echo heard; exit 0" {number.name[3:]}; echo ran >> "$RAN"; '
    script += "[ -e go ] || while :; do sleep 0.05; done"
    words = ("--key", "k", "--effect", effect, "--", "sh", "-c", script)
    program = desk.start(*words, stdout=subprocess.PIPE)
    desk.await_lines(1)
    program.send_signal(number)
    out, _ = program.communicate(timeout=60)
    assert (program.returncode, out) == (128 + number, b"heard\n")
    (desk.folder / "go").touch()
    assert desk.run(*words).returncode == then
    assert len(desk.ran()) == runs


def test_the_second_signal_does_not_wait_for_the_grace(desk: Desk) -> None:
    program = desk.start("--key", "k", "--grace", "10m", "--", "sh", "-c", FAMILY)
    found = pids(desk)
    program.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert alive(found[3])
    program.send_signal(signal.SIGTERM)
    assert program.wait(30) == 128 + signal.SIGTERM
    all_gone(found)


def test_a_signal_ends_a_wait_between_attempts_and_a_later_call_goes_on(desk: Desk) -> None:
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
    program = desk.start(*words, stderr=subprocess.PIPE)
    assert program.stderr is not None
    said = b""
    while b"the next attempt is in" not in said:
        said = program.stderr.readline()
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=30)
    assert program.returncode == 128 + signal.SIGTERM
    assert desk.ran() == ["ran"]


def test_what_nohup_ignores_the_program_ignores_too(desk: Desk) -> None:
    code = "import os, signal, sys; signal.signal(1, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    mask = "grep SigIgn /proc/self/status"
    done = desk.run("--key", "k", "--", "sh", "-c", mask, program=[sys.executable, "-c", code, *PROGRAM])
    ignored = int(done.stdout.split()[1], 16)
    assert ignored & (1 << (signal.SIGHUP - 1))
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    plain = int(desk.run("--key", "l", "--", "sh", "-c", mask).stdout.split()[1], 16)
    assert not plain & (1 << (signal.SIGHUP - 1))


def test_a_guard_that_is_killed_takes_the_program_with_it_also_if_we_cannot(desk: Desk) -> None:
    program = desk.start("--key", "k", "--", "sh", "-c", 'echo $$ $PPID >> "$RAN"; exec sleep 300')
    pid, guard = map(int, desk.await_lines(1)[0].split())
    program.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    until(lambda: not alive(pid), "the program's end", 15)
    program.kill()
    program.wait(30)


def test_a_guard_that_is_killed_is_an_attempt_that_was_lost(desk: Desk) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--wait", "0.01", "--")
    script = 'echo $$ $PPID >> "$RAN"; [ "$ONCEMORE_ATTEMPT" = 2 ] || sleep 300'
    program = desk.start(*words, "sh", "-c", script)
    pid, guard = map(int, desk.await_lines(1)[0].split())
    assert "guardian.py" in Path(f"/proc/{guard}/cmdline").read_text()
    os.kill(guard, signal.SIGKILL)
    assert program.wait(30) == 0  # the second attempt
    assert not alive(pid)
    assert len(desk.ran()) == 2
