"""`kill -9` of `oncemore exec` itself at every point of the flow, and eight calls at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs.conftest import RAN
from tests.programs.test_ending import FAMILY, all_gone, pids
from tests.timing import is_process_alive, wait_until

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox

KILLED_AT = [sys.executable, str(Path(__file__).with_name("killed_at.py"))]


@pytest.mark.parametrize(
    ("point", "ran", "effect", "then", "in_all"),
    [
        ("before-1", 0, "once", 0, 1),
        ("before-1", 0, "idempotent", 0, 1),
        ("after-1", 0, "once", 121, 0),  # it is counted, and nobody can know that it was not started
        ("after-1", 0, "idempotent", 0, 1),
        ("before-work", 0, "pure", 0, 1),
        ("after-work", 1, "once", 121, 1),
        ("after-work", 1, "idempotent", 0, 2),
        ("before-2", 1, "once", 121, 1),
        ("before-2", 1, "idempotent", 0, 2),
        ("after-2", 1, "once", 0, 1),
        ("after-2", 1, "idempotent", 0, 1),
    ],
)
def test_after_a_kill_at_each_point_of_the_flow_the_next_call_continues_by_effect(
    sandbox: ExecSandbox, point: str, ran: int, effect: str, then: int, in_all: int
) -> None:
    words = ("--key", "k", "--effect", effect, "--", *RAN)
    assert sandbox.run(point, *words, program=KILLED_AT).returncode == -signal.SIGKILL
    assert len(sandbox.read_runs()) == ran
    again = sandbox.run(*words)
    assert (again.returncode, len(sandbox.read_runs())) == (then, in_all)
    assert again.stdout == (b"out\n" if then == 0 else b"")
    if then:
        assert b"is held: attempt 1 was lost" in again.stderr


def test_killing_the_worker_ends_all_processes_of_the_program(sandbox: ExecSandbox) -> None:
    program = sandbox.start("--key", "k", "--", "sh", "-c", FAMILY)
    found = pids(sandbox)
    program.kill()
    program.wait(30)
    all_gone(found)
    assert sandbox.run("--key", "k", "--", "sh", "-c", FAMILY).returncode == 121
    assert len(sandbox.read_runs()) == 4


def test_work_killed_in_every_attempt_is_held_under_every_effect(sandbox: ExecSandbox) -> None:
    policy = sandbox.write_policy("retry_policy: {max_crashes: 1}")
    words = ("--key", "k", "--effect", "idempotent", "--policy", policy, "--", *RAN)
    sandbox.run("before-2", *words, program=KILLED_AT)
    for _ in range(2):
        done = sandbox.run(*words)
        assert (done.returncode, sandbox.read_runs()) == (121, ["ran"])
        assert b"oncemore quarantine show" in done.stderr


#: Says so if another of its kind is there: each holds a lock while it lives.
ALONE = """
import fcntl, os, sys, time
held = open("alone.lock", "w")
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("OVERLAP", file=open(os.environ["RAN"], "a"), flush=True)
print(os.getpid(), os.getppid(), file=open(os.environ["RAN"], "a"), flush=True)
time.sleep(300 if os.environ["ONCEMORE_ATTEMPT"] == "1" else 0)
"""


def test_the_next_worker_never_runs_beside_the_program_of_a_killed_one(sandbox: ExecSandbox) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--", sys.executable, "-c", ALONE)
    first = sandbox.start(*words)
    sandbox.wait_for_lines(1)
    others = [sandbox.start(*words) for _ in range(2)]  # they wait, and take over at once
    first.kill()
    first.wait(30)
    assert [other.wait(60) for other in others] == [0, 0]
    assert len(sandbox.read_runs()) == 2
    assert "OVERLAP" not in sandbox.read_runs()


def open_files(pid: int) -> set[str]:
    """Return the paths of the files that a process has open; devices, pipes and sockets left out."""
    links = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed in between
            links.add(str(handle.readlink()))
    return {link for link in links if link.startswith("/") and not link.startswith("/dev/")}


def test_the_next_worker_waits_for_a_slow_guardian(sandbox: ExecSandbox) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--", sys.executable, "-c", ALONE)
    first = sandbox.start(*words)
    pid, guard = map(int, sandbox.wait_for_lines(1)[0].split())
    os.kill(guard, signal.SIGSTOP)
    first.kill()
    first.wait(30)
    lock = open_files(guard)
    assert len(lock) == 1, "the guardian holds the lock of the key and nothing else"
    other = sandbox.start("--report", "r.json", *words)
    wait_until(lambda: lock <= open_files(other.pid), "the second worker at the lock")
    time.sleep(0.1)
    assert (len(sandbox.read_runs()), is_process_alive(pid)) == (1, True)
    other.send_signal(signal.SIGTERM)
    assert other.wait(30) == 128 + signal.SIGTERM
    report = json.loads((sandbox.folder / "r.json").read_text())
    assert (report["attempts"], report["ran"]) == (1, False)  # an attempt that never began does not count
    other = sandbox.start(*words, stderr=subprocess.PIPE)
    wait_until(lambda: lock <= open_files(other.pid), "the third worker at the lock")
    time.sleep(0.1)
    assert (len(sandbox.read_runs()), is_process_alive(pid)) == (1, True)
    os.kill(guard, signal.SIGCONT)
    other.communicate(timeout=60)
    assert (other.returncode, len(sandbox.read_runs()), is_process_alive(pid)) == (0, 2, False)
    assert "OVERLAP" not in sandbox.read_runs()


def test_killing_the_whole_process_group_leaves_no_process(sandbox: ExecSandbox) -> None:
    program = sandbox.start("--key", "k", "--", "sh", "-c", FAMILY, start_new_session=True)
    found = pids(sandbox)
    os.killpg(program.pid, signal.SIGKILL)
    program.wait(30)
    all_gone(found)


@pytest.mark.parametrize("effect", ["once", "idempotent"])
def test_eight_concurrent_calls_run_once_and_return_the_same(sandbox: ExecSandbox, effect: str) -> None:
    words = ("--key", "k", "--effect", effect, "--", "sh", "-c", 'echo ran >> "$RAN"; sleep 0.3; echo out')
    eight = [sandbox.start(*words, stdout=subprocess.PIPE) for _ in range(8)]
    ended = [one.communicate(timeout=100)[0] for one in eight]
    assert [one.returncode for one in eight] == [0] * 8
    assert ended == [b"out\n"] * 8
    assert sandbox.read_runs() == ["ran"]


def test_eight_concurrent_calls_share_the_attempts_of_a_failing_program(sandbox: ExecSandbox) -> None:
    # A process that starts after the failure would begin a new run under the standard policy.
    policy = sandbox.write_policy("after_failure: raise")
    retries = ("--attempts", "3", "--wait", "0.05", "--policy", policy)
    words = ("--key", "k", "--effect", "idempotent", *retries, "--")
    eight = [sandbox.start(*words, "sh", "-c", 'echo ran >> "$RAN"; exit 7') for _ in range(8)]
    assert [one.wait(100) for one in eight] == [7] * 8
    assert sandbox.read_runs() == ["ran"] * 3


def test_eight_concurrent_calls_survive_the_kill_of_the_running_one(sandbox: ExecSandbox) -> None:
    script = 'echo "$ONCEMORE_ATTEMPT $PPID" >> "$RAN"; [ "$ONCEMORE_ATTEMPT" != 1 ] || sleep 300; echo out'
    words = ("--key", "k", "--effect", "idempotent", "--", "sh", "-c", script)
    eight = [sandbox.start(*words) for _ in range(8)]
    guard = sandbox.wait_for_lines(1)[0].split()[1]
    holder = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(holder, signal.SIGKILL)
    wait_until(lambda: not is_process_alive(int(guard)), "the guard's end", 15)
    ended = sorted(one.wait(100) for one in eight)
    assert ended == [-signal.SIGKILL, *([0] * 7)]
    assert [line.split()[0] for line in sandbox.read_runs()] == ["1", "2"]
