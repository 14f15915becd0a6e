"""Steps of other kinds: what a program or an endpoint makes of a step holds for each of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.decorator import Step

if TYPE_CHECKING:
    from oncemore.steps.call_in_progress import CallInProgress
    from oncemore.steps.prepare import PreparedCall

    from oncemore.steps.plan import StepPlan
    from oncemore.testing import FakeClock

LATER = Policy("deferred", "1", schedule=Schedule("fixed", delays=(5.0, 10.0)), jitter=Jitter("none"))


class Elsewhere(Step[Any, Any]):
    """Work that others do, which nobody waits for."""

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        return plan.copy_with(inline_wait_s=0.0)

    def _start_call(self, look: PreparedCall) -> CallInProgress:
        job = super()._start_call(look)
        job.isolate = self._done
        return job

    def _done(self, job: CallInProgress, attempt: Any, invoke: Any) -> str:
        if attempt.number == 1:
            raise ConnectionResetError
        return f"elsewhere, at attempt {attempt.number}"


def test_the_plan_of_a_kind_holds_for_every_call_and_its_work_is_done_where_it_says(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="far", policy=LATER)
    def far(number: int) -> str:
        raise AssertionError("it is done elsewhere")

    step = Elsewhere(far._options, engine)
    for number in range(3):
        with pytest.raises(oncemore.Deferred):
            step(number)
    assert clock.delays == []
    clock.advance(6)
    assert [step(number) for number in range(3)] == ["elsewhere, at attempt 2"] * 3
