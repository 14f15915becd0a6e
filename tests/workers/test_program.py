"""`oncemore worker`: a program of its own, started, told to stop, killed."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.cli import run_command as program
from oncemore.steps.history import verify_chain
from oncemore.workers.find_steps import find_steps
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent


@pytest.fixture
def steps(tmp_path: Path) -> Any:
    """A module of steps in the folder where the program is started."""
    shutil.copy(HERE / "handed.py", tmp_path / "handed_steps.py")
    spec = importlib.util.spec_from_file_location("handed_steps", tmp_path / "handed_steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


class Program:
    """A worker process that this test started."""

    def __init__(self, folder: Path, *told: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oncemore", "worker", "handed_steps", "--store", "log.db", *told],
            cwd=folder, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self) -> None:
        """Wait until it has said hello: from then on it is told to stop in order."""
        assert self.process.stderr is not None
        while "worker started for" not in (line := self.process.stderr.readline()):
            assert line, "it ended before it had begun"

    def end(self, total_timeout_s: float = 30.0) -> tuple[int, str]:
        try:
            _, errors = self.process.communicate(timeout=total_timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, errors

    def tell(self, number: int) -> None:
        os.kill(self.process.pid, number)


@pytest.fixture
def start(tmp_path: Path, steps: Any) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(*told: str) -> Program:
        started.append(Program(tmp_path, *told))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=30)


def notes() -> list[str]:
    path = Path("notes.txt")
    return path.read_text().splitlines() if path.exists() else []


def test_it_does_what_is_due_and_ends(
    store: oncemore.Engine, steps: Any, start: Callable[..., Program]
) -> None:
    for n in range(5):
        steps.quick.submit(n)
    asyncio.run(steps.awaited.submit(1))
    code, errors = start("--drain").end()
    assert code == 0, errors
    assert "worker started for handed.awaited, handed.quick, handed.slow on sqlite:///" in errors
    assert "worker ended: 6 done" in errors
    assert sorted(notes()) == ["awaited 1", *(f"quick {n}" for n in range(5))]
    verify_chain(store.store.read_entries())


def test_sigterm_lets_what_is_under_way_end_and_takes_nothing_more(
    store: oncemore.Engine, steps: Any, start: Callable[..., Program]
) -> None:
    first, second = steps.slow.submit(1), steps.slow.submit(2)
    worker = start("--concurrency", "1")
    wait_until(lambda: notes() == ["began 1"])
    worker.tell(signal.SIGTERM)
    time.sleep(0.3)
    assert worker.process.poll() is None, "it waits for what is under way"
    Path("go_on").touch()
    code, errors = worker.end()
    assert (code, notes()) == (0, ["began 1", "ended 1"]), errors
    assert (first.wait(5).status, second.wait(0).status) == ("COMPLETE", "PENDING")


def test_what_does_not_end_in_time_is_interrupted_at_no_cost_and_taken_over(
    store: oncemore.Engine, steps: Any, start: Callable[..., Program]
) -> None:
    run = steps.slow.submit(1)
    worker = start("--grace", "0.1")
    wait_until(lambda: notes() == ["began 1"])
    worker.tell(signal.SIGINT)
    code, errors = worker.end()
    assert code == 1, errors
    assert "1 runs were still running at the end" in errors
    assert "1 of them were interrupted, at no cost, and are due again" in errors
    state = run.wait(0).state
    assert (state.state, state.reason, state.worker) == ("SOFT_FAIL", "interrupted", "")
    assert (state.attempt, state.attempt_count, state.crash_count) == (1, 0, 0)
    Path("go_on").touch()
    assert start("--drain").end()[0] == 0
    assert run.wait(5).status == "COMPLETE"
    assert notes() == ["began 1", "began 1", "ended 1"]


def test_a_second_signal_ends_it_at_once(
    store: oncemore.Engine, steps: Any, start: Callable[..., Program]
) -> None:
    steps.slow.submit(1)
    worker = start()
    wait_until(lambda: notes() == ["began 1"])
    worker.tell(signal.SIGTERM)
    time.sleep(0.3)
    worker.tell(signal.SIGTERM)
    assert worker.end()[0] == 128 + signal.SIGTERM


@pytest.mark.timeout(120)
def test_what_a_killed_worker_had_needs_no_caller_to_go_on(
    store: oncemore.Engine, steps: Any, start: Callable[..., Program]
) -> None:
    run = steps.slow.submit(1)
    victim = start()
    wait_until(lambda: notes() == ["began 1"])
    victim.tell(signal.SIGKILL)
    assert victim.end()[0] == -signal.SIGKILL
    Path("go_on").touch()
    heir = start()
    assert run.wait(30).status == "COMPLETE"
    assert [attempt.reason for attempt in run.wait(0).attempts] == ["lease_expired", ""]
    heir.tell(signal.SIGTERM)
    assert heir.end()[0] == 0


def test_several_on_one_store_do_everything_once(
    store: oncemore.Engine, steps: Any, start: Callable[..., Program]
) -> None:
    crowd = [start() for _ in range(3)]
    for one in crowd:
        one.ready()
    runs = [steps.quick.submit(n) for n in range(60)]
    for run in runs:
        assert run.wait(30).status == "COMPLETE"
    for one in crowd:
        one.tell(signal.SIGTERM)
    assert [one.end()[0] for one in crowd] == [0, 0, 0]
    assert sorted(notes()) == sorted(f"quick {n}" for n in range(60))


# What is asked for ------------------------------------------------------------------------------------


@pytest.fixture
def asked(steps: Any, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    root = logging.getLogger()
    before = list(root.handlers), root.level, sys.path[:]

    def ask(*told: str) -> tuple[int, str]:
        code = program(["worker", *told])
        return code, " ".join(capsys.readouterr().err.split())

    yield ask
    root.handlers[:], _, sys.path[:] = before
    root.setLevel(before[1])
    sys.modules.pop("handed_steps", None)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (["nowhere"], "there is no module 'nowhere'"),
        (["nowhere.at.all"], "there is no module 'nowhere.at.all'"),
        (["os"], "module os has no steps"),
        (["handed_steps:note"], "handed_steps has no step called 'note'"),
        (["handed_steps:no.such"], "has no step called 'no.such'"),
        ([".relative"], "'.relative' is not a module name"),
        ([""], "'' is not a module name"),
        (["handed_steps", "--steps", "other"], "no step matches 'other'; the steps are handed.awaited,"),
        (["handed_steps", "--concurrency", "0"], "--concurrency"),
        (["handed_steps", "--grace", "-1"], "--grace"),
        (["handed_steps", "--store", "redis://x"], "redis:// is not a store"),
        ([], "Missing argument"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_wrong_question_is_told_in_a_sentence(
    asked: Callable[..., tuple[int, str]], told: list[str], says: str
) -> None:
    code, errors = asked(*told)
    assert code == 2
    assert says in errors


def test_only_some_steps_of_some_modules(
    asked: Callable[..., tuple[int, str]],
    store: oncemore.Engine,
    steps: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps.quick.submit(1)
    steps.slow.submit(1)
    caplog.set_level(logging.INFO)
    assert asked("handed_steps", "--store", "log.db", "--steps", "*.quick", "--drain")[0] == 0
    assert notes() == ["quick 1"]
    assert "1 due runs of handed.slow stay: this worker does not have that step" in caplog.text
    steps.quick.submit(2)
    assert asked("handed_steps:quick", "handed_steps:awaited", "--store", "log.db", "--drain")[0] == 0
    assert notes() == ["quick 1", "quick 2"]


def test_the_store_is_that_of_the_settings(
    asked: Callable[..., tuple[int, str]], steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", "elsewhere.db")
    steps.quick.submit(3)
    assert asked("handed_steps", "--drain")[0] == 0
    assert notes() == ["quick 3"]
    assert Path("elsewhere.db").exists()


def test_a_module_that_fails_when_it_is_imported_says_so_itself(steps: Any, tmp_path: Path) -> None:
    (tmp_path / "broken_steps.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "wrong_steps.py").write_text("raise ValueError('not like this')\n")
    before = sys.path[:]
    try:
        with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
            find_steps(["broken_steps"])
        with pytest.raises(ValueError, match="not like this"):
            find_steps(["wrong_steps"])
    finally:
        sys.path[:] = before


def test_the_same_step_under_two_addresses_is_one(steps: Any, tmp_path: Path) -> None:
    before = sys.path[:]
    try:
        names = [step.name for step in find_steps(["handed_steps", "handed_steps:quick"])]
    finally:
        sys.path[:] = before
        sys.modules.pop("handed_steps", None)
    assert names == ["handed.quick", "handed.slow", "handed.awaited"]
