"""A consumer that kills itself: python -m tests.messaging.inbox.victim STORE URL WHEN

WHEN is `committed` (after COMMIT, before the ack) or `acked` (after it). The scheme of the URL selects the
kind of queue.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import oncemore
from oncemore.inbox import Inbox

STEP = "victim.book"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make_source(url: str) -> Any:
    """Return the source of the messages."""
    if url.startswith("amqp"):
        from oncemore.messaging.sources.rabbitmq import RabbitMqSource

        return RabbitMqSource(url, queue="victim", prefetch=5)
    from oncemore.messaging.sources.jetstream import JetStreamSource

    return JetStreamSource(url, stream="ORDERS", durable="shop", ack_wait_s=0.4)


def make_fragile(source: Any, when: str) -> Any:
    """Let a source kill its process around the ack."""
    ack = source.ack

    async def ack_and_die(delivery: Any) -> None:
        if when == "committed":
            die()
        await ack(delivery)
        if when == "acked":
            die()

    source.ack = ack_and_die
    return source


def main(store: str, url: str, when: str) -> None:
    @oncemore.step(effect="idempotent", name=STEP)
    def book(order: str) -> str:
        with open("booked", "a") as file:  # noqa: PTH123 - in the folder that it was started in
            file.write(f"{order}\n")
        return order

    with oncemore.open(store):
        inbox = Inbox(make_fragile(make_source(url), when), book)
        inbox.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
