"""Where a call after a failure begins a new run: callers that waited for the failed run share its failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncemore.errors import PermanentFailure, Quarantined, RetriesExhausted
from oncemore.steps import ops
from tests.crash.simulation import StepSimulation

if TYPE_CHECKING:
    from tests.crash.harness import ScriptRun


def start_caller(simulation: StepSimulation, **plan: Any) -> ScriptRun:
    """Start a call that would begin a new run after a failure."""
    return simulation.start(after_failure="new_run", **plan)


@pytest.fixture
def simulation() -> StepSimulation:
    return StepSimulation("idempotent", ["transient"])


def test_a_caller_that_waited_for_a_failed_run_does_not_begin_another(simulation: StepSimulation) -> None:
    first, second = start_caller(simulation), start_caller(simulation)
    first.run_until(ops.RunAttempt)
    second.run_until(ops.WatchEntity)
    assert isinstance(first.run().error, RetriesExhausted)
    second.resume(None)
    error = second.run().error
    assert isinstance(error, RetriesExhausted)
    assert "failed after 3 attempts" in str(error)
    assert simulation.executions == 3


def test_a_caller_that_took_part_in_a_run_shares_its_end(
    simulation: StepSimulation,
) -> None:
    first, second = start_caller(simulation), start_caller(simulation)
    first.run_until(ops.SleepSeconds)  # its own first attempt has failed
    second.run()  # the second waits as long, is first, and brings it to its end
    first.resume(None)
    assert isinstance(first.run().error, RetriesExhausted)
    assert simulation.executions == 3


def test_a_call_after_a_failure_begins_a_new_run(simulation: StepSimulation) -> None:
    start_caller(simulation).run()
    simulation.outcomes = ["transient", "transient", "transient", "ok"]
    assert start_caller(simulation).run().value == "value"
    assert simulation.executions == 4


def test_a_dead_run_without_attempts_left_is_quarantined(
    simulation: StepSimulation,
) -> None:
    first = start_caller(simulation)
    while first.run_until(ops.RunAttempt).number < 3:
        first.step()
    simulation.live_workers.clear()
    simulation.outcomes = ["ok"]
    for _ in range(2):
        error = start_caller(simulation).run().error
        assert isinstance(error, Quarantined), "a policy that begins anew would have it kill workers for ever"
        assert "in quarantine (poison)" in str(error)
    assert simulation.executions == 2


def test_an_error_that_is_not_covered_is_not_retried_under_any_policy(simulation: StepSimulation) -> None:
    caller = start_caller(simulation, covers=lambda error, failure: False)
    assert isinstance(caller.run().error, PermanentFailure)
    assert simulation.executions == 1
    once = StepSimulation("once", ["transient"])
    assert "may have taken effect" in str(start_caller(once, covers=lambda error, failure: True).run().error)
