"""A process that crashes before or after any operation: its execution is counted exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.errors import Cancelled, CoolingDown
from oncemore.steps import operator_flow, ops
from tests.crash.harness import EVERYWHERE, crash_everywhere
from tests.limits.cooldowns.simulation import CooldownSimulation

if TYPE_CHECKING:
    from oncemore.limits.cooldown_rules import ResourceRecord

#: Outcomes of the attempts, and the outcomes that the resource may record: crashes use attempts up.
SCENARIOS = {
    "succeeds": (["ok"], {"SUCCESS"}),
    "fails once and succeeds": (["transient", "ok"], {"SUCCESS", "RETRYABLE_FAILURE", "QUARANTINE"}),
    "always fails": (["transient"], {"RETRYABLE_FAILURE", "QUARANTINE"}),
    "fails permanently": (["permanent"], {"TERMINAL_FAILURE"}),
    "needs a review": (["review"], {"QUARANTINE"}),
    "asks for a long wait": (["deferred"], {"RETRYABLE_FAILURE"}),
}
#: How many processes crash one after the other.
DEPTH = {"succeeds": 2, "needs a review": 2}


def check_end(simulation: CooldownSimulation, outcomes: set[str]) -> None:
    """Check that one execution is counted, and that the next call is skipped."""
    resource: ResourceRecord = simulation.load_resource()
    assert resource.attempt_count_total == 1, "one execution, counted once"
    assert resource.last_attempt_outcome in outcomes
    executed = simulation.executions
    end, _ = simulation.run_call()
    if resource.validation_status == "VALID":
        assert (end.value, end.error) == ("value", None)
    else:
        assert isinstance(end.error, CoolingDown), end
    assert simulation.executions == executed, "no execution"
    assert simulation.load_resource() == resource, "a skip changes nothing"


@pytest.mark.req("COOL-6", "COOL-11", "COOL-8")
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_execution_is_counted_once_at_every_crash(name: str) -> None:
    attempts, outcomes = SCENARIOS[name]
    whole = CooldownSimulation(attempts)
    whole.run_call()
    check_end(whole, outcomes)
    crashes = 0
    for simulation in crash_everywhere(
        lambda: CooldownSimulation(attempts),
        CooldownSimulation.run_call,
        [EVERYWHERE] * DEPTH.get(name, 1),
        after_crash=CooldownSimulation.check_consistency,
    ):
        simulation.run_call()
        check_end(simulation, outcomes)
        crashes += 1
    print(f"\n{name}: {crashes} ways to die")
    assert crashes > 20


def test_a_resource_that_changes_between_the_read_and_the_claim_is_read_again() -> None:
    """Another key of the same resource fails in between: this one must not run any more."""
    simulation = CooldownSimulation(["transient"])
    process = simulation.start()
    claim = process.run_until(ops.AppendChange)
    assert "INTENT" in claim.change.marks
    assert claim.guards["resource/p"] == 0
    run_other_key(simulation)
    assert simulation.load_resource().attempt_count_total == 1
    end = process.run()
    assert isinstance(end.error, CoolingDown)
    assert (end.error.outcome, simulation.executions) == ("SKIPPED_BACKOFF", 0)


def test_two_keys_of_one_resource_at_once_are_both_counted() -> None:
    """The second to end finds that the record has changed, reads it again, and adds to it."""
    simulation = CooldownSimulation(["transient", "transient", "transient"])
    process = simulation.start()
    while not (type(process.op) is ops.AppendChange and process.op.also):
        process.step()
    run_other_key(simulation)
    process.run()
    assert simulation.load_resource().attempt_count_total == 2
    assert simulation.executions == 3, "the attempt is not lost for that"


def test_a_call_does_not_wait_for_the_end_of_a_cooldown() -> None:
    simulation = CooldownSimulation(["deferred"])
    simulation.run_call()
    simulation.now += 4990.0  # ten more seconds, which a call would wait for
    end, _ = simulation.run_call()
    assert isinstance(end.error, CoolingDown)
    assert (end.error.outcome, simulation.executions) == ("SKIPPED_BACKOFF", 1)
    simulation.now += 10.0
    simulation.run_call()
    assert (simulation.executions, simulation.load_resource().attempt_count_total) == (2, 2)


def test_a_run_that_is_deferred_while_an_operator_cancels_it_is_cancelled() -> None:
    simulation = CooldownSimulation(["transient"])
    run_other_key(simulation)
    plan, call = simulation.make_plan(), simulation.make_call()
    simulation.start(operator_flow.submit_run(plan, call, 0.0)).run()
    process = simulation.start()
    while not (type(process.op) is ops.AppendChange and process.op.change.marks == ("DECISION",)):
        process.step()
    assert process.op.change.after.reason == "cooling_down"
    decision = {"action": "cancel", "reason": "because", "actor": "operator"}
    simulation.start(operator_flow.cancel_run(plan, call, "because", lambda head, now: decision)).run()
    assert isinstance(process.run().error, Cancelled)
    assert simulation.executions == 0


def run_other_key(simulation: CooldownSimulation) -> None:
    """Let another key of the same resource fail."""
    CooldownSimulation(["transient"], "run/other", beside=simulation).run_call()
