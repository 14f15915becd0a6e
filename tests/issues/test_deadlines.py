"""No attempt and no delay of a run begins that cannot end before the deadline, as its own history has it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.queries.replay import replay_run
from tests.steps.colours import SOON, do, each_colour, made

if TYPE_CHECKING:
    from oncemore.testing import FakeClock


def policy(*delays: float) -> Policy:
    return Policy("steady", max_attempts=9, schedule=Schedule("fixed", delays=delays), jitter=Jitter("none"))


class Slow:
    """Work that takes its time by the test clock, and fails so many times."""

    def __init__(self, clock: FakeClock, takes_s: float, failures: int = 99, then_s: float = 0.0) -> None:
        self.clock, self.takes_s, self.failures, self.then_s = clock, takes_s, failures, then_s
        self.calls = 0

    def __call__(self, x: int = 0) -> str:
        self.calls += 1
        self.clock.advance(self.takes_s if self.calls <= self.failures else self.then_s)
        if self.calls <= self.failures:
            raise SOON
        return "done"


@pytest.mark.req("TIME-5")
@each_colour
def test_a_delay_and_an_attempt_fit_before_the_deadline(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    # 30 s are left and an attempt takes 20 s: the planned minute becomes 10 s, and the attempt can end.
    slow = Slow(clock, 20.0, failures=1, then_s=5.0)
    step = made(colour, slow, policy=policy(60.0, 61.0), total_timeout=50, name="cut")
    assert do(colour, step) == "done"
    (proof,) = step.last_run().proofs
    given = proof["inputs"]
    assert 20 <= given["expected_s"] < 25  # real time passes as well
    assert proof["delay_s"] == pytest.approx(given["deadline"] - given["now"] - given["expected_s"])
    assert (proof["clamps"], 0 < proof["delay_s"] <= 10) == (["deadline"], True)
    assert clock.delays[0] <= 10
    # 15 s are left: no attempt starts.
    slow = Slow(clock, 20.0)
    step = made(colour, slow, policy=policy(5.0, 6.0), total_timeout=60, name="full")
    run = do(colour, step.run)
    assert (run.status, run.reason, slow.calls) == ("HARD_FAIL", "deadline_passed", 2)
    assert 5 < run.proofs[-1]["inputs"]["deadline"] - run.proofs[-1]["inputs"]["now"] <= 15
    # Under a deadline of the surroundings, as under one of the step.
    slow = Slow(clock, 20.0)
    with oncemore.context(deadline=engine.now() + 60):
        run = do(colour, made(colour, slow, policy=policy(5.0, 6.0), name="around").run)
    assert (run.reason, slow.calls) == ("deadline_passed", 2)
    for name in ("cut", "full"):
        key = made(colour, slow, policy=policy(5.0, 6.0), name=name).key()
        assert replay_run(engine.store, f"run/{key}").verdict == "agrees"


def test_a_process_that_comes_late_starts_no_attempt(engine: oncemore.Engine, clock: FakeClock) -> None:
    slow = Slow(clock, 20.0)
    step = made("plain", slow, policy=policy(90.0, 91.0), total_timeout=200)
    with pytest.raises(oncemore.Deferred):
        step()
    clock.advance(200 - 20 - 9.2)
    with pytest.raises(
        oncemore.DeadlineExceeded, match=r"only \d\.\d+ s are left, and an attempt is expected"
    ) as late:
        step()
    assert slow.calls == 1
    run: Any = late.value.run
    assert (run.status, run.reason) == ("HARD_FAIL", "deadline_passed")
    assert replay_run(engine.store, f"run/{run.key}").verdict == "agrees"


def test_a_quick_failure_does_not_say_how_long_the_work_takes(clock: FakeClock) -> None:
    with oncemore.open("memory:"):
        slow = Slow(clock, 0.5)
        run = made("plain", slow, policy=policy(5.0, 50.0), total_timeout=30).run()
    assert (run.reason, slow.calls) == ("wait_beyond_deadline", 2)
    assert [proof["inputs"]["expected_s"] for proof in run.proofs] == [None, None]


def test_the_longest_attempt_counts_and_a_new_run_begins_without_history(clock: FakeClock) -> None:
    with oncemore.open("memory:"):
        slow = Slow(clock, 8.0)
        step = made("plain", slow, policy=policy(1.0).replace(max_attempts=2))
        step.run()
        slow.takes_s = 2.0
        with pytest.raises(oncemore.RetriesExhausted):
            step.rerun(reason="once more")
        expected = [proof["inputs"]["expected_s"] for proof in step.last_run().proofs]
    assert all(2 <= one < 8 for one in expected[-2:])


@pytest.mark.req("TIME-6")
@each_colour
def test_an_exhausted_run_is_escalated_with_deadline_buffer_and_attempts(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    def escalation(run: Any) -> dict[str, Any]:
        (line,) = [line for line in run.records() if line["kind"] == "ESCALATION"]
        assert run.status == "HARD_FAIL"
        return line["escalation"]  # type: ignore[no-any-return]

    few = policy(1.0, 2.0).replace(max_attempts=3)
    used_up = do(colour, made(colour, Slow(clock, 0.1), policy=few, total_timeout=100, name="attempts").run)
    told = escalation(used_up)
    assert used_up.reason == "max_attempts_exceeded"
    assert (told["policy"], told["attempts"]) == ("deadline-aware", 3)
    assert told["deadline"] == used_up.state.deadline == pytest.approx(used_up.state.created_at + 100, abs=5)
    assert told["left_s"] == round(told["deadline"] - used_up.proofs[-1]["inputs"]["now"], 6)
    endless = do(colour, made(colour, Slow(clock, 0.1), policy=few, name="endless").run)
    assert escalation(endless) == {
        "policy": "deadline-aware",
        "deadline": None,
        "left_s": None,
        "attempts": 3,
    }
    late = do(
        colour, made(colour, Slow(clock, 20.0), policy=policy(5.0, 6.0), total_timeout=60, name="late").run
    )
    told = escalation(late)
    assert (told["policy"], told["attempts"]) == ("deadline-aware", 2)
    assert 5 < told["left_s"] <= 15


@pytest.mark.req("TIME-3")
def test_each_timeout_is_logged_and_counted_with_its_cause(engine: oncemore.Engine) -> None:
    turns: list[Any] = [TimeoutError("no answer from the provider"), None, "done"]
    go_on = threading.Event()

    @oncemore.step(
        effect="idempotent", name="timed", timeout=0.05, policy=policy(0.001, 0.002), provider="eso"
    )
    def timed(day: str) -> str:
        turn = turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        if turn is None:
            go_on.wait(10)
        return str(turn)

    job = timed.map(["monday"])
    go_on.set()
    assert list(job.values) == ["done"]
    assert job.providers["eso"].errors == {"TIMEOUT": 1, "TIMEOUT_ATTEMPT_LIMIT": 1}
    run = timed.last_run("monday")
    assert run is not None
    causes = [one.error["code"] for one in run.attempts if one.error is not None]
    assert causes == ["TIMEOUT", "TIMEOUT_ATTEMPT_LIMIT"]
    logged = [
        line["decision_proof"]["failure"]["code"] for line in run.records() if line["kind"] == "DECISION"
    ]
    assert logged == causes
