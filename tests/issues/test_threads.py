"""Issue 15, 1.3: a call in a thread uses the store of its surroundings, or is refused."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from tests.issues import isolated
from tests.shell import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ran: list[int] = []


@oncemore.step(effect="once", name="issues.pay")
def pay(number: int) -> int:
    ran.append(number)
    return number


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    ran.clear()


class Codec:
    """A codec that cannot be pickled."""

    id = "issues"

    def __init__(self) -> None:
        self.encode = self.decode = lambda data: data


def run_in_thread(call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises in a new thread, which has an empty context."""
    results: list[Any] = []

    def target() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(30)
    return results[0]


def run_in_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(30)


def run_in_asyncio_thread(call: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(asyncio.to_thread(call), 30))


def run_in_loop_executor(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call)

    return asyncio.run(main())


WAYS = [run_in_thread, run_in_pool, run_in_asyncio_thread, run_in_loop_executor]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_thread_uses_the_engine_that_the_process_has_entered(way: Any, tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "mine.db"):
        assert pay(1) == 1
        assert way(lambda: pay(1)) == 1
        assert way(lambda: pay.last_run(1).status) == "COMPLETE"
    assert ran == [1]
    assert not (tmp_path / ".oncemore").exists(), "a second store was created"


def test_a_thread_outside_uses_the_engine_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "settings.db"))
    with oncemore.open(tmp_path / "mine.db"):
        pass
    assert run_in_thread(lambda: pay(1)) == 1
    assert not (tmp_path / "mine.db").exists()
    assert (tmp_path / "settings.db").exists()


def test_a_thread_between_several_engines_is_refused_with_their_names(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "one.db") as one, oncemore.open(tmp_path / "two.db") as two:
        refused = run_in_thread(lambda: pay(1))
        assert isinstance(refused, oncemore.UsageError)
        assert one.url in str(refused)
        assert two.url in str(refused)
        assert ran == []
        assert run_in_thread(lambda: pay.bind(one)(1)) == 1
        assert run_in_asyncio_thread(lambda: pay(1)) == 1, "asyncio.to_thread copies the context"
    assert ran == [1, 1]


def test_a_thread_with_its_own_block_uses_that_engine(tmp_path: Path) -> None:
    def call() -> Any:
        with oncemore.open(tmp_path / "own.db") as own:
            pay(1)
            return pay.bind(own).last_run(1)

    with oncemore.open(tmp_path / "mine.db") as mine:
        assert run_in_thread(call) is not None
        assert pay.bind(mine).last_run(1) is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("threaded", [False, True])
def test_a_forked_child_uses_the_engine_of_its_parent(threaded: bool, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")

    def child(answers: Any) -> None:
        answers.put(run_in_thread(lambda: pay(1)) if threaded else pay(1))

    def inside_another_engine() -> None:
        with oncemore.open(tmp_path / "other.db"):
            entered.set()
            assert leave.wait(60)

    entered, leave = threading.Event(), threading.Event()
    other = threading.Thread(target=inside_another_engine)
    with oncemore.open(tmp_path / "mine.db"):
        other.start()
        assert entered.wait(30)
        assert pay(1) == 1
        answers = fork.SimpleQueue()
        process = fork.Process(target=child, args=(answers,))
        process.start()
        assert answers.get() == 1
        process.join(30)
        leave.set()
        other.join(30)
        assert len(pay.last_run(1).attempts) == 1
    assert ran == [1], "the child found it done"
    assert not (tmp_path / "other.db").exists()


def test_steps_inside_an_isolated_attempt_use_the_store_of_its_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    with oncemore.open(tmp_path / "mine.db"):
        assert isolated.outer(1) == 2
        assert isolated.inner.last_run(1).status == "COMPLETE"
    assert not (tmp_path / ".oncemore").exists(), "a second store was created"


def test_steps_inside_an_isolated_attempt_are_refused_where_the_store_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    with oncemore.open("memory:"):
        run = isolated.outer.run(1)
        assert run.status == "HARD_FAIL"
        assert "memory: cannot be opened" in run.error["message"]
    with oncemore.open(tmp_path / "one.db") as one, oncemore.open(tmp_path / "two.db"):
        run = run_in_thread(lambda: isolated.outer.bind(one).run(1))
        assert "has entered 2 engines" in run.error["message"]
    codec = Codec()
    with oncemore.open(tmp_path / "sealed.db", codec=codec):
        assert "cannot be sent" in isolated.outer.run(1).error["message"]
    assert not (tmp_path / ".oncemore").exists(), "a second store was created"
