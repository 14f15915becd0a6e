"""A consumer that kills itself: python -m tests.messaging.inbox.victim STORE URL WHEN

WHEN is `committed` (after COMMIT, before the ack) or `acked` (after it).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import oncemore
from oncemore.inbox import Inbox
from oncemore.messaging.sources.jetstream import JetStreamSource

if TYPE_CHECKING:
    from oncemore.inbox import ReceivedMessage

STEP = "victim.book"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fragile(JetStreamSource):
    """Kills its process around the ack."""

    when = ""

    async def ack(self, delivery: ReceivedMessage) -> None:
        if self.when == "committed":
            die()
        await super().ack(delivery)
        if self.when == "acked":
            die()


def main(store: str, url: str, when: str) -> None:
    Fragile.when = when

    @oncemore.step(effect="idempotent", name=STEP)
    def book(order: str) -> str:
        with open("booked", "a") as file:  # noqa: PTH123 - in the folder that it was started in
            file.write(f"{order}\n")
        return order

    with oncemore.open(store):
        source = Fragile(url, stream="ORDERS", durable="shop", ack_wait_s=0.4)
        inbox = Inbox(source, book)
        inbox.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
