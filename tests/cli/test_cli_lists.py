"""Lists of steps, jobs, workers and workflows; the live view; the relay; completion; audit of a store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.audit import AuditStream
from tests.fixtures import _isolated
from tests.shell import PROGRAM, environment, on_a_terminal, run, told

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["_isolated"]


@oncemore.step(effect="pure", name="lists.double")
def double(x: int) -> int:
    return 2 * x


@oncemore.step(effect="idempotent", name="lists.fail", on=(OSError,), attempts=3, wait=[0.01, 0.02])
def fail(x: int) -> None:
    raise OSError(f"no disk {x}")


@oncemore.step(effect="outbox", name="lists.announce")
def announce(x: int) -> int:
    oncemore.current().emit("orders.done", {"x": x})
    return x


@oncemore.workflow(name="lists.wait")
def wait(x: int) -> Any:
    return oncemore.wait_for("approved", timeout=timedelta(days=30))


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "log.db")
    with oncemore.open(path):
        double(1)
        double(2)
        double.map([3, 4, 5])
        fail.run(1)
        announce(7)
        wait.run(1)
    return path


def test_steps_are_listed_with_the_number_of_their_runs(store: str) -> None:
    listed = told("runs", "steps", "--store", store)
    counts = {row["step"]: (row["runs"], row["counts"]["COMPLETE"]) for row in listed["steps"]}
    assert counts == {
        "lists.announce": (1, 1),
        "lists.double": (5, 5),
        "lists.fail": (1, 0),
        "lists.wait": (1, 0),
    }
    assert listed["is_complete"]
    lines = run("runs", "steps", "--store", store).stdout.splitlines()
    assert lines[3].split() == ["lists.fail", "1", "0", "0", "0", "1", "0"]


def test_jobs_are_listed_with_their_items(store: str) -> None:
    (job,) = told("runs", "jobs", "--store", store)
    assert (job["step"], job["state"], job["items"], job["done"]) == ("lists.double", "DONE", 3, 3)
    assert "lists.double" in run("runs", "jobs", "--store", store).stdout


def test_a_waiting_workflow_is_listed_until_its_signal_came(store: str) -> None:
    (row,) = told("workflow", "list", "--store", store)
    assert (row["step"], row["reason"]) == ("lists.wait", "waiting for signal 'approved'")
    assert "waiting for signal" in run("workflow", "--store", store).stdout
    assert run("workflow", "signal", row["run_id"], "approved", "--store", store).returncode == 0
    with oncemore.open(store):
        wait(1)
    assert run("workflow", "list", "--store", store).stdout == "No workflow sleeps or waits for a signal.\n"


def test_workers_are_listed_while_they_hold_a_lease(store: str) -> None:
    assert "No process works on this store now." in run("worker", "list", "--store", store).stdout
    with oncemore.open(store):
        double(9)  # this process has a lease until the engine is closed
        (row,) = told("worker", "list", "--store", store)
        assert (row["pid"], row["is_alive"], row["running"]) == (os.getpid(), True, 0)
        assert "ALIVE" in run("worker", "list", "--store", store).stdout
    assert {row["state"] for row in told("worker", "list", "--all", "--store", store)} == {"ENDED"}


def test_runs_are_listed_with_arguments_and_short_unique_ids(store: str) -> None:
    rows = told("runs", "--step", "lists.double", "--store", store)
    assert sorted(row["arguments"]["x"] for row in rows) == [1, 2, 3, 4, 5]
    lines = run("runs", "--step", "lists.double", "--store", store).stdout.splitlines()[1:]
    for line, row in zip(lines, rows, strict=True):
        short = line.split()[3]
        assert row["key"].startswith(short)
        assert f"x={row['arguments']['x']}" in line
        # The shown id is enough for the other commands.
        assert told("show", short, "--store", store)["row"]["key"] == row["key"]


def test_the_arguments_of_a_repeated_key_are_those_of_its_last_run(store: str) -> None:
    with oncemore.open(store):
        fail.run(1)
    (row,) = told("runs", "--step", "lists.fail", "--store", store)
    assert (row["runs"], row["arguments"]) == (2, {"x": 1})


def test_a_program_is_listed_by_the_key_of_its_caller(store: str) -> None:
    run("exec", "--store", store, "--key", "report-7", "--effect", "pure", "--", "true")
    assert "report-7" in run("runs", "--step", "exec", "--store", store).stdout


def test_states_are_colored_on_a_terminal_only(store: str) -> None:
    colored = on_a_terminal("runs", "--step", "lists.fail", "--store", store, columns=120)
    assert "\033[31mHARD_FAIL\033[0m" in colored
    assert "\033" not in run("runs", "--step", "lists.fail", "--store", store).stdout


def test_watch_prints_one_frame_into_a_pipe(store: str) -> None:
    frame = run("watch", "--store", store).stdout
    assert "0 held for a person" in frame
    assert "1 failed" in frame
    assert "Needs attention: none" in frame
    overview = told("watch", "--store", store)
    assert overview["counts"]["waiting"] == 1
    assert sum(minute["failed"] for minute in overview["minutes"]) == 1
    with oncemore.open(store) as engine:
        engine.switches.on(step="lists.wait", reason="the disk is full", by="operator")
    frame = run("watch", "--store", store).stdout
    assert "Needs attention (1)" in frame
    assert "  Turned on by operator: the disk is full\n  No attempt begins while it is on.\n" in frame


def test_watch_draws_a_new_frame_when_the_log_changes(store: str) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "watch", "--store", store], stdout=theirs, stderr=theirs, env=environment()
    ) as program:
        os.close(theirs)
        seen = b""
        while b"1 failed" not in seen:
            seen += os.read(ours, 4096)
        with oncemore.open(store):
            fail.run(2)
        while b"2 failed" not in seen:
            seen += os.read(ours, 4096)
        program.send_signal(signal.SIGINT)
        while b"\x1b[?25h" not in seen:  # the cursor is shown again
            seen += os.read(ours, 4096)
        assert program.wait(60) == 130
    os.close(ours)


def test_the_relay_delivers_the_outbox_once(store: str, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    words = ("relay", "--to", f"orders.*=file:{out}", "--once", "--store", store)
    assert told(*words)["delivered"] == 1
    assert told(*words)["delivered"] == 0
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["payload"] == {"x": 7}
    assert run(*words).stdout == "No event is due.\n"


def test_the_relay_delivers_until_it_is_stopped(store: str, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    command = [*PROGRAM, "relay", "--to", f"*=file:{out}", "--store", store]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as program:
        assert program.stderr is not None
        assert "relay started" in program.stderr.readline()
        with oncemore.open(store):
            announce(8)
        while not out.exists() or len(out.read_text().splitlines()) < 2:
            assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    assert sorted(json.loads(line)["payload"]["x"] for line in out.read_text().splitlines()) == [7, 8]


@pytest.mark.parametrize("route", ["orders", "=file:x", "orders="])
def test_a_wrong_route_is_refused(store: str, route: str) -> None:
    refused = run("relay", "--to", route, "--once", "--store", store)
    assert refused.returncode == 2
    assert "is not of the form TOPIC=ADDRESS" in refused.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    script = run("completion", shell)
    assert (script.returncode, script.stderr) == (0, "")
    assert f"_ONCEMORE_COMPLETE={shell}_complete" in script.stdout


def test_audit_events_of_a_store_follow_from_its_log(store: str) -> None:
    lines = run("audit", "filter", "--store", store, "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    of_fail = [event for event in events if event["operation"] == "lists.fail"]
    assert [event["event_type"] for event in of_fail] == ["retry_attempt"] * 2 + ["retry_exhausted"]
    assert [event.get("attempt_number") for event in of_fail] == [1, 2, None]
    assert of_fail[-1]["total_attempts"] == 3
    assert of_fail[0]["exception_message"] == "no disk 1"
    double_events = [event for event in events if event["operation"] == "lists.double"]
    assert [event["total_attempts"] for event in double_events] == [1] * 5
    # The stream that programs use reads the same lines.
    path = f"{store}.jsonl"
    with open(path, "w") as file:  # noqa: PTH123
        file.write("\n".join(lines) + "\n")
    assert AuditStream.read(path).per_category()["RETRY_LISTS_FAIL"].total_attempts == 3
    patterns = told("audit", "patterns", "--store", store)
    assert patterns["RETRY_LISTS_FAIL"]["success_rate"] == 0
    assert patterns["RETRY_LISTS_DOUBLE"]["operations"] == 5


def test_audit_tail_of_a_store_shows_the_latest_and_follows(store: str) -> None:
    last = run("audit", "tail", "--store", store, "-n", "1", "--type", "retry_exhausted").stdout
    assert "retry_exhausted  RETRY_LISTS_FAIL" in last
    assert run("audit", "tail", "--store", store, "-n", "0").stdout == ""
    command = [*PROGRAM, "audit", "tail", "-f", "-n", "1", "--type", "retry_exhausted", "--store", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as program:
        assert program.stdout is not None
        assert "no disk 1" in program.stdout.readline()
        with oncemore.open(store):
            fail.run(2)
        assert "no disk 2" in program.stdout.readline()
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130


def test_an_event_of_an_earlier_run_keeps_its_own_attempts(store: str) -> None:
    with oncemore.open(store):
        fail.run(1)
    exhausted = [
        json.loads(line)
        for line in run(
            "audit", "filter", "--type", "retry_exhausted", "--store", store, "--json"
        ).stdout.splitlines()
    ]
    assert [event["total_attempts"] for event in exhausted] == [3, 3]


def test_the_program_can_be_started_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "oncemore", "--help"], capture_output=True, text=True, env=environment(),
        check=True,
    )  # fmt: skip
    for title in ("Run work:", "Look:", "Decide:", "Prove and plan:", "Maintain:"):
        assert title in ran.stdout
