"""A queue of RabbitMQ with manual acknowledgements, as a source of messages.

The id of a message is its `message_id`, else `Oncemore-Id` or `ce-id`. RabbitMQ gives a message no id of its
own, so that two deliveries of a message without one cannot be told from two messages: such a message becomes
a dead letter, unless the inbox has a `key=`.

A deferred message stays with the consumer, unacknowledged, and goes back to the queue when it is due; so no
message is lost if the consumer or the server dies meanwhile, because the server then delivers it again at
once. Acknowledgements of AMQP have no reply: the reply to a second request on the same channel shows that the
server has processed the acknowledgement before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from oncemore.errors import UsageError
from oncemore.messaging.inbox_flow import InboxMessage
from oncemore.messaging.inbox_message import find_message_id
from oncemore.messaging.rabbitmq import CONNECT_TIMEOUT_S, RabbitConnection, check_amqp_url, make_parameters
from oncemore.messaging.sources.source import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: How long one `receive` waits for messages.
POLL_S = 1.0
#: How long a deferred message is kept at most; the server ends a channel with one that is unacknowledged for
#: half an hour.
MAX_HELD_S = 600.0
MAX_PREFETCH = 65_535
QUEUE_TYPES = ("quorum", "classic")
_NOT_FOUND = 404


class DeliveryToken(NamedTuple):
    """The number of a delivery, which only the connection that it came by understands."""

    connection: RabbitConnection
    tag: int


class RabbitMqSource:
    """Receives from a durable queue; with `queue_type`, creates a missing queue.

    prefetch  the limit of unacknowledged messages of this consumer, those in progress and those deferred
    """

    heartbeat_s = 3600.0  # the connection has heartbeats of its own

    def __init__(
        self,
        url: str,
        *,
        queue: str,
        prefetch: int,
        queue_type: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = check_amqp_url(url)
        if not isinstance(queue, str) or not queue or len(queue.encode()) > 255:
            raise UsageError(f"queue is {queue!r}; it takes the name of a queue, up to 255 bytes")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= MAX_PREFETCH:
            raise UsageError(f"prefetch is {prefetch!r}; it takes 1 to {MAX_PREFETCH}")
        if queue_type is not None and queue_type not in QUEUE_TYPES:
            raise UsageError(f"queue_type is {queue_type!r}; the choices are {', '.join(QUEUE_TYPES)}")
        vhost = unquote(urlsplit(url).path[1:]) or "/"
        self.name = f"rabbitmq:{queue}" if vhost == "/" else f"rabbitmq:{vhost}/{queue}"
        self._queue, self._prefetch, self._queue_type = queue, prefetch, queue_type
        self._options = dict(options or {})
        self._connection: RabbitConnection | None = None
        self._deliveries: deque[ReceivedMessage] = deque()
        self._has_deliveries = asyncio.Event()
        # Of messages that were delivered more than once, by id; classic queues do not count.
        self._counts: dict[str, int] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    async def open(self) -> None:
        """Connect, find or create the queue, and begin to consume."""
        # An earlier connection may have ended; its deliveries come again.
        await self.close()
        loop = asyncio.get_running_loop()
        parameters = make_parameters(self._url, self._options)
        self._has_deliveries = asyncio.Event()

        def deliver(_channel: Any, *delivery: Any) -> None:
            # The loop reads the name of the connection, which is set by then.
            loop.call_soon_threadsafe(lambda: self._add_delivery(connection, *delivery))

        connection = RabbitConnection(parameters, lambda opened: self._open_channel(opened, deliver))
        self._connection = connection
        await asyncio.wait_for(asyncio.wrap_future(connection.opened), 2 * CONNECT_TIMEOUT_S)

    def _open_channel(self, connection: Any, deliver: Callable[..., None]) -> Any:
        """Return a channel that consumes the queue; runs in the thread of the connection."""
        channel = connection.channel()
        try:
            channel.queue_declare(self._queue, passive=True)
        except Exception as error:
            if getattr(error, "reply_code", 0) != _NOT_FOUND:
                raise
            if self._queue_type is None:
                raise UsageError(
                    f"there is no queue {self._queue!r}; create it, or pass queue_type= to have it created"
                ) from None
            # The server has closed the channel with its refusal.
            channel = connection.channel()
            channel.queue_declare(self._queue, durable=True, arguments={"x-queue-type": self._queue_type})
        channel.basic_qos(prefetch_count=self._prefetch)
        # The queue was deleted, or moved to another node: the inbox connects again.
        channel.add_on_cancel_callback(lambda _frame: channel.close())
        channel.basic_consume(self._queue, deliver)
        return channel

    def _add_delivery(self, connection: RabbitConnection, method: Any, properties: Any, body: bytes) -> None:
        # A message of a connection that has been given up comes again.
        if connection is self._connection:
            message = self._make_message(method, properties, body)
            self._deliveries.append(ReceivedMessage(message, DeliveryToken(connection, method.delivery_tag)))
            self._has_deliveries.set()

    def _make_message(self, method: Any, properties: Any, body: bytes) -> InboxMessage:
        headers = {str(name).lower(): str(value) for name, value in (properties.headers or {}).items()}
        for name, value in (
            ("content-type", properties.content_type),
            ("correlation-id", properties.correlation_id),
        ):
            if value:
                headers.setdefault(name, value)
        message_id = properties.message_id or find_message_id(headers)
        # The digest is only the name of the dead letter that such a message becomes.
        known_id = message_id or f"sha256:{sha256(body).hexdigest()}"
        return InboxMessage(
            known_id,
            self.name,
            body,
            headers,
            self._count_delivery(known_id, method, headers),
            bool(message_id),
        )

    def _count_delivery(self, message_id: str, method: Any, headers: Mapping[str, str]) -> int:
        """Return how often a message was delivered; a quorum queue counts, else this consumer does."""
        counted = headers.get("x-delivery-count", "")
        if counted.isdigit():
            return int(counted) + 1
        if not method.redelivered:
            return 1
        self._counts[message_id] = self._counts.get(message_id, 1) + 1
        return self._counts[message_id]

    async def receive(self, limit: int) -> list[ReceivedMessage]:
        """Return messages, or none if there are none within `POLL_S`."""
        if self._connection is None or not self._connection.is_open:
            await self.open()
        if not self._deliveries:
            self._has_deliveries.clear()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._has_deliveries.wait()
            except TimeoutError:
                return []
        return [self._deliveries.popleft() for _ in range(min(limit, len(self._deliveries)))]

    async def ack(self, delivery: ReceivedMessage) -> None:
        """Acknowledge a message; return when the server has processed it."""
        await self._answer(delivery, lambda channel, tag: channel.basic_ack(tag))
        self._counts.pop(delivery.message.id, None)

    async def nak(self, delivery: ReceivedMessage, delay_s: float) -> None:
        """Return a message to the queue, at once or when it is due."""
        if delay_s <= 0:
            await self._answer(delivery, lambda channel, tag: channel.basic_nack(tag, requeue=True))
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(min(delay_s, MAX_HELD_S), self._requeue, delivery)
        self._timers = {other for other in self._timers if other.when() > loop.time()} | {timer}

    def _requeue(self, delivery: ReceivedMessage) -> None:
        token: DeliveryToken = delivery.token
        # After the end of its connection the server has the message already.
        if token.connection.is_open:
            token.connection.submit(lambda channel: channel.basic_nack(token.tag, requeue=True))

    async def terminate(self, delivery: ReceivedMessage, reason: str) -> None:
        """Reject a message; if the queue has a dead-letter exchange, the server publishes it there."""
        await self._answer(delivery, lambda channel, tag: channel.basic_reject(tag, requeue=False))
        self._counts.pop(delivery.message.id, None)

    async def _answer(self, delivery: ReceivedMessage, answer: Callable[[Any, int], None]) -> None:
        token: DeliveryToken = delivery.token
        if not token.connection.is_open:
            # On another connection the same number belongs to another message.
            raise ConnectionResetError("the connection was lost; the server delivers the message again")

        def answer_and_confirm(channel: Any) -> None:
            answer(channel, token.tag)
            # Requests of a channel are processed in order, and this one has a reply.
            channel.basic_qos(prefetch_count=self._prefetch)

        await asyncio.wrap_future(token.connection.submit(answer_and_confirm))

    async def extend_lease(self, delivery: ReceivedMessage) -> None:
        """Do nothing: a message belongs to its consumer as long as the connection lives."""

    async def close(self) -> None:
        """Disconnect; the server delivers unacknowledged messages again, also deferred ones."""
        connection, self._connection = self._connection, None
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._deliveries.clear()
        if connection is not None:
            await asyncio.to_thread(connection.close)
