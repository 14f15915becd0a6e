"""Where a new call of failed work is a new run: those who waited for the failed one share its failure."""

from __future__ import annotations

from typing import Any

import pytest

from oncemore.errors import PermanentFailure, Quarantined, RetriesExhausted
from oncemore.steps import flow, ops
from tests.crash.world import World


class Caller:
    """One call of the same work, taken operation by operation."""

    def __init__(self, world: World, **plan: Any) -> None:
        self.world = world
        plans = world.plan().copy_with(after_failure="new_run", **plan)
        self.script = flow.run_step(plans, world.call())
        self.op: Any = next(self.script)

    def up_to(self, *kinds: type) -> Any:
        """Go on until an operation of one of these kinds is asked for; leave it undone."""
        while type(self.op) not in kinds:
            self.op = self.script.send(self.world.do(self.op))
        return self.op

    def go_on(self) -> None:
        """Let what is asked for happen without the world: somebody else had the time."""
        self.op = self.script.send(None)


@pytest.fixture
def world() -> World:
    return World("idempotent", ["transient"])


def test_who_waited_for_a_run_that_failed_does_not_begin_another(world: World) -> None:
    first, second = Caller(world), Caller(world)
    first.up_to(ops.RunAttempt)
    second.up_to(ops.WatchEntity)
    assert isinstance(first.up_to(ops.EndCall).error, RetriesExhausted)
    second.go_on()
    error = second.up_to(ops.EndCall).error
    assert isinstance(error, RetriesExhausted)
    assert "failed after 3 attempts" in str(error)
    assert world.executions == 3


def test_who_took_part_in_a_run_shares_what_somebody_else_made_of_it(world: World) -> None:
    first, second = Caller(world), Caller(world)
    first.up_to(ops.SleepSeconds)  # its own first attempt has failed
    second.up_to(ops.EndCall)  # the second waits as long, is first, and brings it to its end
    first.go_on()
    assert isinstance(first.up_to(ops.EndCall).error, RetriesExhausted)
    assert world.executions == 3


def test_who_comes_after_a_failure_begins_a_new_run(world: World) -> None:
    Caller(world).up_to(ops.EndCall)
    world.turns = ["transient", "transient", "transient", "ok"]
    assert Caller(world).up_to(ops.EndCall).value == "value"
    assert world.executions == 4


def test_who_finds_a_dead_run_without_attempts_left_finds_poison_and_begins_nothing(world: World) -> None:
    first = Caller(world)
    while first.up_to(ops.RunAttempt).number < 3:
        first.op = first.script.send(world.do(first.op))
    world.alive.clear()
    world.turns = ["ok"]
    for _ in range(2):
        error = Caller(world).up_to(ops.EndCall).error
        assert isinstance(error, Quarantined), "a policy that begins anew would have it kill workers for ever"
        assert "in quarantine (poison)" in str(error)
    assert world.executions == 2


def test_an_error_that_is_not_covered_is_not_tried_again_whatever_the_policy_says(world: World) -> None:
    caller = Caller(world, covers=lambda error, failure: False)
    assert isinstance(caller.up_to(ops.EndCall).error, PermanentFailure)
    assert world.executions == 1
    once = World("once", ["transient"])
    assert "may have taken effect" in str(
        Caller(once, covers=lambda error, failure: True).up_to(ops.EndCall).error
    )
