"""Attempts in processes of their own: really stopped at their limit, and never left behind."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_body
from oncemore.log.store import HeadQuery
from oncemore.steps.isolation import ProcessDied, RemoteError
from tests.storm import isolated
from tests.timing import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.storm.crew import Crew


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("what", ["loop", "hold"])
def test_an_attempt_is_really_stopped_at_its_limit_whatever_it_does(tmp_path: Path, what: str) -> None:
    with oncemore.open(tmp_path / "log.db"):
        assert isolated.fault(str(tmp_path), what) == 2
        run = isolated.fault.last_run(str(tmp_path), what)
    assert run is not None
    assert [attempt.error and attempt.error["type"] for attempt in run.attempts] == ["AttemptTimeout", None]
    pids = [int(note.split()[1]) for note in notes(tmp_path)]
    assert len(set(pids)) == 2
    assert not any(map(alive, pids))
    assert not oncemore.abandoned_calls()


@pytest.mark.parametrize("what", ["loop", "hold"])
def test_a_once_attempt_that_is_stopped_at_its_limit_is_held(tmp_path: Path, what: str) -> None:
    with oncemore.open(tmp_path / "log.db"):
        with pytest.raises(oncemore.OutcomeUnknown):
            isolated.fault_once(str(tmp_path), what)
        assert len(notes(tmp_path)) == 1
        assert not alive(int(notes(tmp_path)[0].split()[1]))


@pytest.mark.parametrize("what", ["ends", "crash", "killed"])
def test_a_child_that_dies_is_a_transient_failure(tmp_path: Path, what: str) -> None:
    with oncemore.open(tmp_path / "log.db"):
        assert isolated.fault(str(tmp_path), what) == 2
        run = isolated.fault.last_run(str(tmp_path), what)
        assert run is not None
        error = run.attempts[0].error
        assert error is not None
        assert error["type"].endswith("ProcessDied")
        code = {"ends": 3, "crash": -signal.SIGSEGV, "killed": -signal.SIGKILL}[what]
        assert f"exit code {int(code)}" in error["message"]
        with pytest.raises(oncemore.OutcomeUnknown):
            isolated.fault_once(str(tmp_path), what)
    assert issubclass(ProcessDied, ConnectionError)


def test_checkpoints_and_events_cross_over(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        before, number, fence, pid = isolated.parts("o")
        assert (before, number, fence) == ({"half": "o"}, 2, 2)
        assert pid != os.getpid()
        events = [
            (head.by.step, decode_body(entry.body or b"")["payload"])
            for head in engine.store.list_heads(HeadQuery("event"))
            for entry in engine.store.read_entries(head.entity)
        ]
        assert sorted(events) == [("done", {"number": 2}), ("seen", {"number": 2})]


def test_errors_come_over_as_they_are_or_say_what_they_were(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db"):
        for what, kind, text in (
            ("plain", isolated.Plain, "on its way"),
            ("picky", RemoteError, "Picky: one and two"),
            ("locked", RemoteError, "Locked: locked"),
            ("mute", RemoteError, "Mute: it cannot be shown"),
        ):
            with pytest.raises(oncemore.StepFailed) as failed:
                isolated.fails(what)
            assert type(failed.value.__cause__) is kind
            assert text in str(failed.value.__cause__)
        with pytest.raises(SystemExit) as end:
            isolated.fails("exit")
        assert end.value.code == 3


def test_a_value_that_cannot_come_over_does_not_undo_what_was_done(tmp_path: Path) -> None:
    """As for any value that cannot be stored: pure work has failed, anything else is done."""
    with oncemore.open(tmp_path / "log.db"):
        with pytest.raises(oncemore.StepFailed):
            isolated.no_value_pure()
        steps: tuple[Any, ...] = (isolated.no_value, isolated.no_value_once)
        for count, step in enumerate(steps, 1):
            for _ in range(2):
                with pytest.raises(oncemore.ResultUnavailable):
                    step(str(tmp_path))
            assert step.last_run(str(tmp_path)).status == "COMPLETE"
            assert len(notes(tmp_path)) == count


@pytest.mark.parametrize("how", ["python", "program"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_nothing_goes_on_when_the_process_that_called_is_gone(crew: Crew, how: str, ending: int) -> None:
    caller = crew.start("tests.storm.isolated:call_ticks", how=how)
    wait_until(lambda: len(notes(crew.folder)) > 5, "it ticks")
    caller.send(ending)
    caller.wait(total_timeout=20)
    time.sleep(0.3)  # at least ten ticks
    before = len(notes(crew.folder))
    child = int(notes(crew.folder)[0].split()[1])
    time.sleep(0.3)
    assert len(notes(crew.folder)) == before, "it goes on behind everybody's back"
    wait_until(lambda: not alive(child), "the child ends", seconds=10)


@pytest.mark.timeout(60)
def test_a_child_whose_caller_dies_while_it_starts_does_not_begin(crew: Crew) -> None:
    for delay in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3):
        caller = crew.start("tests.storm.isolated:call_ticks", how=f"python {delay}")
        wait_until(lambda pid=caller.pid: _children(pid), "a child of its own")
        time.sleep(delay)
        caller.kill()
        time.sleep(0.2)
        before = len(notes(crew.folder))
        time.sleep(0.2)
        assert len(notes(crew.folder)) == before


def _children(pid: int) -> str:
    from pathlib import Path

    return Path(f"/proc/{pid}/task/{pid}/children").read_text()
