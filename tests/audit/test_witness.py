"""A recorder gets every failure and every end of a call, sync and async, also ends from outside."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore.classifiers.classify import classify
from oncemore.policy.policy import Policy
from oncemore.retries.attempts import Attempts
from oncemore.retries.driver import wrap_function
from oncemore.retries.plan import RetryPlan
from oncemore.testing import FakeClock, instant_waits
from tests.retries.colours import COLOURS, RUNNERS, Script

if TYPE_CHECKING:
    from collections.abc import Callable

each_colour = pytest.mark.parametrize("colour", COLOURS)


class Listener:
    """A recorder that stores short words."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.times: list[float] = []

    def record_failure(self, report: oncemore.RetryReport) -> None:
        self.heard.append(f"{report.number} {report.decision.reason}")
        self.times.append(report.decision.situation.now)

    def record_end(self, number: int, now: float, error: BaseException | None) -> None:
        self.heard.append(f"{number} {'good' if error is None else type(error).__name__}")
        self.times.append(now)


def plan_for(listener: Listener, **more: Any) -> RetryPlan:
    return RetryPlan(
        "work", Policy(jitter=oncemore.Jitter("none")), lambda error, failure: isinstance(error, OSError),
        classify, witness=listener, **more,
    )  # fmt: skip


def run(colour: str, listener: Listener, turn: Callable[[], object], **more: Any) -> object:
    plan = plan_for(listener, **more)
    if colour == "plain":
        return wrap_function(plan, turn, "plain")()

    async def work() -> object:
        return turn()

    return RUNNERS[colour](wrap_function(plan, work, "coroutine"))


@each_colour
@pytest.mark.parametrize(
    ("turns", "heard"),
    [
        ((1,), ["1 good"]),
        ((OSError(), 1), ["1 retry", "2 good"]),
        ((OSError(), OSError(), OSError()), ["1 retry", "2 retry", "3 max_attempts_exceeded"]),
        ((OSError(), KeyError()), ["1 retry", "2 not_retryable"]),
        ((KeyError(),), ["1 not_retryable"]),
        ((KeyboardInterrupt(),), ["1 KeyboardInterrupt"]),
        ((OSError(), SystemExit()), ["1 retry", "2 SystemExit"]),
    ],
    ids=str,
)
def test_every_call_has_one_end(colour: str, turns: tuple[object, ...], heard: list[str]) -> None:
    listener, script = Listener(), Script(*turns)
    with instant_waits() as clock, suppress(BaseException):
        run(colour, listener, script.turn)
    assert listener.heard == heard
    assert listener.times == sorted(listener.times)
    assert sum(clock.delays) == listener.times[-1] - 1_800_000_000.0


@each_colour
def test_a_fallback_does_not_make_an_exhausted_call_good(colour: str) -> None:
    listener = Listener()
    with instant_waits():
        assert run(colour, listener, Script(OSError()).turn, fallback="instead") == "instead"
    assert listener.heard[-1] == "3 max_attempts_exceeded"


@each_colour
def test_an_error_in_a_hook_or_in_until_is_an_end_from_outside(colour: str) -> None:
    listener = Listener()
    with instant_waits(), pytest.raises(ZeroDivisionError):
        run(colour, listener, Script(OSError()).turn, on_retry=lambda report: 1 / 0)
    with instant_waits(), pytest.raises(ZeroDivisionError):
        run(colour, listener, Script(1).turn, until=lambda value: 1 / 0)
    assert listener.heard == ["1 retry", "1 ZeroDivisionError", "1 ZeroDivisionError"]


def test_a_cancelled_attempt_is_recorded_at_once() -> None:
    listener = Listener()

    async def for_ever() -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(wrap_function(plan_for(listener), for_ever, "coroutine")())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert listener.heard == ["1 CancelledError"]

    asyncio.run(main())


def test_a_cancelled_wait_is_recorded_at_once() -> None:
    listener = Listener()

    async def main() -> None:
        task = asyncio.create_task(wrap_function(plan_for(listener), failing, "coroutine")())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert listener.heard == ["1 retry", "1 CancelledError"]

    async def failing() -> None:
        raise OSError

    asyncio.run(main())


def test_a_cancelled_scope_of_trio_is_recorded() -> None:
    listener = Listener()

    async def main() -> None:
        with trio.move_on_after(0.01):
            await wrap_function(plan_for(listener), trio.sleep_forever, "coroutine")()
        assert listener.heard == ["1 Cancelled"]

    trio.run(main)


def test_a_coroutine_from_a_plain_function_is_witnessed_where_it_is_awaited() -> None:
    listener = Listener()

    async def inner() -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(wrap_function(plan_for(listener), lambda: inner(), "plain")())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert listener.heard == ["1 CancelledError"]


def test_an_error_that_ends_a_call_keeps_its_traceback_as_it_was() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    names = []
    for listener in (None, Listener()):
        plan = plan_for(listener, deadline=4e9)  # type: ignore[arg-type]
        try:
            wrap_function(plan, stop, "plain")()
        except KeyboardInterrupt as error:
            names.append([frame.name for frame in traceback.extract_tb(error.__traceback__)])
    assert names[0] == names[1]


def test_a_block_is_witnessed_and_one_that_is_left_early_too() -> None:
    listener = Listener()
    script = Script(OSError(), 1)
    with instant_waits():
        for attempt in Attempts(plan_for(listener)):
            with attempt:
                script.turn()
    assert listener.heard == ["1 retry", "2 good"]

    def left_early() -> None:
        for attempt in Attempts(plan_for(listener)):
            with attempt:
                raise KeyboardInterrupt

    listener.heard.clear()
    with pytest.raises(KeyboardInterrupt):
        left_early()
    assert listener.heard == ["1 KeyboardInterrupt"]


def test_a_call_without_a_witness_is_as_light_as_ever() -> None:
    policy = Policy()
    assert RetryPlan("work", policy, lambda error, failure: True, classify).light
    assert not RetryPlan("work", policy, lambda error, failure: True, classify, witness=Listener()).light


@each_colour
def test_the_hook_hears_after_the_witness(colour: str, instant_retries: FakeClock) -> None:
    listener = Listener()
    seen: list[list[str]] = []
    run(
        colour, listener, Script(OSError(), 1).turn, on_retry=lambda report: seen.append(list(listener.heard))
    )
    assert seen == [["1 retry"]]
