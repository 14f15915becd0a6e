"""The queue of reports: none is lost or made twice, whoever makes it, and none is in the way of the work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from oncemore.telemetry import report_queue
from oncemore.telemetry.report_queue import ReportQueue
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def queue(errors: list[Exception]) -> Iterator[ReportQueue]:
    queue = ReportQueue(bool, errors.append)
    yield queue
    queue.close()
    assert errors == []


def test_the_thread_makes_reports_in_their_order(queue: ReportQueue) -> None:
    made: list[int] = []
    for number in range(100):
        queue.add_report(made.append, number)
    wait_until(lambda: len(made) == 100)
    assert made == list(range(100))


def test_enough_reports_wake_the_thread_before_the_time(
    queue: ReportQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 600.0)
    made: list[int] = []
    for number in range(report_queue.BATCH_SIZE):
        queue.add_report(made.append, number)
    wait_until(lambda: len(made) == report_queue.BATCH_SIZE)
    queue.add_report(made.append, -1)
    assert made[-1] == report_queue.BATCH_SIZE - 1


def test_a_thread_that_slept_makes_later_reports_too(
    queue: ReportQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "IDLE_ROUNDS", 1)
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 0.01)
    made: list[int] = []
    for number in range(3):
        queue.add_report(made.append, number)
        wait_until(lambda number=number: len(made) == number + 1)
        wait_until(lambda: not queue._is_awake)
    assert made == [0, 1, 2]


def test_a_report_added_as_the_thread_falls_asleep_is_made(
    queue: ReportQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread still seems awake when the report is added, so that the step does not wake it."""
    monkeypatch.setattr(report_queue, "IDLE_ROUNDS", 1)
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 0.01)
    made: list[str] = []

    class LateReport(ReportQueue):
        """A queue that gets a report between the last look of its thread and its sleep."""

        def __setattr__(self, name: str, value: object) -> None:
            if name == "_is_awake" and value is False and self.__dict__.get("_is_awake"):
                self.add_report(made.append, "late") if len(made) == 1 else None
            super().__setattr__(name, value)

    late = LateReport(bool, made.append)  # type: ignore[arg-type]
    late.add_report(made.append, "first")
    wait_until(lambda: made == ["first", "late"])
    late.close()


def test_a_flush_makes_the_reports_in_the_thread_of_its_caller(
    queue: ReportQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 600.0)
    threads: list[int] = []
    queue.add_report(lambda: threads.append(threading.get_ident()))
    queue.flush()
    assert threads == [threading.get_ident()]


def test_a_flush_waits_for_the_reports_that_the_thread_has_taken(queue: ReportQueue) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go_on.wait()
        made.append("slow")

    queue.add_report(slow)
    begun.wait()
    flushing = threading.Thread(target=lambda: (queue.flush(), made.append("flushed")))
    flushing.start()
    flushing.join(0.05)
    go_on.set()
    flushing.join()
    assert made == ["slow", "flushed"]


def test_a_report_may_flush_the_queue_itself(queue: ReportQueue) -> None:
    made: list[str] = []

    def flush_inside() -> None:
        queue.flush()
        made.append("outer")

    queue.add_report(flush_inside)
    queue.add_report(made.append, "inner")
    queue.flush()
    assert sorted(made) == ["inner", "outer"]


def test_reports_that_nothing_takes_are_limited(queue: ReportQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 600.0)
    monkeypatch.setattr(report_queue, "BATCH_SIZE", 5)
    monkeypatch.setattr(report_queue, "MAX_REPORTS", 10)
    monkeypatch.setattr(queue, "_run_thread", bool)  # one that does not keep up
    made: list[int] = []
    for number in range(14):
        queue.add_report(made.append, number)
    # The tenth has made all of them.
    assert made == list(range(10))


def test_a_closed_queue_makes_a_report_at_once_and_has_no_thread(queue: ReportQueue) -> None:
    made: list[str] = []
    queue.add_report(made.append, "before")
    thread = queue._thread
    queue.close()
    queue.add_report(made.append, "after")
    assert made == ["before", "after"]
    assert thread is not None
    wait_until(lambda: not thread.is_alive())


def test_an_error_of_a_report_ends_neither_the_queue_nor_the_work() -> None:
    errors: list[Exception] = []
    made: list[str] = []

    def fail() -> None:
        raise ConnectionError("no")

    queue = ReportQueue(fail, errors.append)
    queue.add_report(fail)
    queue.add_report(made.append, "later")
    wait_until(lambda: made == ["later"] and len(errors) >= 2)
    assert {type(error) for error in errors} == {ConnectionError}
    queue.close()


def run_in_child(check: Callable[[], bool]) -> int:
    """Return the exit code of a forked child: 0 if the check holds there."""
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_leaves_the_reports_of_its_parent_and_makes_its_own(
    queue: ReportQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 0.2)
    made: list[str] = []

    def makes_its_own() -> bool:
        queue.add_report(made.append, "child")
        wait_until(lambda: made == ["child"])
        return queue._making.acquire(timeout=5)

    queue.add_report(made.append, "parent")
    # Held by another thread of the parent while it forks: the child must not wait for it.
    with queue._making:
        assert run_in_child(makes_its_own) == 0
    queue.flush()
    assert made == ["parent"]


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError"])
def test_the_end_of_a_process_makes_the_reports_before_what_was_registered_before(ending: str) -> None:
    program = (
        "import atexit, sys\n"
        "from oncemore.telemetry import report_queue\n"
        "report_queue.MAX_WAIT_S = 600.0\n"
        "queue = report_queue.ReportQueue(bool, print)\n"
        "atexit.register(print, 'provider shut down')\n"
        "queue.add_report(print, 'reported')\n"
        f"{ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["reported", "provider shut down"]
