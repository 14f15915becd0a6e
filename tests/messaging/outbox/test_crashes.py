"""A relay may crash before or after every operation, and so may its successor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import outbox
from oncemore.log.record import EventRecord
from oncemore.messaging.delivery import STATE_TRANSITIONS, SendEvent, change_state
from oncemore.steps.ops import AppendChange
from tests.crash.harness import AFTER_EACH, crash_everywhere
from tests.messaging.outbox.simulation import POLICY, OutboxSimulation, states

if TYPE_CHECKING:
    from tests.crash.harness import CrashPoint

SOON = oncemore.TransientError("not yet")
NEVER = oncemore.PermanentError("not like this")


def start_two_lanes() -> OutboxSimulation:
    """Two lanes: the first event of one fails once, the first event of the other is permanently refused."""
    return OutboxSimulation(
        ("a", ["slow", "x"]), ("b", ["bad", "x"]), fails={("slow", 1): SOON, ("bad", 0): NEVER}
    )


def start_one_lane() -> OutboxSimulation:
    """One lane of two events, the first of which fails once."""
    return OutboxSimulation(("a", ["slow", "x"]), fails={("slow", 1): SOON})


def run_pass(simulation: OutboxSimulation, crash: CrashPoint | None, number: int = 0) -> None:
    """Run a relay for several passes, and let its last one crash."""
    engine = simulation.engine()
    for n in range(number + 1):
        simulation.start_pass(simulation.relay(engine)).run(crash if n == number else None)
        simulation.now += 100.0


def finish_and_check(simulation: OutboxSimulation, delivered: int, dead: int = 0) -> None:
    """Check that every event is delivered or dead, in order, and applied once."""
    simulation.finish()
    simulation.check()
    assert states(simulation.engine()) == {"DELIVERED": delivered, **({"DEAD": dead} if dead else {})}
    assert len(simulation.consumer.effects) == delivered
    simulation.close()


@pytest.mark.unmeasured
@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
def test_a_crash_at_any_point_loses_nothing_and_keeps_the_order(number: int) -> None:
    crashes = repeats = 0
    for simulation in crash_everywhere(
        start_two_lanes, lambda simulation, crash: run_pass(simulation, crash, number)
    ):
        crashes += 1
        finish_and_check(simulation, 3, 1)
        repeats += sum(simulation.consumer.sends().values()) > 5
    assert crashes > 40
    assert repeats, "no crash fell between a send and its mark"


@pytest.mark.unmeasured
def test_a_crash_inside_the_recovery_from_a_crash_loses_nothing_either() -> None:
    crashes = 0
    for simulation in crash_everywhere(start_one_lane, run_pass, (AFTER_EACH, AFTER_EACH)):
        crashes += 1
        finish_and_check(simulation, 2)
    assert crashes > 150


@pytest.mark.unmeasured
def test_two_relays_that_take_turns_send_nothing_at_the_same_time() -> None:
    whole = OutboxSimulation(("a", ["x", "y"]))
    first_pass = whole.start_pass()
    first_pass.run()
    whole.close()
    for first in range(1, first_pass.count + 1):
        for second in range(1, first_pass.count + 1):
            simulation = OutboxSimulation(("a", ["x", "y"]))
            one, other = simulation.start_pass(), simulation.start_pass()
            one.run(max_steps=first)
            other.run(max_steps=second)
            one.run()
            other.run()
            assert set(simulation.consumer.sends().values()) <= {1}, (first, second)
            finish_and_check(simulation, 2)
            assert max(simulation.consumer.sends().values()) == 1


def test_a_relay_with_an_expired_lease_cannot_write_an_outcome() -> None:
    simulation = OutboxSimulation(("a", ["x", "y"]))
    zombie = simulation.start_pass()
    zombie.run_until(SendEvent)
    zombie.end_process()
    simulation.relay().run_once()
    before = list(simulation.store.read_entries())
    zombie.run()
    assert list(simulation.store.read_entries())[: len(before)] == before
    assert states(simulation.engine()) == {"DELIVERED": 2}
    assert zombie.result.delivered == 0
    late = simulation.consumer.got[-1]
    assert late.payload == "a0", "its message lands late, under the same id, and is dropped by that"
    assert simulation.consumer.payloads == ["a0", "a1"]
    simulation.check()
    simulation.close()


def test_an_event_that_kills_every_relay_becomes_dead_and_the_queue_continues() -> None:
    simulation = OutboxSimulation(("a", ["poison", "x"]), ("b", ["x"]))
    for _ in range(3):
        script = simulation.start_pass()
        while type(script.op) is not SendEvent or script.op.head.record.topic != "poison":
            script.step()
        script.end_process()
    simulation.finish()
    assert states(simulation.engine()) == {"DELIVERED": 2, "DEAD": 1}
    assert sorted(simulation.consumer.payloads) == ["a1", "b0"]
    (letter,) = simulation.relay().dead_letters()
    assert (letter.reason, letter.attempts) == ("max_attempts_exceeded", 3)
    assert letter.error["code"] == "LEASE_EXPIRED"
    simulation.close()


def test_of_two_relays_that_give_an_event_up_at_once_one_writes_it() -> None:
    simulation = OutboxSimulation(("a", ["x"]), fails={("x", 0): SOON})
    simulation.relay().run_once()
    simulation.now += 100.0
    strict = POLICY.replace(max_attempts=1)
    relay = outbox.OutboxRelay(simulation.engine(), {"*": simulation.consumer}, policy=strict)
    one = simulation.start_pass(relay)
    one.run_until(AppendChange)
    assert (
        outbox.OutboxRelay(simulation.engine(), {"*": simulation.consumer}, policy=strict).run_once().dead
        == 1
    )
    one.run()
    assert one.result == outbox.DeliveryStats(waiting=1)
    assert len(simulation.relay().dead_letters()) == 1
    simulation.check()
    simulation.close()


@pytest.mark.parametrize("state", STATE_TRANSITIONS)
def test_only_the_listed_state_transitions_are_allowed(state: str) -> None:
    event = EventRecord(state, "topic", "id", worker="w", reason="r")
    for to in STATE_TRANSITIONS:
        if to in STATE_TRANSITIONS[state]:
            assert change_state(event, to) == event._replace(state=to, worker="", reason="")
        else:
            with pytest.raises(oncemore.Error, match=f"from {state} to {to}"):
                change_state(event, to)
