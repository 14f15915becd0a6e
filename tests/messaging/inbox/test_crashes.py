"""A consumer may crash before or after every operation of a message."""

from __future__ import annotations

from typing import Any

import pytest

import oncemore
from oncemore.messaging import driver as couriers
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
from oncemore.steps.ops import AppendChange, LoadHead, ReadClock
from oncemore.steps.history import verify_chain
from tests.messaging.inbox.world import Shop, make_message
from tests.messaging.outbox.world import Crash, World

WHENS = ("before", "after")


class Consumer:
    """One consumer, operation by operation; `answers` has the answers to the queue."""

    def __init__(self, world: World, shop: Shop) -> None:
        self.engine = world.engine()
        self.world, self.taker = world, MessageStep.create_from(shop.step, self.engine, None, None)
        self.answers: list[AnswerQueue] = []

    def deliver(self, message: InboxMessage, crash: tuple[int, str] | None = None) -> int:
        """Process a message, or crash in the middle; return the number of operations."""
        script, count = take_message(message, self.taker.name), 0
        courier = DeliveryDriver(self.engine, SinkTable({"x": print}), 1000, None, None)
        op, answer = next(script), None
        while True:
            count += 1
            self._die(crash == (count, "before"))
            if type(op) is CallStep:
                called: Any = self.taker.read_message(op.message)
                answer = called if not hasattr(called, "arguments") else self.taker.call_step(called)
            elif type(op) is AnswerQueue:
                self.answers.append(op)
                answer = None
            else:
                answer = couriers.run_delivery(courier, _only(op))
            self._die(crash == (count, "after"))
            try:
                op = script.send(answer)
            except StopIteration:
                return count

    def _die(self, now: bool) -> None:
        if now:
            self.world.die(self.engine)
            raise Crash


def _only(op: Any) -> Any:
    return (yield op)


#: A message, what its step says, and how it ends: runs of the work, answers, dead letters.
LIVES = {
    "done": (make_message("m1", {"order": "A-1"}), None, 1, "ack", 0),
    "failed": (make_message("m1", {"order": "A-1"}), oncemore.PermanentError("no"), 0, "term", 1),
    "unreadable": (make_message("m1", b"{"), None, 0, "term", 1),
}


@pytest.mark.req("MSG-4", "MSG-8")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("second", [False, True])
def test_after_a_crash_at_any_point_the_next_delivery_completes_the_message(life: str, second: bool) -> None:
    message, says, booked, verb, dead = LIVES[life]
    crashes = 0
    for at in range(1, 7):
        for when in WHENS:
            world, shop = World(), Shop()
            shop.says = [] if says is None else [says]
            for crash in ((at, when), (at, "before")) if second else ((at, when),):
                consumer = Consumer(world, shop)
                try:
                    consumer.deliver(message, crash)
                except Crash:
                    crashes += 1
            last = Consumer(world, shop)
            last.deliver(message)
            assert last.answers[-1].verb == verb
            assert len(shop.booked) == booked
            assert len(last.engine.quarantine.list()) == dead
            verify_chain(world.store.read_entries())
            world.close()
    assert crashes >= (10 if dead else 4)


def test_two_inboxes_that_store_one_dead_letter_store_it_once() -> None:
    world, shop = World(), Shop()
    one, other = Consumer(world, shop), Consumer(world, shop)
    script = take_message(LIVES["unreadable"][0], shop.step.name)
    op, done = next(script), False
    while True:
        if type(op) is AppendChange and not done:
            other.deliver(LIVES["unreadable"][0])
            done = True
        courier = DeliveryDriver(one.engine, SinkTable({"x": print}), 1000, None, None)
        answer: Any = None
        if type(op) is CallStep:
            answer = one.taker.read_message(op.message)
        elif type(op) in (LoadHead, ReadClock, AppendChange):
            answer = couriers.run_delivery(courier, _only(op))
            assert type(op) is not AppendChange or answer is None
        try:
            op = script.send(answer)
        except StopIteration:
            break
    assert len(one.engine.quarantine.list()) == 1
    world.close()


def test_a_dead_letter_has_the_whole_message_also_if_it_is_binary() -> None:
    for body in (b"\xff\x00", "ä".encode()):
        kept = InboxMessage("m", "s", body, {"a": "b"})
        assert restore_message(kept.to_record()) == kept


def test_a_long_step_name_has_a_valid_topic() -> None:
    assert dead_letter_topic("shop.book") == "oncemore.inbox.shop.book"
    assert len(dead_letter_topic("x" * 500)) <= 200 != dead_letter_topic("y" * 500)
