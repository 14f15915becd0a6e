"""`kill -9` of oncemore itself, at every line that matters; and eight of it at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.exec.conftest import RAN, alive, until
from tests.exec.test_ending import FAMILY, all_gone, pids

if TYPE_CHECKING:
    from tests.exec.conftest import Desk

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
def test_killed_at_a_line_of_the_flow_the_next_call_goes_on_by_the_effect(
    desk: Desk, point: str, ran: int, effect: str, then: int, in_all: int
) -> None:
    words = ("--key", "k", "--effect", effect, "--", *RAN)
    assert desk.run(point, *words, program=KILLED_AT).returncode == -signal.SIGKILL
    assert len(desk.ran()) == ran
    again = desk.run(*words)
    assert (again.returncode, len(desk.ran())) == (then, in_all)
    assert again.stdout == (b"out\n" if then == 0 else b"")
    if then:
        assert b"is held: attempt 1 was lost" in again.stderr


def test_killed_while_the_program_runs_nothing_of_it_lives_on(desk: Desk) -> None:
    program = desk.start("--key", "k", "--", "sh", "-c", FAMILY)
    found = pids(desk)
    program.kill()
    program.wait(30)
    all_gone(found)
    assert desk.run("--key", "k", "--", "sh", "-c", FAMILY).returncode == 121
    assert len(desk.ran()) == 4


def test_killed_in_every_attempt_it_waits_for_a_person_whatever_its_effect(desk: Desk) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--attempts", "1", "--", *RAN)
    desk.run("before-2", *words, program=KILLED_AT)
    for _ in range(2):
        done = desk.run(*words)
        assert (done.returncode, desk.ran()) == (121, ["ran"])
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


def test_whoever_takes_over_does_not_meet_the_program_of_the_dead(desk: Desk) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--", sys.executable, "-c", ALONE)
    first = desk.start(*words)
    desk.await_lines(1)
    others = [desk.start(*words) for _ in range(2)]  # they wait, and take over at once
    first.kill()
    first.wait(30)
    assert [other.wait(60) for other in others] == [0, 0]
    assert len(desk.ran()) == 2
    assert "OVERLAP" not in desk.ran()


def test_whoever_takes_over_waits_for_a_guard_that_is_slow(desk: Desk) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--", sys.executable, "-c", ALONE)
    first = desk.start(*words)
    pid, guard = map(int, desk.await_lines(1)[0].split())
    os.kill(guard, signal.SIGSTOP)
    first.kill()
    first.wait(30)
    other = desk.start("--report", "r.json", *words)
    time.sleep(3)  # it has found that the first is gone, and must wait for what that has left
    assert (len(desk.ran()), alive(pid)) == (1, True)
    other.send_signal(signal.SIGTERM)
    assert other.wait(10) == 128 + signal.SIGTERM
    told = json.loads((desk.folder / "r.json").read_text())
    assert (told["attempts"], told["ran"]) == (1, False)  # an attempt that never began does not count
    other = desk.start(*words, stderr=subprocess.PIPE)
    time.sleep(2)
    assert (len(desk.ran()), alive(pid)) == (1, True)
    os.kill(guard, signal.SIGCONT)
    other.communicate(timeout=60)
    assert (other.returncode, len(desk.ran()), alive(pid)) == (0, 2, False)
    assert "OVERLAP" not in desk.ran()


def test_the_whole_group_killed_at_once_leaves_nothing_either(desk: Desk) -> None:
    program = desk.start("--key", "k", "--", "sh", "-c", FAMILY, start_new_session=True)
    found = pids(desk)
    os.killpg(program.pid, signal.SIGKILL)
    program.wait(30)
    all_gone(found)


@pytest.mark.parametrize("effect", ["once", "idempotent"])
def test_eight_at_once_run_it_once_and_all_say_the_same(desk: Desk, effect: str) -> None:
    words = ("--key", "k", "--effect", effect, "--", "sh", "-c", 'echo ran >> "$RAN"; sleep 0.3; echo out')
    eight = [desk.start(*words, stdout=subprocess.PIPE) for _ in range(8)]
    ended = [one.communicate(timeout=100)[0] for one in eight]
    assert [one.returncode for one in eight] == [0] * 8
    assert ended == [b"out\n"] * 8
    assert desk.ran() == ["ran"]


def test_eight_at_once_share_the_attempts_of_a_program_that_fails(desk: Desk) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--attempts", "3", "--wait", "0.05", "--")
    eight = [desk.start(*words, "sh", "-c", 'echo ran >> "$RAN"; exit 7') for _ in range(8)]
    assert [one.wait(100) for one in eight] == [7] * 8
    assert desk.ran() == ["ran"] * 3


def test_eight_at_once_and_the_one_that_has_it_is_killed(desk: Desk) -> None:
    script = 'echo "$ONCEMORE_ATTEMPT $PPID" >> "$RAN"; [ "$ONCEMORE_ATTEMPT" != 1 ] || sleep 300; echo out'
    words = ("--key", "k", "--effect", "idempotent", "--", "sh", "-c", script)
    eight = [desk.start(*words) for _ in range(8)]
    guard = desk.await_lines(1)[0].split()[1]
    holder = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(holder, signal.SIGKILL)
    until(lambda: not alive(int(guard)), "the guard's end", 15)
    ended = sorted(one.wait(100) for one in eight)
    assert ended == [-signal.SIGKILL, *([0] * 7)]
    assert [line.split()[0] for line in desk.ran()] == ["1", "2"]
