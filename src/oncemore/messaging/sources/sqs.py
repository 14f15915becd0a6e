"""SQS as a queue, FIFO or standard.

The queue remembers a deduplication id for five minutes; the log remembers it for good. What the letter's id
is, the first that is there: MessageDeduplicationId (of FIFO queues), `Oncemore-Id` or `ce-id` among its
attributes, MessageId.

A letter that is due later is hidden until then, twelve hours at most from when it was received; in a FIFO
queue what comes after it in its group waits with it. A redrive policy counts such deliveries as well: give
it a `maxReceiveCount` well above what the step's policy needs, or none.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncemore.errors import UsageError
from oncemore.messaging.inbox_flow import Letter
from oncemore.messaging.inbox_message import id_in
from oncemore.messaging.inbox_service import Delivery
from oncemore.messaging.queue_sinks import client_of

if TYPE_CHECKING:
    from collections.abc import Callable

#: The most that one look brings, and the longest that a letter can be hidden, counted from its delivery.
MOST, LONGEST_S = 10, 43_200
VISIBILITY_S, LOOK_S = 30, 10


class Sqs:
    """The letters of a queue."""

    def __init__(
        self, queue_url: str, *, client: Any = None, visibility_s: int = VISIBILITY_S, look_s: int = LOOK_S
    ) -> None:
        parts = urlsplit(queue_url)
        if parts.scheme not in ("http", "https") or not parts.path.strip("/"):
            raise UsageError("queue_url takes the URL of a queue, https://sqs.REGION.amazonaws.com/ID/NAME")
        if isinstance(visibility_s, bool) or not 1 <= visibility_s <= LONGEST_S:
            raise UsageError(f"visibility is {visibility_s!r}; it takes 1 to {LONGEST_S} s")
        self.name = f"sqs:{parts.path.rpartition('/')[2]}"
        self.beat_s = visibility_s / 3
        self._url, self._client = queue_url, client
        self._visibility_s, self._look_s = visibility_s, look_s

    async def open(self) -> None:
        """Have a client."""
        if self._client is None:
            self._client = await asyncio.to_thread(client_of, self._url)

    async def receive(self, limit: int) -> list[Delivery]:
        """Return letters that are due."""
        answer = await self._ask(
            self._client.receive_message,
            MaxNumberOfMessages=min(limit, MOST),
            WaitTimeSeconds=self._look_s,
            VisibilityTimeout=self._visibility_s,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        now = time.monotonic()
        found = answer.get("Messages", ())
        return [
            Delivery(
                self._letter(each),
                (each["ReceiptHandle"], now),
                each.get("Attributes", {}).get("MessageGroupId", "") if self.name.endswith(".fifo") else "",
            )
            for each in found
        ]

    def _letter(self, message: dict[str, Any]) -> Letter:
        headers = {
            name.lower(): str(value["StringValue"])
            for name, value in message.get("MessageAttributes", {}).items()
            if "StringValue" in value
        }
        system = message.get("Attributes", {})
        own = system.get("MessageDeduplicationId") or id_in(headers) or message["MessageId"]
        delivered = int(system.get("ApproximateReceiveCount", 1))
        body = message["Body"].encode("utf-8", "surrogatepass")  # what is not UTF-8 is refused by the reader
        return Letter(own, self.name, body, headers, delivered)

    async def ack(self, delivery: Delivery) -> None:
        """Have it deleted."""
        await self._ask(self._client.delete_message, ReceiptHandle=delivery.token[0])

    async def nak(self, delivery: Delivery, delay_s: float) -> None:
        """Have it hidden for a while."""
        handle, since = delivery.token
        left = LONGEST_S - 1 - math.ceil(time.monotonic() - since)
        hidden = max(0, min(math.ceil(delay_s), left))
        await self._ask(
            self._client.change_message_visibility, ReceiptHandle=handle, VisibilityTimeout=hidden
        )

    async def term(self, delivery: Delivery, why: str) -> None:
        """Have it deleted: the log has it."""
        await self.ack(delivery)

    async def beat(self, delivery: Delivery) -> None:
        """Have it stay hidden."""
        await self.nak(delivery, self._visibility_s)

    async def close(self) -> None:
        """Leave; a client that was given stays open."""

    async def _ask(self, call: Callable[..., Any], **told: Any) -> Any:
        return await asyncio.to_thread(call, QueueUrl=self._url, **told)
