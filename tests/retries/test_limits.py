"""Time limits, in real time: these tests are about the clock."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextvars import ContextVar
from datetime import timedelta

import pytest
import trio

import oncemore
from oncemore.retries import deadlines, timeouts
from oncemore.retries.loop import CallFunction
from tests.retries.colours import COLOURS, Script, run
from tests.timing import measure_shortest, measure_shortest_call

SLEEP = {"asyncio": asyncio.sleep, "trio": trio.sleep}


def wait_for_stragglers() -> None:
    for _ in range(250):
        if not oncemore.abandoned_calls():
            break
        time.sleep(0.02)
    assert oncemore.abandoned_calls() == ()


def test_remaining_is_unknown_where_nothing_limits() -> None:
    assert oncemore.time_remaining() is None


@pytest.mark.req("TIME-1")
@pytest.mark.parametrize("colour", COLOURS)
def test_work_that_never_returns_ends_soon_after_its_limit(colour: str) -> None:
    release = threading.Event()

    def plain() -> None:
        release.wait(20)

    async def on_asyncio() -> None:
        await asyncio.sleep(20)

    async def on_trio() -> None:
        await trio.sleep(20)

    work = {"plain": plain, "asyncio": on_asyncio, "trio": on_trio}[colour]
    limited = oncemore.retrying(work, on=TimeoutError, attempts=1, timeout=0.3)
    call = {"plain": limited, "asyncio": lambda: asyncio.run(limited()), "trio": lambda: trio.run(limited)}
    caught: list[oncemore.AttemptTimeout] = []

    def cut_off() -> None:
        with pytest.raises(oncemore.AttemptTimeout, match=r"attempt 1 was cut off after 0.3 s") as error:
            call[colour]()
        caught.append(error.value)

    took = measure_shortest_call(cut_off, 0.55)
    release.set()
    assert 0.3 <= took <= 0.55
    assert type(caught[0]) is oncemore.AttemptTimeout
    assert isinstance(caught[0], TimeoutError)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_cut_off_attempt_is_tried_again_whatever_types_on_names(colour: str) -> None:
    calls = 0

    def plain() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(0.4)
        return calls

    async def coroutine() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            await SLEEP[colour](5)
        return calls

    if colour == "plain":
        assert oncemore.retrying(plain, on=KeyError, timeout=timedelta(seconds=0.1), wait=[0.01, 0.02])() == 2
        return
    work = oncemore.retrying(coroutine, on=KeyError, timeout=timedelta(seconds=0.1), wait=[0.01, 0.02])
    assert (trio.run(work) if colour == "trio" else asyncio.run(work())) == 2


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_a_timeout_that_the_work_raises_by_itself_stays_its_own(colour: str) -> None:
    own = TimeoutError("the provider's")
    with pytest.raises(TimeoutError) as caught:
        run(colour, Script(own), on=KeyError, timeout=5)
    assert caught.value is own


def test_values_errors_and_context_cross_to_the_helper_thread_and_back() -> None:
    here: ContextVar[str] = ContextVar("here")
    here.set("caller's")
    seen = []

    def work() -> str:
        seen.append((threading.current_thread().name, here.get(), oncemore.time_remaining()))
        return "value"

    assert oncemore.retrying(work, on=KeyError, timeout=5)() == "value"
    assert oncemore.retrying(work, on=KeyError, timeout=5)() == "value"
    (name, context, left), (other, _, _) = seen
    assert name == other == "oncemore-helper"
    assert context == "caller's"
    assert left is not None
    assert 4 < left <= 5
    with pytest.raises(SystemExit):
        oncemore.retrying(Script(SystemExit(3)).turn, on=KeyError, timeout=5)()
    with pytest.raises(LookupError):
        oncemore.retrying(Script(LookupError("x")).turn, on=KeyError, timeout=5)()


@pytest.mark.req("TIME-10", "TIME-7")
def test_a_straggler_is_listed_until_it_ends_and_its_late_result_goes_nowhere() -> None:
    release, over = threading.Event(), threading.Event()

    def work() -> str:
        release.wait(20)
        over.set()
        return "too late"

    limited = oncemore.retrying(work, on=TimeoutError, attempts=2, timeout=0.1, wait=0.01, name="slow import")
    with pytest.raises(oncemore.AttemptTimeout):
        limited()
    listed = [straggler for straggler in oncemore.abandoned_calls() if straggler.name == "slow import"]
    assert len(listed) == 2  # `retry` declares the work safe to repeat: both calls are in flight
    assert listed[0].limit_s == 0.1
    assert listed[0].since <= time.time()
    release.set()
    assert over.wait(5)
    wait_for_stragglers()


def test_the_number_of_stragglers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_stragglers()
    monkeypatch.setattr(timeouts, "MOST_STRAGGLERS", 2)
    release = threading.Event()
    limited = oncemore.retrying(lambda: release.wait(20), on=KeyError, attempts=1, timeout=0.05)
    for _ in range(2):
        with pytest.raises(oncemore.AttemptTimeout, match="cut off"):
            limited()
    with pytest.raises(oncemore.AttemptTimeout, match="not started: 2 calls"):
        limited()
    release.set()
    wait_for_stragglers()


def test_helpers_are_used_again_and_only_a_few_are_kept() -> None:
    ready = threading.Barrier(20, timeout=10)
    limited = oncemore.retrying(ready.wait, on=KeyError, attempts=1, timeout=10)
    callers = [threading.Thread(target=limited) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for _ in range(100):
        threads = [one for one in threading.enumerate() if isinstance(one, timeouts.HelperThread)]
        alive = sum(not one.busy for one in threads)  # others' stragglers may still run
        if alive <= timeouts.MOST_IDLE:
            break
        time.sleep(0.02)
    assert alive <= timeouts.MOST_IDLE


def test_a_forked_child_makes_its_own_helpers() -> None:
    limited = oncemore.retrying(lambda: 5, on=KeyError, attempts=1, timeout=5)
    assert limited() == 5
    child = os.fork()
    if child == 0:
        os._exit(0 if limited() == 5 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.MonkeyPatch.context() as patch:  # the same without a fork
        helper = object()
        patch.setattr(timeouts, "_lock", held := threading.Lock())
        patch.setattr(timeouts, "_idle", [helper])
        patch.setattr(timeouts, "_stragglers", {helper: deadlines.AbandonedCall("work", 0.0, 1.0)})
        timeouts._reset_after_fork()
        assert (timeouts._idle, timeouts._stragglers) == ([], {})
        assert timeouts._lock is not held


def test_who_is_interrupted_goes_at_once_and_the_call_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Interrupted(timeouts.SimpleQueue[object]):
        def get(self, block: bool = True, timeout: float | None = None) -> object:
            if timeout == 30:
                raise KeyboardInterrupt
            return super().get(block, timeout)

    monkeypatch.setattr(timeouts, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        oncemore.retrying(lambda: over.wait(20), on=KeyError, attempts=1, timeout=30)()
    assert 30 in [left.limit_s for left in oncemore.abandoned_calls()]
    over.set()
    wait_for_stragglers()


@pytest.mark.req("TIME-2")
@pytest.mark.parametrize("colour", COLOURS)
def test_an_inner_call_inherits_the_smaller_limit(colour: str) -> None:
    seen, over = [], threading.Event()

    def inner_plain() -> None:
        seen.append(oncemore.time_remaining())
        over.wait(2)

    async def inner_coroutine() -> None:
        seen.append(oncemore.time_remaining())
        await SLEEP[colour](5)

    def call() -> None:
        if colour == "plain":
            inner = oncemore.retrying(inner_plain, on=KeyError, timeout=60, attempts=1)
            outer = oncemore.retrying(inner, on=KeyError, total_timeout=0.3, attempts=5)
            with pytest.raises(oncemore.DeadlineExceeded):
                outer()
        else:
            inner_async = oncemore.retrying(inner_coroutine, on=KeyError, timeout=60, attempts=1)
            outer_async = oncemore.retrying(inner_async, on=KeyError, total_timeout=0.3, attempts=5)
            with pytest.raises(oncemore.DeadlineExceeded):
                trio.run(outer_async) if colour == "trio" else asyncio.run(outer_async())

    assert measure_shortest_call(call, 0.6) < 0.6
    assert all(left is not None and left <= 0.3 for left in seen)
    over.set()
    wait_for_stragglers()


@pytest.mark.req("TIME-1")
@pytest.mark.parametrize("how", ["call", "block"])
def test_work_that_loses_its_cancellation_is_cut_off_all_the_same(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `asyncio.wait_for` does in Python 3.11 when its answer comes at the same moment."""
    monkeypatch.setattr(deadlines, "AGAIN_S", 0.05)
    lost: list[str] = []

    async def work() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                lost.append("one")
        await asyncio.sleep(5)

    async def block() -> None:
        async for attempt in oncemore.attempts(on=KeyError, attempts=1, timeout=0.05):
            async with attempt:
                await work()

    call = oncemore.retrying(work, on=KeyError, attempts=1, timeout=0.05)

    async def main() -> None:
        with pytest.raises(oncemore.AttemptTimeout):
            await (call() if how == "call" else block())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0.2)  # nobody asks any more

    began = time.monotonic()
    asyncio.run(main())
    assert len(lost) == 3
    assert time.monotonic() - began < 15


def test_work_that_lets_go_slowly_may_do_so() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.2)
            cleaned.append("up")

    with pytest.raises(oncemore.AttemptTimeout):
        asyncio.run(oncemore.retrying(work, on=KeyError, attempts=1, timeout=0.05)())
    assert cleaned == ["up"]


def test_who_cancels_the_call_at_its_limit_gets_a_cancellation() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            task.cancel()  # somebody outside, at the same moment
            raise

    async def main() -> None:
        nonlocal task
        task = asyncio.create_task(oncemore.retrying(work, on=KeyError, attempts=1, timeout=0.05)())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1

    task: asyncio.Task[None]
    asyncio.run(main())


def test_a_light_inner_call_does_not_wait_past_the_outer_limit() -> None:
    script = Script(OSError("x"))
    inner = oncemore.retrying(script.turn, on=OSError, attempts=5, wait=[5.0, 6.0])
    outer = oncemore.retrying(inner, on=KeyError, total_timeout=0.5)

    def call() -> None:
        with pytest.raises(OSError, match="x") as caught:
            outer()
        assert "would start in 5 s" in caught.value.__notes__[-1]

    assert measure_shortest_call(call, 0.4) < 0.4


@pytest.mark.req("BACKOFF-17")
def test_waiting_costs_no_cpu() -> None:
    work = oncemore.retrying(Script(OSError("x"), "fine").turn, on=OSError, wait=[2.0], attempts=2)
    began, cpu = time.monotonic(), time.process_time()
    assert work() == "fine"
    assert time.monotonic() - began >= 2.0
    assert time.process_time() - cpu < 0.05


@pytest.mark.req("CLASS-18")
def test_cancelling_an_asyncio_call_ends_it_at_once_in_the_attempt_and_in_the_wait() -> None:
    calls = 0

    @oncemore.retry(on=OSError, wait=[30.0], attempts=2)
    async def work(fail: bool) -> None:
        nonlocal calls
        calls += 1
        if fail:
            raise OSError
        await asyncio.sleep(30)

    async def main(fail: bool) -> float:
        nonlocal calls
        calls = 0
        task = asyncio.create_task(work(fail))
        await asyncio.sleep(0.05)
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    for fail in (True, False):
        assert measure_shortest(lambda: asyncio.run(main(fail)), 0.5) < 0.5  # noqa: B023 - it is called here
        assert calls == 1


def test_cancelling_a_trio_call_ends_it_at_once() -> None:
    script = Script(OSError("x"))

    @oncemore.retry(on=OSError, wait=[30.0], attempts=2)
    async def work() -> object:
        return script.turn()

    async def main() -> None:
        with trio.move_on_after(0.1) as scope:
            await work()
        assert scope.cancelled_caught

    trio.run(main)
    assert script.calls == 1


@pytest.mark.req("CLASS-18")
@pytest.mark.parametrize("where", ["attempt", "wait", "limited"])
def test_ctrl_c_ends_a_plain_call_at_once(where: str) -> None:
    limit = "timeout=30" if where == "limited" else ""
    code = f"""
import oncemore, time, sys
calls = 0
@oncemore.retry(on=OSError, wait=[30.0], attempts=2, fallback="swallowed", {limit})
def work():
    global calls
    calls += 1
    print("in", flush=True)
    if {where!r} == "wait":
        raise OSError
    time.sleep(30)
try:
    work()
except KeyboardInterrupt:
    print("interrupted", calls, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "in\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, _ = child.communicate(timeout=10)
    assert out == "interrupted 1\n"
    assert time.monotonic() - began < 2


class Tracked(Exception):
    pass


def plain_failing() -> None:
    raise Tracked


async def async_failing() -> None:
    raise Tracked


@pytest.mark.parametrize("options", [{}, {"total_timeout": 60}, {"timeout": 60}], ids=str)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_raised_error_is_freed_without_the_garbage_collector(
    colour: str, options: dict[str, float]
) -> None:
    plain = oncemore.retrying(plain_failing, on=Tracked, attempts=2, wait=[0.001], **options)  # type: ignore[arg-type]
    coroutine = oncemore.retrying(async_failing, on=Tracked, attempts=2, wait=[0.001], **options)  # type: ignore[arg-type]

    def raised() -> "weakref.ref[Tracked]":
        try:
            plain()
        except Tracked as error:
            return weakref.ref(error)
        raise AssertionError

    async def raised_async() -> bool:
        try:
            await coroutine()
        except Tracked as error:
            reference = weakref.ref(error)
        return reference() is None

    gc.disable()
    try:
        if colour == "plain":
            assert raised()() is None
        else:
            assert trio.run(raised_async) if colour == "trio" else asyncio.run(raised_async())
    finally:
        gc.enable()


def test_what_a_failed_attempt_held_is_free_while_the_call_waits() -> None:
    class Big:
        pass

    held: list[weakref.ref[Big]] = []

    async def attempt() -> None:
        big = Big()
        held.append(weakref.ref(big))
        raise OSError

    async def main() -> None:
        task = asyncio.create_task(oncemore.retrying(attempt, on=OSError, wait=[5.0], attempts=2)())
        await asyncio.sleep(0.1)
        assert held[0]() is None
        task.cancel()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@pytest.mark.parametrize("on", ["transient", "not-sent", ConnectionError], ids=str)
@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_the_end_of_the_whole_calls_time_has_its_note_and_its_fallback(colour: str, on: object) -> None:
    async def work() -> None:
        await SLEEP[colour](5)

    def run_it(**more: object) -> object:
        limited = oncemore.retrying(work, on=on, total_timeout=0.1, **more)  # type: ignore[arg-type]
        return trio.run(limited) if colour == "trio" else asyncio.run(limited())

    assert run_it(fallback="plan B") == "plan B"
    with pytest.raises(oncemore.DeadlineExceeded) as caught:
        run_it()
    assert "the time limit of the whole call has passed" in caught.value.__notes__[0]


def test_an_inner_calls_end_is_no_reason_to_try_again() -> None:
    calls = 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(5)

    inner = oncemore.retrying(slow, on=KeyError, total_timeout=0.05)
    outer = oncemore.retrying(inner, on="transient", total_timeout=30)
    with pytest.raises(oncemore.DeadlineExceeded):
        asyncio.run(outer())
    assert calls == 1


def test_a_call_that_ends_as_it_is_left_is_no_straggler() -> None:
    helper = timeouts._take_helper("just in time")
    helper.jobs.put((int, timeouts.SimpleQueue()))
    while helper.busy:
        time.sleep(0.001)
    timeouts._abandon_helper(helper, "just in time", CallFunction(1, 0.1))
    assert "just in time" not in {straggler.name for straggler in oncemore.abandoned_calls()}
