"""Time: limits of one attempt and of the whole, deadlines, and what outlives them."""

import os
import threading
import time
from typing import Any

import anyio
import pytest

import oncemore
from oncemore.testing import FakeClock
from tests.steps import isolated
from tests.steps.colours import POLICY, SOON, Turns, do, each_colour, in_memory, made

AT_ONCE = POLICY.replace(schedule=oncemore.backoff.fixed(0.001, 0.002))


class Blocks:
    """Plain work whose first calls block until they are let go."""

    def __init__(self, first: int = 1) -> None:
        self.go_on = threading.Event()
        self.started, self.ended, self.first, self.most, self.now = 0, 0, first, 0, 0
        self._lock = threading.Lock()

    def __call__(self, x: int = 0) -> int:
        with self._lock:
            self.started += 1
            mine = self.started
            self.now += 1
            self.most = max(self.most, self.now)
        if mine <= self.first:
            assert self.go_on.wait(10)
        with self._lock:
            self.now -= 1
            self.ended += 1
        return mine

    def end(self) -> None:
        self.go_on.set()
        ends = time.monotonic() + 10
        while self.ended < self.started or oncemore.abandoned_calls():
            assert time.monotonic() < ends
            time.sleep(0.001)


@pytest.mark.req("TIME-7", "TIME-10")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
def test_plain_work_that_takes_too_long_is_left_behind_listed_and_tried_again(effect: str) -> None:
    blocks = Blocks()
    step = made("plain", blocks, effect=effect, timeout=0.05, policy=AT_ONCE)
    assert step() == 2
    (straggler,) = oncemore.abandoned_calls()
    assert (straggler.name, straggler.limit_s) == ("work", 0.05)
    assert blocks.most == 2
    before = step.last_run()
    blocks.end()
    assert oncemore.abandoned_calls() == ()
    assert step.last_run().version == before.version  # its late result went nowhere
    assert step() == 2
    first, second = step.last_run().attempts
    assert (first.outcome, first.error["type"], second.outcome) == ("SOFT_FAIL", "AttemptTimeout", "COMPLETE")
    assert blocks.started == 2


@pytest.mark.req("TIME-7", "TIME-10")
@pytest.mark.usefixtures("engine")
def test_a_once_effect_that_takes_too_long_is_held_and_never_in_flight_twice() -> None:
    blocks = Blocks()
    step = made("plain", blocks, effect="once", timeout=0.05, policy=AT_ONCE)
    for _ in range(2):
        with pytest.raises(oncemore.OutcomeUnknown):
            step()
    assert len(oncemore.abandoned_calls()) == 1
    blocks.end()
    assert (blocks.started, blocks.most) == (1, 1)
    with pytest.raises(oncemore.OutcomeUnknown):
        step()
    assert step.last_run().held_for == "outcome_unknown"


@pytest.mark.req("TIME-1")
@pytest.mark.usefixtures("engine")
def test_plain_work_that_never_comes_back_ends_with_a_timeout() -> None:
    blocks = Blocks(first=9)
    step = made("plain", blocks, timeout=0.05, policy=AT_ONCE.replace(max_attempts=2))
    began = time.monotonic()
    with pytest.raises(oncemore.RetriesExhausted) as caught:
        step()
    assert time.monotonic() - began < 5
    assert isinstance(caught.value.__cause__, oncemore.AttemptTimeout)
    blocks.end()


@pytest.mark.req("TIME-1")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("colour", ["asyncio", "trio"])
@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_awaited_work_that_takes_too_long_is_cancelled(colour: str, effect: str) -> None:
    cancelled: list[int] = []
    before = set(oncemore.abandoned_calls())

    @oncemore.step(effect=effect, timeout=0.05, policy=AT_ONCE, name="awaited")  # type: ignore[arg-type]
    async def work() -> int:
        number = oncemore.current().number
        if number == 1:
            try:
                await anyio.sleep(10)
            finally:
                cancelled.append(number)
        return number

    if effect == "once":
        with pytest.raises(oncemore.OutcomeUnknown):
            do(colour, work)
    else:
        assert do(colour, work) == 2
    assert cancelled == [1]
    assert work.last_run().attempts[0].error["type"] == "AttemptTimeout"  # type: ignore[union-attr, index]
    assert set(oncemore.abandoned_calls()) <= before, "what is cancelled leaves nobody behind"


# The whole ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
@each_colour
def test_the_whole_run_has_a_limit_that_no_wait_may_pass(colour: str, clock: FakeClock) -> None:
    turns = Turns(SOON)
    step = made(colour, turns, total_timeout=11)
    with pytest.raises(oncemore.DeadlineExceeded, match="wait_beyond_deadline") as caught:
        do(colour, step)
    assert turns.calls == 2
    assert clock.delays == pytest.approx([5.0], abs=0.5)
    with pytest.raises(oncemore.DeadlineExceeded):
        do(colour, step)
    assert caught.value.run.status == "HARD_FAIL"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("clock")
@each_colour
def test_a_final_failure_is_escalated_with_deadline_what_was_left_and_attempts(
    colour: str, engine: oncemore.Engine
) -> None:
    step = made(colour, Turns(SOON), total_timeout=100)
    began = engine.now()
    run = do(colour, step.run)
    (line,) = [line for line in run.records() if line["kind"] == "ESCALATION"]
    told = line["escalation"]
    assert (told["policy"], told["attempts"]) == ("deadline-aware", 3)
    assert told["deadline"] == pytest.approx(began + 100, abs=1)
    assert told["left_s"] == pytest.approx(88, abs=1)
    endless = made(colour, Turns(ValueError()), name="endless")
    (line,) = [line for line in do(colour, endless.run).records() if line["kind"] == "ESCALATION"]
    permanent = {"policy": "autonomy-matrix", "deadline": None, "left_s": None, "attempts": 1}
    assert line["escalation"] == permanent


@pytest.mark.usefixtures("engine")
@each_colour
def test_nothing_is_begun_when_the_deadline_has_passed(colour: str, engine: oncemore.Engine) -> None:
    turns = Turns("never")
    step = made(colour, turns)
    with oncemore.context(deadline=engine.now() - 1):
        with pytest.raises(oncemore.DeadlineExceeded, match="was not begun: its deadline has passed"):
            do(colour, step)
        assert step.last_run() is None
    assert turns.calls == 0
    assert list(engine.store.read_entries()) == []


@in_memory
@pytest.mark.usefixtures("engine")
@each_colour
def test_what_is_done_is_returned_though_the_deadline_has_passed(
    colour: str, engine: oncemore.Engine
) -> None:
    step = made(colour, Turns("done"))
    do(colour, step)
    with oncemore.context(deadline=engine.now() - 1):
        assert do(colour, step) == "done"


@in_memory
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("total_timeout", "around", "left"), [(50, 100, 50), (100, 50, 50), (None, 70, 70), (70, None, 70)]
)
def test_the_earlier_of_the_steps_own_limit_and_the_deadline_around_it_holds(
    total_timeout: float | None, around: float | None, left: float, engine: oncemore.Engine
) -> None:
    step = made("plain", Turns("done"), total_timeout=total_timeout)
    with oncemore.context(deadline=None if around is None else engine.now() + around):
        run = step.run()
    assert run.state.deadline - engine.now() == pytest.approx(left, abs=1)


@each_colour
def test_a_run_whose_deadline_passed_while_it_waited_is_over(colour: str, clock: FakeClock) -> None:
    turns = Turns(SOON, "never")
    with oncemore.open("memory:", max_inline_wait_s=0) as engine:
        step = made(colour, turns, total_timeout=50)
        with pytest.raises(oncemore.Deferred):
            do(colour, step)
        clock.advance(60)
        with pytest.raises(oncemore.DeadlineExceeded, match="its deadline has passed"):
            do(colour, step)
        run = step.last_run()
        assert (run.status, run.reason) == ("HARD_FAIL", "deadline_passed")
        (line,) = [line for line in run.records() if line["kind"] == "ESCALATION"]
        assert line["escalation"]["left_s"] == pytest.approx(-10, abs=1)
        assert engine.now() > run.state.deadline
    assert turns.calls == 1


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_an_attempt_is_cut_off_at_the_end_of_the_whole(colour: str) -> None:
    @oncemore.step(effect="pure", total_timeout=0.05, timeout=5, name="whole")
    async def work() -> None:
        await anyio.sleep(10)

    for _ in range(2):
        with pytest.raises(
            oncemore.DeadlineExceeded, match="the rest of the time for the whole call"
        ) as caught:
            do(colour, work)
    assert caught.value.run.status == "HARD_FAIL"  # type: ignore[attr-defined]


@in_memory
@pytest.mark.usefixtures("engine")
def test_plain_work_is_left_behind_at_the_end_of_the_whole() -> None:
    blocks = Blocks()
    with pytest.raises(oncemore.DeadlineExceeded):
        made("plain", blocks, total_timeout=0.05)()
    blocks.end()
    blocks = Blocks()
    with pytest.raises(oncemore.OutcomeUnknown):
        made("plain", blocks, total_timeout=0.05, effect="once")(1)
    blocks.end()


@pytest.mark.req("TIME-2")
@pytest.mark.usefixtures("engine")
def test_an_inner_step_has_no_more_time_than_the_one_around_it() -> None:
    left: list[float | None] = []
    inner = made("plain", lambda x: left.append(oncemore.current().remaining()), timeout=60, name="inner")
    made("plain", lambda x: inner(), timeout=5, name="outer")()
    assert left[0] is not None
    assert 4 < left[0] <= 5


@pytest.mark.req("TIME-2")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_an_inner_step_is_cut_off_with_the_one_around_it(colour: str) -> None:
    @oncemore.step(effect="pure", timeout=60, name="inner")
    async def inner() -> None:
        await anyio.sleep(20)

    @oncemore.step(effect="pure", timeout=0.1, name="outer", policy=AT_ONCE.replace(max_attempts=1))
    async def outer() -> None:
        await inner()

    began = time.monotonic()
    with pytest.raises(oncemore.StepFailed):
        do(colour, outer)
    assert time.monotonic() - began < 5


@in_memory
@pytest.mark.usefixtures("engine")
def test_retry_around_a_step_bounds_it_too() -> None:
    left: list[Any] = []
    step = made("plain", lambda x: left.append(oncemore.time_remaining()))
    oncemore.retrying(step, on=OSError, timeout=5)()
    assert 4 < left[0] <= 5


@in_memory
@pytest.mark.usefixtures("engine")
def test_retry_around_a_step_does_not_multiply_its_attempts(clock: FakeClock) -> None:
    turns = Turns(ConnectionResetError())
    step = made("plain", turns)
    with pytest.raises(oncemore.RetriesExhausted):
        oncemore.retrying(step, on=oncemore.StepFailed, attempts=3)()
    assert turns.calls == 3


@in_memory
@pytest.mark.usefixtures("engine")
def test_isolated_work_runs_in_a_process_of_its_own_and_is_remembered_like_any_other() -> None:
    pid, number, x = isolated.where(5)
    assert (pid != os.getpid(), number, x) == (True, 1, 5)
    assert isolated.where(5) == [pid, number, x]
