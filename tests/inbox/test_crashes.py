"""A consumer may die before or after everything that it does for a letter."""

from __future__ import annotations

from typing import Any

import pytest

import oncemore
from oncemore.messaging import driver as couriers
from oncemore.messaging.driver import Courier, Sinks
from oncemore.messaging.inbox_flow import Letter, Perform, Reply, letter_of, take, topic_of
from oncemore.messaging.inbox_step import Taker
from oncemore.steps.ops import Load, Now, Save
from oncemore.steps.run import verify
from tests.inbox.world import Shop, letter
from tests.relay.world import Crash, World

WHENS = ("before", "after")


class Consumer:
    """One consumer, operation by operation; `answers` are what the queue has heard."""

    def __init__(self, world: World, shop: Shop) -> None:
        self.engine = world.engine()
        self.world, self.taker = world, Taker.of(shop.step, self.engine, None, None)
        self.answers: list[Reply] = []

    def deliver(self, message: Letter, crash: tuple[int, str] | None = None) -> int:
        """Take a letter, or die in the middle; return how many operations it took."""
        script, count = take(message, self.taker.name), 0
        courier = Courier(self.engine, Sinks({"x": print}), 1000, None, None)
        op, answer = next(script), None
        while True:
            count += 1
            self._die(crash == (count, "before"))
            if type(op) is Perform:
                called: Any = self.taker.read(op.letter)
                answer = called if not hasattr(called, "arguments") else self.taker.call(called)
            elif type(op) is Reply:
                self.answers.append(op)
                answer = None
            else:
                answer = couriers.blocking(courier, _only(op))
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


#: A letter, what its step says, and how it ends: runs of the work, answers, dead letters.
LIVES = {
    "done": (letter("m1", {"order": "A-1"}), None, 1, "ack", 0),
    "failed": (letter("m1", {"order": "A-1"}), oncemore.PermanentError("no"), 0, "term", 1),
    "unreadable": (letter("m1", b"{"), None, 0, "term", 1),
}


@pytest.mark.req("MSG-4", "MSG-8")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("second", [False, True])
def test_a_crash_at_any_point_is_made_up_for_by_the_next_delivery(life: str, second: bool) -> None:
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
            verify(world.store.entries())
            world.close()
    assert crashes >= (10 if dead else 4)


def test_two_that_keep_one_letter_at_the_same_time_keep_it_once() -> None:
    world, shop = World(), Shop()
    one, other = Consumer(world, shop), Consumer(world, shop)
    script = take(LIVES["unreadable"][0], shop.step.name)
    op, done = next(script), False
    while True:
        if type(op) is Save and not done:
            other.deliver(LIVES["unreadable"][0])
            done = True
        courier = Courier(one.engine, Sinks({"x": print}), 1000, None, None)
        answer: Any = None
        if type(op) is Perform:
            answer = one.taker.read(op.letter)
        elif type(op) in (Load, Now, Save):
            answer = couriers.blocking(courier, _only(op))
            assert type(op) is not Save or answer is None
        try:
            op = script.send(answer)
        except StopIteration:
            break
    assert len(one.engine.quarantine.list()) == 1
    world.close()


def test_a_letter_is_kept_whole_also_if_it_is_no_text() -> None:
    for body in (b"\xff\x00", "ä".encode()):
        kept = Letter("m", "s", body, {"a": "b"})
        assert letter_of(kept.stored()) == kept


def test_a_long_name_of_a_step_still_makes_a_topic() -> None:
    assert topic_of("shop.book") == "oncemore.inbox.shop.book"
    assert len(topic_of("x" * 500)) <= 200 != topic_of("y" * 500)
