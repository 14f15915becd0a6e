"""The interface between an inbox and its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.messaging.inbox_flow import InboxMessage


class ReceivedMessage(NamedTuple):
    """A message with the token by which its queue knows it.

    lane  messages of one lane are processed in order; empty if the queue does not order them
    """

    message: InboxMessage
    token: Any
    lane: str = ""


class MessageSource(Protocol):
    """A queue, as an inbox uses it.

    name         identifies the queue; message ids are unique within it
    heartbeat_s  the interval of `extend_lease` for a message that is being processed
    """

    name: str
    heartbeat_s: float

    async def open(self) -> None:
        """Connect; raise `UsageError` for a problem that waiting does not solve."""

    async def receive(self, limit: int) -> Sequence[ReceivedMessage]:
        """Return up to `limit` messages, or none after a short wait."""

    async def ack(self, delivery: ReceivedMessage) -> None:
        """Remove a processed message; return when the queue has confirmed it."""

    async def nak(self, delivery: ReceivedMessage, delay_s: float) -> None:
        """Return a message to the queue, to be delivered again after a delay."""

    async def terminate(self, delivery: ReceivedMessage, reason: str) -> None:
        """Remove a message that was not processed."""

    async def extend_lease(self, delivery: ReceivedMessage) -> None:
        """Tell the queue that a message is still being processed."""

    async def close(self) -> None:
        """Close the connection."""


def group_lanes(deliveries: Sequence[ReceivedMessage]) -> list[list[ReceivedMessage]]:
    """Return the messages by lane; a message without a lane is a group of its own."""
    lanes: dict[Any, list[ReceivedMessage]] = {}
    for position, delivery in enumerate(deliveries):
        lanes.setdefault(delivery.lane or position, []).append(delivery)
    return list(lanes.values())
