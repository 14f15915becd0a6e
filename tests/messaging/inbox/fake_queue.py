"""Test helpers for inboxes: an in-memory queue that delivers at least once, and counting steps.

The queue is a real implementation of `Source`: what is not answered comes again, what was put off comes when
its time has come, and it notes everything that it is told.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import oncemore
from oncemore.inbox import Inbox, ReceivedMessage
from oncemore.messaging.inbox_flow import InboxMessage
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

#: Two attempts, the second after 90 seconds.
POLICY = Policy("test", max_attempts=2, schedule=Schedule("fixed", delays=(90.0,)), jitter=Jitter("none"))


class Queue:
    """An in-memory queue. `told` has every answer; `deferred` has deferred messages until `due()`."""

    name, heartbeat_s = "memory", 0.02

    def __init__(self, *messages: InboxMessage) -> None:
        self.waiting = list(messages)
        self.told: list[tuple[Any, ...]] = []
        self.deferred: list[InboxMessage] = []
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

    async def receive(self, limit: int) -> list[ReceivedMessage]:
        if self.looks:
            raise self.looks.pop(0)
        await asyncio.sleep(0)
        got, self.waiting = self.waiting[:limit], self.waiting[limit:]
        if not got:
            await asyncio.sleep(0.002)
        return [ReceivedMessage(message, message.id, message.id[0] if self.lanes else "") for message in got]

    def again(self, message: InboxMessage) -> None:
        self.deferred.append(message._replace(delivery_count=message.delivery_count + 1))

    def due(self) -> None:
        self.waiting, self.deferred = self.waiting + self.deferred, []

    def _answer(self, delivery: ReceivedMessage, *told: Any) -> None:
        if self.deaf:
            self.again(delivery.message)
            raise self.deaf.pop(0)
        self.told.append((told[0], delivery.message.id, *told[1:]))

    async def ack(self, delivery: ReceivedMessage) -> None:
        self._answer(delivery, "ack")

    async def nak(self, delivery: ReceivedMessage, delay_s: float) -> None:
        self._answer(delivery, "nak", round(delay_s))
        self.again(delivery.message)

    async def terminate(self, delivery: ReceivedMessage, why: str) -> None:
        self._answer(delivery, "term", why)

    async def extend_lease(self, delivery: ReceivedMessage) -> None:
        self.beats += 1
        if self.skips:
            raise self.skips.pop(0)

    async def close(self) -> None:
        self.closed += 1


def make_message(ident: str, content: Any = None, *, source: str = "memory", **headers: str) -> InboxMessage:
    """Return a message with JSON content; bytes are used unchanged."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return InboxMessage(
        ident, source, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )


class Shop:
    """A step that books orders, and fails as configured."""

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
    """Drain a queue; return the inbox."""
    inbox = Inbox(queue, step, **options)
    inbox.drain()
    return inbox
