"""While a switch is on nothing is delivered; when it is released everything is, and no attempt was lost."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import outbox
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.control.model import SWITCHES_ENTITY, Approval, SwitchBoard
from oncemore.control.notifications import TOPIC_PREFIX
from oncemore.errors import NotPermitted
from oncemore.log.entry_codec import decode_header
from oncemore.maintenance import copy
from oncemore.messaging.delivery import ListPendingEvents, SendEvent
from oncemore.outbox import DeliveryStats
from tests.control.quarantine.world import Quiet
from tests.messaging.outbox.world import POLICY, Consumer, Crash, Shared, World, events, give, states

if TYPE_CHECKING:
    from oncemore.outbox import EventMessage

SOON = oncemore.TransientError("not yet")


def two() -> World:
    return World(("a", ["slow", "x"]), ("b", ["x"]), fails={("slow", 1): SOON})


def stop(world: World, **which: Any) -> None:
    world.engine().switches.on(reason="the ledger is wrong", by="operator", **which)


def go(world: World, **which: Any) -> None:
    assert world.engine().switches.off(reason="it is right again", by="operator", **which)


def begun_while_on(world: World) -> int:
    """Return the number of deliveries that began while a switch was on, according to the log."""
    on, begun = False, 0
    for entry in world.store.read_entries():
        if entry.entity == SWITCHES_ENTITY:
            on = not on
        begun += on and entry.entity.startswith("event/") and "SENDING" in decode_header(entry.header).marks
    return begun


@pytest.mark.req("AUTO-7")
def test_nothing_is_delivered_while_everything_is_stopped_and_all_of_it_afterwards() -> None:
    world = two()
    stop(world)
    relay = world.relay()
    for _ in range(3):
        assert relay.run_once() == DeliveryStats(waiting=3)
        world.now += 100.0
    assert world.consumer.got == []
    assert {event.attempt for event in events(world.engine()).values()} == {0}, "no attempt is lost"
    go(world)
    assert relay.run_once() == DeliveryStats(delivered=1, failed=1, waiting=2)
    world.finish()
    assert world.consumer.payloads == ["b0", "a0", "a1"]
    world.check()
    world.close()


@pytest.mark.unmeasured
@pytest.mark.parametrize("also", ["", "before", "after"])
def test_a_switch_thrown_at_any_point_of_a_pass_lets_no_further_delivery_begin(also: str) -> None:
    """The same if the relay crashes at that point and another one runs while the switch is on."""
    length = two()
    most = length.script(length.relay()).run()
    length.close()
    held = late = 0
    for at in range(most):
        world = two()
        script = world.script(world.relay())
        script.run(most=at)
        sent = len(world.consumer.got)
        stop(world)
        with suppress(Crash):
            script.run((at + 1, also) if also else None)
        world.now += 100.0
        world.relay().run_once()
        assert begun_while_on(world) == 0, at
        # What was under way may end; it began before the throw.
        assert len(world.consumer.got) - sent <= 1
        late += len(world.consumer.got) > sent
        held += len(world.consumer.effects) < 3
        go(world)
        world.finish()
        world.check()
        assert states(world.engine()) == {"DELIVERED": 3}
        world.close()
    assert held > most // 2
    assert late or also == "before", "no throw fell between a claim and its send"


def test_a_relay_that_dies_while_it_sends_leaves_what_waits_for_the_release() -> None:
    world = World(("a", ["x"]))
    script = world.script(world.relay())
    while type(script.op) is not SendEvent:
        script.step()
    stop(world)
    world.die(script.courier.engine)
    assert world.relay().run_once() == DeliveryStats(waiting=1)
    assert states(world.engine()) == {"SENDING": 1}, "it may have been sent; it is not sent again yet"
    go(world)
    assert world.relay().run_once() == DeliveryStats(delivered=1)
    world.close()


def test_an_event_whose_last_attempt_was_lost_becomes_dead_despite_switches() -> None:
    world = World(("a", ["x"]))
    for _ in range(POLICY.max_attempts):
        script = world.script(world.relay())
        while type(script.op) is not SendEvent:
            script.step()
        world.die(script.courier.engine)
    stop(world, step="give")
    assert world.relay().run_once() == DeliveryStats(dead=1), "nothing is sent by that"
    assert world.consumer.got == []
    world.close()


@pytest.mark.parametrize(("which", "held"), [({"step": "give"}, 2), ({"step": "other"}, 0)])
def test_the_switch_of_a_step_stops_the_events_of_that_step(which: dict[str, str], held: int) -> None:
    world = World(("a", ["x"]), ("b", ["y"]))
    stop(world, **which)
    assert world.relay().run_once() == DeliveryStats(delivered=2 - held, waiting=held)
    go(world, **which)
    world.finish()
    assert sorted(world.consumer.payloads) == ["a0", "b0"]
    world.close()


def test_the_switch_of_a_tenant_stops_only_that_tenants_events() -> None:
    world = World()
    home = world.engine()
    with oncemore.context(tenant="shop-7"):
        give.bind(home)("a", ["x"])
    give.bind(home)("b", ["x"])
    stop(world, tenant="shop-7")
    assert world.relay().run_once() == DeliveryStats(delivered=1, waiting=1)
    assert world.consumer.payloads == ["b0"]
    go(world, tenant="shop-7")
    assert world.relay().run_once() == DeliveryStats(delivered=1)
    world.close()


def test_an_unrelated_switch_does_not_stop_a_delivery() -> None:
    world = World(("a", ["x", "y"]))
    script = world.script(world.relay())
    while type(script.op) is not SendEvent:
        script.step()
    script.step()
    stop(world, step="other")  # what the relay knows of switches is old now
    script.run()
    assert script.tally == DeliveryStats(delivered=2)
    world.close()


def test_switches_that_change_all_the_time_do_not_keep_a_pass_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(("a", ["x"]))
    script = world.script(world.relay())
    append, n = world.store.append, 0

    def meddled(batch: Any) -> Any:
        nonlocal n
        if any(write.entity.startswith("event/") for write in batch.writes):
            n += 1
            with monkeypatch.context() as calm:
                calm.setattr(world.store, "append", append)
                stop(world, step=f"other-{n}")
        return append(batch)

    monkeypatch.setattr(world.store, "append", meddled)
    script.run()
    assert (n, script.tally) == (3, DeliveryStats(waiting=1))
    monkeypatch.undo()
    assert world.relay().run_once() == DeliveryStats(delivered=1)
    world.close()


def test_while_all_is_stopped_a_pass_looks_once_however_much_waits() -> None:
    world = World(*((f"{n}", ["x"] * 50) for n in range(8)))
    stop(world)
    script = world.script(outbox.OutboxRelay(world.engine(), {"*": world.consumer}, batch=100))
    looks = []
    while script.op is not None:
        looks += [script.op.limit] if type(script.op) is ListPendingEvents else []
        script.step()
    assert looks == [100]
    assert script.tally == DeliveryStats(waiting=100)
    assert script.count < 10
    world.close()


# What people are told


def held_payment(world: World, *sinks: Any) -> None:
    """Quarantine a run whose notification is not sent yet."""
    engine = world.engine()
    engine.notifier = Quiet({"desk": sinks[0]}, classify=classify, describe=error_to_record)

    @oncemore.step(effect="once", name="pay", policy=POLICY)
    def pay(order: str) -> str:
        raise ConnectionResetError

    with pytest.raises(oncemore.OutcomeUnknown):
        pay.bind(engine)("A-1")
    engine.close()


def test_notifications_are_sent_while_everything_is_stopped() -> None:
    told: list[EventMessage] = []
    world = World(*((f"{n}", ["x"] * 20) for n in range(3)))
    held_payment(world, told.append)
    stop(world)
    routes = {"*": world.consumer, f"{TOPIC_PREFIX}*": told.append}
    both = outbox.OutboxRelay(world.engine(), routes, batch=10, policy=POLICY)
    assert both.run_once() == DeliveryStats(delivered=1, waiting=60)
    assert [message.topic for message in told] == [f"{TOPIC_PREFIX}desk"]
    assert world.consumer.got == []
    world.close()


def test_notifications_are_not_sent_from_a_moved_log() -> None:
    told: list[EventMessage] = []
    world, new = World(), Shared()
    held_payment(world, told.append)
    here, there = world.engine(), oncemore.Engine(lambda: new, "memory:new")
    copy.move_log(here, there, reason="outgrown", by="operator")
    routes = {f"{TOPIC_PREFIX}*": told.append}
    with pytest.raises(NotPermitted, match=r"the delivery of event \S+ was not begun: this log has moved"):
        outbox.OutboxRelay(here, routes).run_once()
    assert outbox.OutboxRelay(there, routes).run_once() == DeliveryStats(delivered=1)
    assert len(told) == 1
    there.close()
    world.close()


# Who cannot tell, and where it is not any more


class Away:
    """An external source of switches that fails, or stops everything."""

    def __init__(self) -> None:
        self.answers: SwitchBoard | None = None

    def load_switches(self, steps: tuple[str, ...], tenant: str) -> SwitchBoard:
        if self.answers is None:
            raise ConnectionRefusedError("down")
        return self.answers

    def load_approval(self, key: str) -> Approval | None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.req("AUTO-8")
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_nothing_is_delivered_if_the_switches_cannot_be_read(colour: str) -> None:
    world, away = World(("a", ["x"])), Away()
    engine = oncemore.Engine(lambda: world.store, "memory:", control=away)

    async def sink(message: EventMessage) -> None:
        world.consumer(message)

    relay = world.relay(engine, sink if colour == "async" else None)

    def once() -> DeliveryStats:
        made = relay.run_once()
        return asyncio.run(made) if colour == "async" else made

    with pytest.raises(
        NotPermitted, match=r"the delivery of events was not begun.*cannot be read"
    ) as refused:
        once()
    assert refused.value.reason == "control_state_unknown"
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)
    away.answers = SwitchBoard("STOPPED", {"all_execution": {"by": "another", "reason": "theirs"}})
    assert once() == DeliveryStats(waiting=1)
    away.answers = SwitchBoard()
    assert once() == DeliveryStats(delivered=1)
    assert world.consumer.payloads == ["a0"]
    engine.close()
    world.close()


def test_switches_that_become_unreadable_between_two_events_stop_the_second() -> None:
    world, away = World(("a", ["x", "y"])), Away()
    away.answers = SwitchBoard()
    engine = oncemore.Engine(lambda: world.store, "memory:", control=away)
    script = world.script(world.relay(engine))
    while type(script.op) is not SendEvent:
        script.step()
    away.answers = None
    with pytest.raises(NotPermitted, match=r"the delivery of event \S+ was not begun.*cannot be read"):
        script.run()
    assert world.consumer.payloads == ["a0"]
    engine.close()
    world.close()


def test_a_log_that_has_moved_delivers_nothing_here_and_everything_there() -> None:
    world, new = World(("a", ["x", "y"])), Shared()
    for engine in world._engines:
        engine.close()
    here, there = world.engine(), oncemore.Engine(lambda: new, "memory:new")
    copy.move_log(here, there, reason="outgrown", by="operator")
    with pytest.raises(NotPermitted, match="of events was not begun: this log has moved to memory:new"):
        world.relay(here).run_once()
    assert world.relay(there).run_once() == DeliveryStats(delivered=2)
    assert world.consumer.payloads == ["a0", "a1"]
    there.close()
    world.close()


# For real


def test_a_relay_in_a_thread_delivers_at_once_when_the_switch_is_released(tmp_path: Any) -> None:
    consumer = Consumer()
    with oncemore.open(tmp_path / "log.db") as engine:
        give("a", ["x"])
        engine.switches.on(reason="wrong", by="operator")
        with outbox.OutboxRelay(engine, {"*": consumer}, poll_s=30.0):
            time.sleep(0.2)
            assert consumer.got == []
            engine.switches.off(reason="right", by="operator")
            ends = time.monotonic() + 10
            while not consumer.got:
                assert time.monotonic() < ends
                threading.Event().wait(0.01)
    assert consumer.payloads == ["a0"]
