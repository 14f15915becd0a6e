"""No attempt and no delay of a run begins that cannot end before the deadline, as its own history has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.core.backoff import Jitter, Schedule
from oncemore.core.policy import Policy
from oncemore.desk.service.replays import replay
from tests.steps.colours import SOON, do, each_colour, made

if TYPE_CHECKING:
    from oncemore.testing import FakeClock


def policy(*delays: float) -> Policy:
    return Policy("steady", max_attempts=9, schedule=Schedule("fixed", delays=delays), jitter=Jitter("none"))


class Slow:
    """Work that takes its time by the test clock, and fails so many times."""

    def __init__(self, clock: FakeClock, takes_s: float, failures: int = 99) -> None:
        self.clock, self.takes_s, self.failures = clock, takes_s, failures
        self.calls = 0

    def __call__(self, x: int = 0) -> str:
        self.calls += 1
        self.clock.advance(self.takes_s)
        if self.calls <= self.failures:
            raise SOON
        return "done"


@pytest.mark.req("TIME-5")
@each_colour
def test_a_delay_and_an_attempt_fit_before_the_deadline(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    # 30 s are left and an attempt takes 20 s: the planned minute becomes 10 s, and the attempt can end.
    slow = Slow(clock, 19.9, failures=1)
    step = made(colour, slow, policy=policy(60.0, 61.0), within=50, name="cut")
    assert do(colour, step) == "done"
    assert clock.delays == pytest.approx([10.2], abs=0.3)
    (proof,) = step.last().proofs
    assert proof["inputs"]["expected_s"] == pytest.approx(19.9, abs=0.3)
    assert (proof["clamps"], proof["delay_s"] <= 10.3) == (["deadline"], True)
    # 15 s are left: no attempt starts.
    slow = Slow(clock, 20.0)
    step = made(colour, slow, policy=policy(5.0, 6.0), within=60, name="full")
    run = do(colour, step.run)
    assert (run.status, run.reason, slow.calls) == ("HARD_FAIL", "deadline_passed", 2)
    assert run.proofs[-1]["inputs"]["deadline"] - run.proofs[-1]["inputs"]["now"] == pytest.approx(
        15, abs=0.5
    )
    # Under a deadline of the surroundings, as under one of the step.
    slow = Slow(clock, 20.0)
    with oncemore.context(deadline=engine.now() + 60):
        run = do(colour, made(colour, slow, policy=policy(5.0, 6.0), name="around").run)
    assert (run.reason, slow.calls) == ("deadline_passed", 2)
    for name in ("cut", "full"):
        key = made(colour, slow, policy=policy(5.0, 6.0), name=name).key()
        assert replay(engine.store, f"run/{key}").verdict == "agrees"


def test_a_process_that_comes_late_starts_no_attempt(engine: oncemore.Engine, clock: FakeClock) -> None:
    slow = Slow(clock, 20.0)
    step = made("plain", slow, policy=policy(90.0, 91.0), within=200)
    with pytest.raises(oncemore.Parked):
        step()
    clock.advance(200 - 20 - 9.2)
    with pytest.raises(
        oncemore.DeadlineExceeded, match=r"9\.\d+ s are left, and an attempt is expected"
    ) as late:
        step()
    assert slow.calls == 1
    run: Any = late.value.run
    assert (run.status, run.reason) == ("HARD_FAIL", "deadline_passed")
    assert replay(engine.store, f"run/{run.key}").verdict == "agrees"


def test_a_quick_failure_does_not_say_how_long_the_work_takes(clock: FakeClock) -> None:
    with oncemore.open("memory:"):
        slow = Slow(clock, 0.5)
        run = made("plain", slow, policy=policy(5.0, 50.0), within=30).run()
    assert (run.reason, slow.calls) == ("wait_beyond_deadline", 2)
    assert [proof["inputs"]["expected_s"] for proof in run.proofs] == [None, None]


def test_the_longest_attempt_counts_and_a_new_run_begins_without_history(clock: FakeClock) -> None:
    with oncemore.open("memory:"):
        slow = Slow(clock, 8.0)
        step = made("plain", slow, policy=policy(1.0).but(max_attempts=2))
        step.run()
        slow.takes_s = 2.0
        with pytest.raises(oncemore.RetriesExhausted):
            step.rerun(reason="once more")
        expected = [proof["inputs"]["expected_s"] for proof in step.last().proofs]
    assert expected[-2:] == pytest.approx([2, 2], abs=0.3)
