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
from tests.control.quarantine.helpers import ManualNotifier
from tests.crash.harness import CrashPoint, ProcessCrash, SharedStore
from tests.messaging.outbox.simulation import POLICY, Consumer, OutboxSimulation, events, give, states

if TYPE_CHECKING:
    from oncemore.outbox import EventMessage

SOON = oncemore.TransientError("not yet")


def two() -> OutboxSimulation:
    return OutboxSimulation(("a", ["slow", "x"]), ("b", ["x"]), fails={("slow", 1): SOON})


def stop(simulation: OutboxSimulation, **which: Any) -> None:
    simulation.engine().switches.on(reason="the ledger is wrong", by="operator", **which)


def go(simulation: OutboxSimulation, **which: Any) -> None:
    assert simulation.engine().switches.off(reason="it is right again", by="operator", **which)


def begun_while_on(simulation: OutboxSimulation) -> int:
    """Return the number of deliveries that began while a switch was on, according to the log."""
    on, begun = False, 0
    for entry in simulation.store.read_entries():
        if entry.entity == SWITCHES_ENTITY:
            on = not on
        begun += on and entry.entity.startswith("event/") and "SENDING" in decode_header(entry.header).marks
    return begun


@pytest.mark.req("AUTO-7")
def test_nothing_is_delivered_while_everything_is_stopped_and_all_of_it_afterwards() -> None:
    simulation = two()
    stop(simulation)
    relay = simulation.relay()
    for _ in range(3):
        assert relay.run_once() == DeliveryStats(waiting=3)
        simulation.now += 100.0
    assert simulation.consumer.got == []
    assert {event.attempt for event in events(simulation.engine()).values()} == {0}, "no attempt is lost"
    go(simulation)
    assert relay.run_once() == DeliveryStats(delivered=1, failed=1, waiting=2)
    simulation.finish()
    assert simulation.consumer.payloads == ["b0", "a0", "a1"]
    simulation.check()
    simulation.close()


@pytest.mark.unmeasured
@pytest.mark.parametrize("also", ["", "before", "after"])
def test_no_delivery_begins_after_the_switch_is_turned_on_at_any_point(also: Any) -> None:
    """The same if the relay crashes at that point and another one runs while the switch is on."""
    length = two()
    whole = length.start_pass()
    whole.run()
    most = whole.count
    length.close()
    held = late = 0
    for at in range(most):
        simulation = two()
        script = simulation.start_pass()
        script.run(max_steps=at)
        sent = len(simulation.consumer.got)
        stop(simulation)
        with suppress(ProcessCrash):
            script.run(CrashPoint(at + 1, also) if also else None)
        simulation.now += 100.0
        simulation.relay().run_once()
        assert begun_while_on(simulation) == 0, at
        # What was under way may end; it began before the throw.
        assert len(simulation.consumer.got) - sent <= 1
        late += len(simulation.consumer.got) > sent
        held += len(simulation.consumer.effects) < 3
        go(simulation)
        simulation.finish()
        simulation.check()
        assert states(simulation.engine()) == {"DELIVERED": 3}
        simulation.close()
    assert held > most // 2
    assert late or also == "before", "no throw fell between a claim and its send"


def test_a_relay_that_dies_while_it_sends_leaves_what_waits_for_the_release() -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    script = simulation.start_pass()
    script.run_until(SendEvent)
    stop(simulation)
    script.end_process()
    assert simulation.relay().run_once() == DeliveryStats(waiting=1)
    assert states(simulation.engine()) == {"SENDING": 1}, "it may have been sent; it is not sent again yet"
    go(simulation)
    assert simulation.relay().run_once() == DeliveryStats(delivered=1)
    simulation.close()


def test_an_event_whose_last_attempt_was_lost_becomes_dead_despite_switches() -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    for _ in range(POLICY.max_attempts):
        script = simulation.start_pass()
        script.run_until(SendEvent)
        script.end_process()
    stop(simulation, step="give")
    assert simulation.relay().run_once() == DeliveryStats(dead=1), "nothing is sent by that"
    assert simulation.consumer.got == []
    simulation.close()


@pytest.mark.parametrize(("which", "held"), [({"step": "give"}, 2), ({"step": "other"}, 0)])
def test_the_switch_of_a_step_stops_the_events_of_that_step(which: dict[str, str], held: int) -> None:
    simulation = OutboxSimulation(("a", ["x"]), ("b", ["y"]))
    stop(simulation, **which)
    assert simulation.relay().run_once() == DeliveryStats(delivered=2 - held, waiting=held)
    go(simulation, **which)
    simulation.finish()
    assert sorted(simulation.consumer.payloads) == ["a0", "b0"]
    simulation.close()


def test_the_switch_of_a_tenant_stops_only_that_tenants_events() -> None:
    simulation = OutboxSimulation()
    home = simulation.engine()
    with oncemore.context(tenant="shop-7"):
        give.bind(home)("a", ["x"])
    give.bind(home)("b", ["x"])
    stop(simulation, tenant="shop-7")
    assert simulation.relay().run_once() == DeliveryStats(delivered=1, waiting=1)
    assert simulation.consumer.payloads == ["b0"]
    go(simulation, tenant="shop-7")
    assert simulation.relay().run_once() == DeliveryStats(delivered=1)
    simulation.close()


def test_an_unrelated_switch_does_not_stop_a_delivery() -> None:
    simulation = OutboxSimulation(("a", ["x", "y"]))
    script = simulation.start_pass()
    script.run_until(SendEvent)
    script.step()
    stop(simulation, step="other")  # what the relay knows of switches is old now
    script.run()
    assert script.result == DeliveryStats(delivered=2)
    simulation.close()


def test_switches_that_change_all_the_time_do_not_keep_a_pass_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    script = simulation.start_pass()
    append, n = simulation.store.append, 0

    def meddled(batch: Any) -> Any:
        nonlocal n
        if any(write.entity.startswith("event/") for write in batch.writes):
            n += 1
            with monkeypatch.context() as calm:
                calm.setattr(simulation.store, "append", append)
                stop(simulation, step=f"other-{n}")
        return append(batch)

    monkeypatch.setattr(simulation.store, "append", meddled)
    script.run()
    assert (n, script.result) == (3, DeliveryStats(waiting=1))
    monkeypatch.undo()
    assert simulation.relay().run_once() == DeliveryStats(delivered=1)
    simulation.close()


def test_while_all_is_stopped_a_pass_looks_once_however_much_waits() -> None:
    simulation = OutboxSimulation(*((f"{n}", ["x"] * 50) for n in range(8)))
    stop(simulation)
    relay = outbox.OutboxRelay(simulation.engine(), {"*": simulation.consumer}, batch=100)
    script = simulation.start_pass(relay)
    looks = []
    while script.op is not None:
        looks += [script.op.limit] if type(script.op) is ListPendingEvents else []
        script.step()
    assert looks == [100]
    assert script.result == DeliveryStats(waiting=100)
    assert script.count < 10
    simulation.close()


# What people are told


def held_payment(simulation: OutboxSimulation, *sinks: Any) -> None:
    """Quarantine a run whose notification is not sent yet."""
    engine = simulation.engine()
    engine.notifier = ManualNotifier({"desk": sinks[0]}, classify=classify, describe=error_to_record)

    @oncemore.step(effect="once", name="pay", policy=POLICY)
    def pay(order: str) -> str:
        raise ConnectionResetError

    with pytest.raises(oncemore.OutcomeUnknown):
        pay.bind(engine)("A-1")
    engine.close()


def test_notifications_are_sent_while_everything_is_stopped() -> None:
    told: list[EventMessage] = []
    simulation = OutboxSimulation(*((f"{n}", ["x"] * 20) for n in range(3)))
    held_payment(simulation, told.append)
    stop(simulation)
    routes = {"*": simulation.consumer, f"{TOPIC_PREFIX}*": told.append}
    both = outbox.OutboxRelay(simulation.engine(), routes, batch=10, policy=POLICY)
    assert both.run_once() == DeliveryStats(delivered=1, waiting=60)
    assert [message.topic for message in told] == [f"{TOPIC_PREFIX}desk"]
    assert simulation.consumer.got == []
    simulation.close()


def test_notifications_are_not_sent_from_a_moved_log() -> None:
    told: list[EventMessage] = []
    simulation, new = OutboxSimulation(), SharedStore()
    held_payment(simulation, told.append)
    here, there = simulation.engine(), oncemore.Engine(lambda: new, "memory:new")
    copy.move_log(here, there, reason="outgrown", by="operator")
    routes = {f"{TOPIC_PREFIX}*": told.append}
    with pytest.raises(NotPermitted, match=r"the delivery of event \S+ was not begun: this log has moved"):
        outbox.OutboxRelay(here, routes).run_once()
    assert outbox.OutboxRelay(there, routes).run_once() == DeliveryStats(delivered=1)
    assert len(told) == 1
    there.close()
    simulation.close()


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
    simulation, away = OutboxSimulation(("a", ["x"])), Away()
    engine = oncemore.Engine(lambda: simulation.store, "memory:", control=away)

    async def sink(message: EventMessage) -> None:
        simulation.consumer(message)

    relay = simulation.relay(engine, sink if colour == "async" else None)

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
    assert simulation.consumer.payloads == ["a0"]
    engine.close()
    simulation.close()


def test_switches_that_become_unreadable_between_two_events_stop_the_second() -> None:
    simulation, away = OutboxSimulation(("a", ["x", "y"])), Away()
    away.answers = SwitchBoard()
    engine = oncemore.Engine(lambda: simulation.store, "memory:", control=away)
    script = simulation.start_pass(simulation.relay(engine))
    script.run_until(SendEvent)
    away.answers = None
    with pytest.raises(NotPermitted, match=r"the delivery of event \S+ was not begun.*cannot be read"):
        script.run()
    assert simulation.consumer.payloads == ["a0"]
    engine.close()
    simulation.close()


def test_a_log_that_has_moved_delivers_nothing_here_and_everything_there() -> None:
    simulation, new = OutboxSimulation(("a", ["x", "y"])), SharedStore()
    for engine in simulation._engines:
        engine.close()
    here, there = simulation.engine(), oncemore.Engine(lambda: new, "memory:new")
    copy.move_log(here, there, reason="outgrown", by="operator")
    with pytest.raises(NotPermitted, match="of events was not begun: this log has moved to memory:new"):
        simulation.relay(here).run_once()
    assert simulation.relay(there).run_once() == DeliveryStats(delivered=2)
    assert simulation.consumer.payloads == ["a0", "a1"]
    there.close()
    simulation.close()


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
