"""Blocks: `for attempt in oncemore.attempts(...)`, plain and async, behave as calls do."""

import asyncio
import time

import pytest
import trio

import oncemore
from oncemore.retries import options
from oncemore.testing import FakeClock

RUNNERS = {"asyncio": asyncio.run, "trio": lambda coroutine: trio.run(lambda: coroutine)}
each_loop = pytest.mark.parametrize("loop", ["asyncio", "trio"])


def test_a_block_is_tried_again_until_it_is_good(instant_retries: FakeClock) -> None:
    numbers, lasts = [], []
    for attempt in oncemore.attempts(on=OSError, wait=[1.0, 2.0, 3.0], attempts=4):
        with attempt:
            numbers.append(attempt.number)
            lasts.append(attempt.last)
            assert attempt.remaining() is None
            if attempt.number < 3:
                raise OSError
    assert numbers == [1, 2, 3]
    assert lasts == [False, False, False]
    assert instant_retries.delays == [1.0, 2.0]
    assert repr(attempt) == "<attempt 3 of block>"


def test_a_block_that_stays_bad_raises_its_own_error_with_a_note(instant_retries: FakeClock) -> None:
    lasts = []
    with pytest.raises(OSError, match="x") as caught:
        for attempt in oncemore.attempts(on=OSError, name="load"):
            with attempt:
                lasts.append(attempt.last)
                raise OSError("x")
    assert lasts == [False, False, True]
    assert "load: attempt 3" in caught.value.__notes__[0]
    assert oncemore.get_decision(caught.value) is not None


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_what_is_not_covered_leaves_a_block_at_once(
    error: type[BaseException], instant_retries: FakeClock
) -> None:
    turns = 0
    with pytest.raises(error):
        for attempt in oncemore.attempts(on=OSError):
            with attempt:
                turns += 1
                raise error
    assert turns == 1


def test_leaving_a_block_by_break_or_return_is_fine(instant_retries: FakeClock) -> None:
    def first() -> int | None:
        for attempt in oncemore.attempts(on=OSError):
            with attempt:
                return attempt.number
        return None

    assert first() == 1
    for attempt in oncemore.attempts(on=OSError):
        with attempt:
            break
    assert attempt.number == 1


def test_an_error_handled_outside_the_attempt_ends_the_loop(instant_retries: FakeClock) -> None:
    handled = []
    for attempt in oncemore.attempts(on=OSError, attempts=2):
        try:
            with attempt:
                raise OSError(attempt.number)
        except OSError as error:
            handled.append(error.args[0])
    assert handled == [2]


def test_each_loop_is_a_new_call(instant_retries: FakeClock) -> None:
    attempts = oncemore.attempts(on=OSError, attempts=2)
    for _ in range(3):
        numbers = []
        for attempt in attempts:
            with attempt:
                numbers.append(attempt.number)
                if attempt.number == 1:
                    raise OSError
        assert numbers == [1, 2]


def test_a_body_that_does_not_use_its_attempt_is_told_so() -> None:
    with pytest.raises(oncemore.UsageError, match="put the work into `with attempt:`"):
        for _attempt in oncemore.attempts(on=OSError):
            pass


def test_an_attempt_is_used_once(instant_retries: FakeClock) -> None:
    for attempt in oncemore.attempts(on=OSError):
        with attempt:
            pass
        with pytest.raises(oncemore.UsageError, match="attempt 1 has ended"), attempt:
            pass


def test_a_plain_block_cannot_have_a_timeout() -> None:
    with pytest.raises(oncemore.UsageError, match="cannot be interrupted"):
        for _ in oncemore.attempts(on=OSError, timeout=5):
            raise AssertionError


def test_a_block_whose_time_is_up_is_not_begun(instant_retries: FakeClock) -> None:
    with pytest.raises(oncemore.DeadlineExceeded):
        for _ in oncemore.attempts(on=OSError, deadline=instant_retries.wall() - 1):
            raise AssertionError


def test_within_stops_between_attempts_and_is_seen_inside(instant_retries: FakeClock) -> None:
    left = []
    with pytest.raises(OSError, match="x"):
        for attempt in oncemore.attempts(on=OSError, total_timeout=10, wait=[3.0, 4.0, 5.0], attempts=9):
            with attempt:
                left.append(attempt.remaining())
                raise OSError("x")
    assert left == [10.0, 7.0, 3.0]


def test_hooks_are_called_in_blocks(instant_retries: FakeClock) -> None:
    told: list[tuple[int, str]] = []
    with pytest.raises(OSError, match="x"):
        for attempt in oncemore.attempts(
            on=OSError, attempts=2, on_retry=lambda report: told.append((report.number, "retry")),
            on_give_up=lambda report: told.append((report.number, "give up")),
        ):  # fmt: skip
            with attempt:
                raise OSError("x")
    assert told == [(1, "retry"), (2, "give up")]


async def aware(report: oncemore.RetryReport) -> None:
    """An async hook."""


def test_an_async_hook_in_a_plain_block_is_refused(instant_retries: FakeClock) -> None:
    with pytest.raises(oncemore.UsageError, match="async hook needs `async with attempt:`"):
        for attempt in oncemore.attempts(on=OSError, on_retry=aware):
            with attempt:
                raise OSError


@pytest.mark.parametrize("option", ["until", "fallback"])
def test_what_has_no_meaning_for_a_block_is_refused(option: str) -> None:
    with pytest.raises(oncemore.UsageError, match=f"takes no {option}="):
        oncemore.attempts(on=OSError, **{option: lambda value: True})  # type: ignore[arg-type]


@pytest.mark.parametrize("entered", ["with", "async with"])
@each_loop
def test_an_async_block_is_tried_again_until_it_is_good(
    loop: str, entered: str, instant_retries: FakeClock
) -> None:
    numbers: list[int] = []

    async def main() -> None:
        async for attempt in oncemore.attempts(on=OSError, wait=[1.0, 2.0], total_timeout=60):
            if entered == "with":
                with attempt:
                    work(attempt.number)
            else:
                async with attempt:
                    work(attempt.number)

    def work(number: int) -> None:
        numbers.append(number)
        if number < 3:
            raise OSError

    RUNNERS[loop](main())
    assert numbers == [1, 2, 3]
    assert instant_retries.delays == [1.0, 2.0]


@each_loop
def test_an_async_block_can_be_cut_off(loop: str) -> None:
    sleep = {"asyncio": asyncio.sleep, "trio": trio.sleep}[loop]
    numbers: list[int] = []

    async def main() -> None:
        async for attempt in oncemore.attempts(on=KeyError, wait=[0.01, 0.02], timeout=0.1):
            async with attempt:
                numbers.append(attempt.number)
                if attempt.number < 3:
                    await sleep(20)

    began = time.monotonic()
    RUNNERS[loop](main())
    assert numbers == [1, 2, 3]
    assert time.monotonic() - began < 2


@each_loop
def test_an_async_block_that_is_always_cut_off_raises_the_timeout(loop: str) -> None:
    sleep = {"asyncio": asyncio.sleep, "trio": trio.sleep}[loop]

    async def main(**limits: float) -> None:
        async for attempt in oncemore.attempts(on=OSError, attempts=1, **limits):  # type: ignore[arg-type]
            async with attempt:
                await sleep(20)

    with pytest.raises(oncemore.AttemptTimeout, match="the limit of one attempt") as caught:
        RUNNERS[loop](main(timeout=0.05))
    assert type(caught.value) is oncemore.AttemptTimeout
    with pytest.raises(oncemore.DeadlineExceeded, match="the whole call"):
        RUNNERS[loop](main(total_timeout=0.05))


@each_loop
def test_an_async_block_keeps_its_own_errors_and_timeouts(loop: str, instant_retries: FakeClock) -> None:
    for error in (KeyError("own"), TimeoutError("own")):

        async def main(error: Exception = error) -> None:
            async for attempt in oncemore.attempts(on=LookupError, attempts=1, timeout=5):
                async with attempt:
                    raise error

        with pytest.raises(type(error)) as caught:
            RUNNERS[loop](main())
        assert caught.value is error


@each_loop
def test_cancellation_leaves_an_async_block_at_once(loop: str, instant_retries: FakeClock) -> None:
    turns = 0

    async def body() -> None:
        nonlocal turns
        async for attempt in oncemore.attempts(on=Exception, timeout=30):
            async with attempt:
                turns += 1
                await {"asyncio": asyncio.sleep, "trio": trio.sleep}[loop](30)

    async def on_asyncio() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def on_trio() -> None:
        with trio.move_on_after(0.05):
            await body()

    RUNNERS[loop]({"asyncio": on_asyncio, "trio": on_trio}[loop]())
    assert turns == 1


@each_loop
def test_async_hooks_are_awaited_in_async_blocks(loop: str, instant_retries: FakeClock) -> None:
    told: list[int] = []

    async def hook(report: oncemore.RetryReport) -> None:
        told.append(report.number)

    async def main() -> None:
        async for attempt in oncemore.attempts(on=OSError, attempts=2, on_retry=hook, on_give_up=told.append):
            async with attempt:
                if attempt.number == 1:
                    raise OSError

    RUNNERS[loop](main())
    assert told == [1]


@each_loop
def test_a_timeout_needs_async_with(loop: str) -> None:
    async def main() -> None:
        async for attempt in oncemore.attempts(on=OSError, timeout=5):
            with attempt:
                raise AssertionError

    with pytest.raises(oncemore.UsageError, match="needs `async with attempt:`"):
        RUNNERS[loop](main())


def test_a_block_that_gives_up_leaves_no_garbage(instant_retries: FakeClock) -> None:
    import gc
    import weakref

    class Tracked(Exception):
        pass

    def fails() -> "weakref.ref[Tracked]":
        try:
            for attempt in oncemore.attempts(on=Tracked, attempts=2):
                with attempt:
                    raise Tracked
        except Tracked as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        assert fails()() is None
    finally:
        gc.enable()


def test_the_same_options_are_checked_once_and_told_apart_by_type(instant_retries: FakeClock) -> None:
    with pytest.warns(oncemore.PolicyWarning, match="never grows"):
        first = oncemore.attempts(on=OSError, wait=0.0, attempts=4)
    again = oncemore.attempts(on=OSError, wait=0.0, attempts=4)  # no second warning
    assert first._plan is again._plan
    oncemore.attempts(on=OSError, attempts=1)
    with pytest.raises(oncemore.UsageError, match="max_attempts is True"):
        oncemore.attempts(on=OSError, attempts=True)
    assert (
        oncemore.attempts(on=OSError, wait=[1, 2])._plan
        is not oncemore.attempts(on=OSError, wait=[1, 2])._plan
    )

    def hook(report: oncemore.RetryReport) -> None: ...

    kept = oncemore.attempts(on=OSError, on_retry=hook)
    assert kept._plan is not oncemore.attempts(on=OSError, on_retry=hook)._plan
    budget = oncemore.Budget()
    assert oncemore.attempts(on=OSError, budget=budget)._plan is not kept._plan
    assert not any(budget in told for told in options._plans)
    for seed in range(600):
        oncemore.attempts(on=OSError, seed=seed)
    assert len(options._plans) <= options._MOST_PLANS


def test_plans_are_not_kept_across_the_switch(
    monkeypatch: pytest.MonkeyPatch, instant_retries: FakeClock
) -> None:
    def numbers() -> list[int]:
        seen = []
        try:
            for attempt in oncemore.attempts(on=OSError):
                with attempt:
                    seen.append(attempt.number)
                    raise OSError
        except OSError:
            return seen
        raise AssertionError

    assert numbers() == [1, 2, 3]
    monkeypatch.setenv("ONCEMORE_RETRY", "off")
    assert numbers() == [1]


def test_the_turns_of_an_async_loop_are_their_own_iterator(instant_retries: FakeClock) -> None:
    turns = aiter(oncemore.attempts(on=OSError))
    assert aiter(turns) is turns
