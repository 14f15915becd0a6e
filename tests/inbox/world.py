"""A small world for inboxes: a queue in memory that delivers at least once, and steps that count.

The queue is a real implementation of `Source`: what is not answered comes again, what was put off comes when
its time has come, and it notes everything that it is told.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import oncemore
from oncemore.inbox import Delivery, Inbox
from oncemore.messaging.inbox_flow import Letter
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

#: Two attempts, the second after 90 seconds.
POLICY = Policy("test", max_attempts=2, schedule=Schedule("fixed", delays=(90.0,)), jitter=Jitter("none"))


class Queue:
    """Letters in memory. `told` has every answer; what was put off is in `later`, and `due()` brings it."""

    name, beat_s = "memory", 0.02

    def __init__(self, *letters: Letter) -> None:
        self.waiting = list(letters)
        self.told: list[tuple[Any, ...]] = []
        self.later: list[Letter] = []
        self.deaf: list[Exception] = []
        self.opens: list[Exception] = []
        self.looks: list[Exception] = []
        self.skips: list[Exception] = []
        self.lanes = False
        self.beats = 0
        self.closed = 0

    async def open(self) -> None:
        if self.opens:
            raise self.opens.pop(0)

    async def receive(self, limit: int) -> list[Delivery]:
        if self.looks:
            raise self.looks.pop(0)
        await asyncio.sleep(0)
        got, self.waiting = self.waiting[:limit], self.waiting[limit:]
        if not got:
            await asyncio.sleep(0.002)
        return [Delivery(letter, letter.id, letter.id[0] if self.lanes else "") for letter in got]

    def again(self, letter: Letter) -> None:
        self.later.append(letter._replace(delivery=letter.delivery + 1))

    def due(self) -> None:
        self.waiting, self.later = self.waiting + self.later, []

    def _answer(self, delivery: Delivery, *told: Any) -> None:
        if self.deaf:
            self.again(delivery.letter)
            raise self.deaf.pop(0)
        self.told.append((told[0], delivery.letter.id, *told[1:]))

    async def ack(self, delivery: Delivery) -> None:
        self._answer(delivery, "ack")

    async def nak(self, delivery: Delivery, delay_s: float) -> None:
        self._answer(delivery, "nak", round(delay_s))
        self.again(delivery.letter)

    async def term(self, delivery: Delivery, why: str) -> None:
        self._answer(delivery, "term", why)

    async def beat(self, delivery: Delivery) -> None:
        self.beats += 1
        if self.skips:
            raise self.skips.pop(0)

    async def close(self) -> None:
        self.closed += 1


def letter(ident: str, content: Any = None, *, source: str = "memory", **headers: str) -> Letter:
    """A letter of JSON; bytes are taken as they are."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Letter(ident, source, body, {name.replace("_", "-"): value for name, value in headers.items()})


class Shop:
    """A step that books orders, and fails as told."""

    def __init__(self, *, name: str = "shop.book", **told: Any) -> None:
        self.booked: list[tuple[str, int]] = []
        self.says: list[BaseException] = []
        self.correlations: list[str] = []

        def book(order: str, amount: int = 1) -> str:
            self.correlations.append(oncemore.current().correlation_id)
            if self.says:
                raise self.says.pop(0)
            self.booked.append((order, amount))
            return f"{order} booked"

        async def book_awaited(order: str, amount: int = 1) -> str:
            await asyncio.sleep(0)
            return book(order, amount)

        options = {"effect": "idempotent", "policy": POLICY, "name": name, **told}
        self.step: Any = oncemore.step(**options)(book)
        self.step_awaited: Any = oncemore.step(**options)(book_awaited)


def drain(queue: Queue, step: Any, **options: Any) -> Inbox:
    """Take what is there, and return the inbox."""
    inbox = Inbox(queue, step, **options)
    inbox.drain()
    return inbox
