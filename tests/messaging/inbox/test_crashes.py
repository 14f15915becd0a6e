"""A consumer may crash before or after every operation of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.messaging.driver import DeliveryDriver, SinkTable
from oncemore.messaging.inbox_flow import (
    AnswerQueue,
    CallStep,
    InboxMessage,
    dead_letter_topic,
    restore_message,
    take_message,
)
from oncemore.messaging.inbox_step import MessageStep
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import AppendChange
from tests.crash.harness import (
    BEFORE_EACH,
    EVERYWHERE,
    ScriptRun,
    crash_everywhere,
    kill_process,
    perform_delivery,
)
from tests.messaging.inbox.fake_queue import Shop, make_message
from tests.messaging.outbox.simulation import OutboxSimulation

if TYPE_CHECKING:
    from tests.crash.harness import CrashPoint


class InboxConsumer:
    """One consumer in a process of its own; `answers` has the answers to the queue."""

    def __init__(self, simulation: OutboxSimulation, shop: Shop) -> None:
        self.engine = simulation.engine()
        self.step = MessageStep.create_from(shop.step, self.engine, None, None)
        self.courier = DeliveryDriver(self.engine, SinkTable({"x": print}), 1000, None, None)
        self.answers: list[AnswerQueue] = []

    def start(self, message: InboxMessage) -> ScriptRun:
        """Return the processing of a message, to be performed operation by operation."""
        script = take_message(message, self.step.name)
        return ScriptRun(script, self.perform, lambda: kill_process(self.engine))

    def perform(self, op: Any) -> Any:
        """Perform an operation: a call of the step, an answer to the queue, or one of the driver."""
        if type(op) is CallStep:
            called: Any = self.step.read_message(op.message)
            return called if not hasattr(called, "arguments") else self.step.call_step(called)
        if type(op) is AnswerQueue:
            self.answers.append(op)
            return None
        return perform_delivery(self.courier, op)


#: A message, the error of its step, and how it ends: executions, answer to the queue, dead letters.
LIVES = {
    "done": (make_message("m1", {"order": "A-1"}), None, 1, "ack", 0),
    "failed": (make_message("m1", {"order": "A-1"}), oncemore.PermanentError("no"), 0, "term", 1),
    "unreadable": (make_message("m1", b"{"), None, 0, "term", 1),
}


@pytest.mark.req("MSG-4", "MSG-8")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("levels", [(EVERYWHERE,), (EVERYWHERE, BEFORE_EACH)], ids=["once", "twice"])
def test_after_a_crash_at_any_point_the_next_delivery_completes_the_message(life: str, levels: Any) -> None:
    message, error, booked, verb, dead = LIVES[life]

    def start() -> tuple[OutboxSimulation, Shop]:
        shop = Shop()
        shop.says = [] if error is None else [error]
        return OutboxSimulation(), shop

    def run(state: tuple[OutboxSimulation, Shop], crash: CrashPoint | None) -> None:
        InboxConsumer(*state).start(message).run(crash)

    crashes = 0
    for simulation, shop in crash_everywhere(start, run, levels):
        crashes += 1
        last = InboxConsumer(simulation, shop)
        last.start(message).run()
        assert last.answers[-1].verb == verb
        assert len(shop.booked) == booked
        assert len(last.engine.quarantine.list()) == dead
        verify_chain(simulation.store.read_entries())
        simulation.close()
    assert crashes >= (10 if dead else 4)


def test_two_inboxes_that_store_one_dead_letter_store_it_once() -> None:
    simulation, shop = OutboxSimulation(), Shop()
    one, other = InboxConsumer(simulation, shop), InboxConsumer(simulation, shop)
    message = LIVES["unreadable"][0]
    process = one.start(message)
    process.run_until(AppendChange)
    other.start(message).run()
    assert one.perform(process.op) is None, "the other inbox has stored it"
    process.resume(None)
    process.run()
    assert len(one.engine.quarantine.list()) == 1
    simulation.close()


def test_a_dead_letter_has_the_whole_message_also_if_it_is_binary() -> None:
    for body in (b"\xff\x00", "ä".encode()):
        kept = InboxMessage("m", "s", body, {"a": "b"})
        assert restore_message(kept.to_record()) == kept


def test_a_long_step_name_has_a_valid_topic() -> None:
    assert dead_letter_topic("shop.book") == "oncemore.inbox.shop.book"
    assert len(dead_letter_topic("x" * 500)) <= 200 != dead_letter_topic("y" * 500)
