"""A relay may crash before or after every operation, and so may its successor."""

from __future__ import annotations

import pytest

import oncemore
from oncemore import outbox
from oncemore.log.record import EventRecord
from oncemore.messaging.delivery import STATE_TRANSITIONS, SendEvent, change_state
from oncemore.steps.ops import AppendChange
from tests.messaging.outbox.world import POLICY, Crash, World, states

SOON = oncemore.TransientError("not yet")
NEVER = oncemore.PermanentError("not like this")
WHENS = ("before", "after")


def mixed() -> World:
    """Two lanes: the first event of one fails once, the first event of the other is permanently refused."""
    return World(("a", ["slow", "x"]), ("b", ["bad", "x"]), fails={("slow", 1): SOON, ("bad", 0): NEVER})


def lone() -> World:
    """One lane of two, the first of which fails once."""
    return World(("a", ["slow", "x"]), fails={("slow", 1): SOON})


def length(world: World) -> int:
    """Return the number of operations of the passes that deliver everything."""
    total = 0
    for _ in range(3):
        total = max(total, world.script(world.relay()).run())
        world.now += 100.0
    world.close()
    return total


def crashed(world: World, at: int, when: str, turn: int) -> bool:
    """Run a relay that crashes in its `turn`-th pass; return whether it crashed."""
    engine = world.engine()
    try:
        for n in range(turn + 1):
            world.script(world.relay(engine)).run((at, when) if n == turn else None)
            world.now += 100.0
    except Crash:
        return True
    return False


def done(world: World, delivered: int, dead: int = 0) -> None:
    """Check that every event is delivered or dead, in order, and applied once."""
    world.finish()
    world.check()
    assert states(world.engine()) == {"DELIVERED": delivered, **({"DEAD": dead} if dead else {})}
    assert len(world.consumer.effects) == delivered
    world.close()


@pytest.mark.unmeasured
@pytest.mark.parametrize("turn", [0, 1])
def test_a_crash_at_any_point_loses_nothing_and_keeps_the_order(turn: int) -> None:
    most, crashes, twice = length(mixed()), 0, 0
    for at in range(1, most + 1):
        for when in WHENS:
            world = mixed()
            crashes += crashed(world, at, when, turn)
            done(world, 3, 1)
            twice += sum(world.consumer.sends().values()) > 5
    assert crashes > 40
    assert twice, "no crash fell between a send and its mark"


@pytest.mark.unmeasured
def test_a_crash_inside_the_recovery_from_a_crash_loses_nothing_either() -> None:
    most, crashes = length(lone()), 0
    for first in range(1, most + 1):
        for second in range(1, most + 1):
            # After one operation is before the next: what a crash leaves is the same.
            world = lone()
            both = [crashed(world, first, "after", 0), crashed(world, second, "after", 0)]
            crashes += all(both)
            done(world, 2)
    assert crashes > 150


@pytest.mark.unmeasured
def test_two_relays_that_take_turns_send_nothing_at_the_same_time() -> None:
    most = length(World(("a", ["x", "y"])))
    for first in range(1, most + 1):
        for second in range(1, most + 1):
            world = World(("a", ["x", "y"]))
            one, other = world.script(world.relay()), world.script(world.relay())
            one.run(most=first)
            other.run(most=second)
            one.run()
            other.run()
            assert set(world.consumer.sends().values()) <= {1}, (first, second)
            done(world, 2)
            assert max(world.consumer.sends().values()) == 1


def test_a_relay_with_an_expired_lease_cannot_write_an_outcome() -> None:
    world = World(("a", ["x", "y"]))
    zombie = world.script(world.relay())
    while type(zombie.op) is not SendEvent:
        zombie.step()
    world.die(zombie.courier.engine)
    world.relay().run_once()
    before = list(world.store.read_entries())
    zombie.run()
    assert list(world.store.read_entries())[: len(before)] == before
    assert states(world.engine()) == {"DELIVERED": 2}
    assert zombie.tally.delivered == 0
    late = world.consumer.got[-1]
    assert late.payload == "a0", "its message lands late, under the same id, and is dropped by that"
    assert world.consumer.payloads == ["a0", "a1"]
    world.check()
    world.close()


def test_an_event_that_kills_every_relay_becomes_dead_and_the_queue_continues() -> None:
    world = World(("a", ["poison", "x"]), ("b", ["x"]))
    for _ in range(3):
        script = world.script(world.relay())
        while type(script.op) is not SendEvent or script.op.head.record.topic != "poison":
            script.step()
        world.die(script.courier.engine)
    world.finish()
    assert states(world.engine()) == {"DELIVERED": 2, "DEAD": 1}
    assert sorted(world.consumer.payloads) == ["a1", "b0"]
    (letter,) = world.relay().dead_letters()
    assert (letter.reason, letter.attempts) == ("max_attempts_exceeded", 3)
    assert letter.error["code"] == "LEASE_EXPIRED"
    world.close()


def test_of_two_relays_that_give_an_event_up_at_once_one_writes_it() -> None:
    world = World(("a", ["x"]), fails={("x", 0): SOON})
    world.relay().run_once()
    world.now += 100.0
    strict = POLICY.replace(max_attempts=1)
    one = world.script(outbox.OutboxRelay(world.engine(), {"*": world.consumer}, policy=strict))
    while type(one.op) is not AppendChange:
        one.step()
    assert outbox.OutboxRelay(world.engine(), {"*": world.consumer}, policy=strict).run_once().dead == 1
    one.run()
    assert one.tally == outbox.DeliveryStats(waiting=1)
    assert len(world.relay().dead_letters()) == 1
    world.check()
    world.close()


@pytest.mark.parametrize("state", STATE_TRANSITIONS)
def test_only_the_listed_state_transitions_are_allowed(state: str) -> None:
    event = EventRecord(state, "topic", "id", worker="w", reason="r")
    for to in STATE_TRANSITIONS:
        if to in STATE_TRANSITIONS[state]:
            assert change_state(event, to) == event._replace(state=to, worker="", reason="")
        else:
            with pytest.raises(oncemore.Error, match=f"from {state} to {to}"):
                change_state(event, to)
