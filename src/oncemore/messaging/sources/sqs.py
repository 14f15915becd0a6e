"""An SQS queue, FIFO or standard, as a source of messages.

The id of a message is its MessageDeduplicationId (FIFO queues), else `Oncemore-Id` or `ce-id` among its
attributes, else its MessageId. A deferred message is hidden until it is due, at most twelve hours from its
receipt; in a FIFO queue the rest of its group waits with it. A redrive policy counts these deliveries, too:
its `maxReceiveCount` must be well above the attempts that the step's policy needs.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncemore.errors import UsageError
from oncemore.messaging.inbox_flow import InboxMessage
from oncemore.messaging.inbox_message import find_message_id
from oncemore.messaging.queue_sinks import make_sqs_client
from oncemore.messaging.sources.source import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

#: Limits of SQS: messages per receive call, and seconds that a message can be hidden from its receipt on.
MAX_BATCH, MAX_HIDDEN_S = 10, 43_200
VISIBILITY_S, POLL_S = 30, 10


class SqsSource:
    """Receives from one SQS queue."""

    def __init__(
        self, queue_url: str, *, client: Any = None, visibility_s: int = VISIBILITY_S, poll_s: int = POLL_S
    ) -> None:
        parts = urlsplit(queue_url)
        if parts.scheme not in ("http", "https") or not parts.path.strip("/"):
            raise UsageError("queue_url takes the URL of a queue, https://sqs.REGION.amazonaws.com/ID/NAME")
        if isinstance(visibility_s, bool) or not 1 <= visibility_s <= MAX_HIDDEN_S:
            raise UsageError(f"visibility is {visibility_s!r}; it takes 1 to {MAX_HIDDEN_S} s")
        self.name = f"sqs:{parts.path.rpartition('/')[2]}"
        self.heartbeat_s = visibility_s / 3
        self._url, self._client = queue_url, client
        self._visibility_s, self._poll_s = visibility_s, poll_s

    async def open(self) -> None:
        """Create the client, unless the caller passed one."""
        if self._client is None:
            self._client = await asyncio.to_thread(make_sqs_client, self._url)

    async def receive(self, limit: int) -> list[ReceivedMessage]:
        """Return messages, or none if there are none within the poll time."""
        response = await self._call_client(
            self._client.receive_message,
            MaxNumberOfMessages=min(limit, MAX_BATCH),
            WaitTimeSeconds=self._poll_s,
            VisibilityTimeout=self._visibility_s,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        # The limit of twelve hours counts from here, see `nak`.
        now = time.monotonic()
        messages = response.get("Messages", ())
        return [
            ReceivedMessage(
                self._make_message(message),
                (message["ReceiptHandle"], now),
                message.get("Attributes", {}).get("MessageGroupId", "")
                if self.name.endswith(".fifo")
                else "",
            )
            for message in messages
        ]

    def _make_message(self, message: dict[str, Any]) -> InboxMessage:
        headers = {
            name.lower(): str(value["StringValue"])
            for name, value in message.get("MessageAttributes", {}).items()
            if "StringValue" in value
        }
        system = message.get("Attributes", {})
        message_id = system.get("MessageDeduplicationId") or find_message_id(headers) or message["MessageId"]
        delivery_count = int(system.get("ApproximateReceiveCount", 1))
        # `surrogatepass`: a body with lone surrogates becomes a dead letter in the reader, not an error here.
        body = message["Body"].encode("utf-8", "surrogatepass")
        return InboxMessage(message_id, self.name, body, headers, delivery_count)

    async def ack(self, delivery: ReceivedMessage) -> None:
        """Delete a message."""
        await self._call_client(self._client.delete_message, ReceiptHandle=delivery.token[0])

    async def nak(self, delivery: ReceivedMessage, delay_s: float) -> None:
        """Hide a message for a while."""
        handle, received_at = delivery.token
        left = MAX_HIDDEN_S - 1 - math.ceil(time.monotonic() - received_at)
        hidden = max(0, min(math.ceil(delay_s), left))
        await self._call_client(
            self._client.change_message_visibility, ReceiptHandle=handle, VisibilityTimeout=hidden
        )

    async def terminate(self, delivery: ReceivedMessage, reason: str) -> None:
        """Delete a message; it is in the log as a dead letter or a held run."""
        await self.ack(delivery)

    async def extend_lease(self, delivery: ReceivedMessage) -> None:
        """Hide a message for another visibility timeout."""
        await self.nak(delivery, self._visibility_s)

    async def close(self) -> None:
        """Do nothing: the client may belong to the caller."""

    async def _call_client(self, call: Callable[..., Any], **parameters: Any) -> Any:
        # boto3 is blocking.
        return await asyncio.to_thread(call, QueueUrl=self._url, **parameters)
