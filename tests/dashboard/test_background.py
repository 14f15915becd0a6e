"""Computations behind a page: none of them holds up a page, a second one, or the end of the process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.dashboard import background
from oncemore.dashboard.background import BackgroundTasks
from oncemore.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class SlowWork:
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, progress: Callable[[int, int], object]) -> str:
        self.calls += 1
        progress(30, 100)
        progress(30, 100)  # the same hundredth: nothing to show
        self.has_begun.set()
        assert self.may_end.wait(30)
        return f"result {self.calls}"


@pytest.fixture
def slow() -> Iterator[SlowWork]:
    work = SlowWork()
    yield work
    work.may_end.set()


def wait_for_result(tasks: BackgroundTasks, key: str) -> Any:
    """Return the report of a computation that has ended."""
    with tasks._changed:
        assert tasks._changed.wait_for(lambda: tasks._reports[key].is_over, 30)
        return tasks._reports[key]


def test_a_quick_result_is_there_at_once_and_is_computed_once() -> None:
    tasks, calls = BackgroundTasks(), list[int]()

    def work(progress: object) -> str:
        calls.append(1)
        return "sums"

    tasks.compute_report("a", work)
    wait_for_result(tasks, "a")
    assert tasks.compute_report("a", work).result == "sums"
    assert calls == [1]


def test_a_slow_one_shows_its_progress_and_does_not_hold_up_the_page(slow: SlowWork) -> None:
    tasks = BackgroundTasks()
    assert tasks.start_task("verify", slow, "operator")
    assert slow.has_begun.wait(30)
    report = tasks.compute_report("verify", slow)
    assert (report.is_over, report.done, report.total, report.by) == (False, 30, 100, "operator")
    assert not tasks.start_task("verify", slow), "it runs already"
    seen = tasks.change_number
    slow.may_end.set()
    assert wait_for_result(tasks, "verify").result == "result 1"
    assert tasks.change_number > seen, "live pages are rendered again"


def test_faults_are_reported_and_the_next_computation_runs() -> None:
    tasks = BackgroundTasks()

    def fail(progress: object) -> None:
        raise StoreError("entry 7 was altered")

    def crash(progress: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    tasks.start_task("a", fail)
    tasks.start_task("b", crash)
    tasks.start_task("c", lambda progress: "fine")
    assert wait_for_result(tasks, "c").result == "fine"
    assert wait_for_result(tasks, "a").fault == "entry 7 was altered"
    assert wait_for_result(tasks, "b").fault == "ZeroDivisionError: a fault of ours"


def test_an_old_result_is_computed_again_but_not_more_often_than_it_takes() -> None:
    now, calls = [1000.0], list[int]()
    tasks = BackgroundTasks(lambda: now[0])

    def work(progress: object) -> int:
        calls.append(1)
        now[0] += 10.0  # it takes ten seconds
        return len(calls)

    tasks.compute_report("a", work)
    wait_for_result(tasks, "a")
    now[0] += background.FRESH_S + 1
    assert tasks.compute_report("a", work).result == 1, "it rests for twenty times its own time"
    now[0] += 10.0 * background.MIN_REST
    tasks.compute_report("a", work)
    assert wait_for_result(tasks, "a").result == 2


def test_results_and_waiting_computations_have_a_limit(
    slow: SlowWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_RESULTS", 3)
    monkeypatch.setattr(background, "MAX_WAITING", 2)
    tasks = BackgroundTasks()
    for number in range(5):
        tasks.start_task(f"{number}", lambda progress: "done")
        wait_for_result(tasks, f"{number}")
    assert [tasks.find_report(f"{number}") is None for number in range(5)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    tasks.start_task("slow", slow)
    assert slow.has_begun.wait(30)
    tasks.start_task("x", lambda progress: "done")
    tasks.start_task("y", lambda progress: "done")
    assert not tasks.start_task("x", slow), "it waits already"
    with pytest.raises(UsageError, match="too many"):
        tasks.start_task("z", lambda progress: "done")
