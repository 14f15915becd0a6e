"""A durable JetStream pull consumer with explicit acknowledgements, as a source of messages.

Every answer is confirmed by the server ("double ack"). If the server or the connection fails before, the
message is delivered again after `ack_wait`, and the inbox finds its run in the log. The id of a message is
its `Nats-Msg-Id`, else `Oncemore-Id` or `ce-id`, else stream, sequence and time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oncemore.errors import MissingExtra, UsageError
from oncemore.log.nats.servers import ignore_error, parse_servers
from oncemore.messaging.inbox_flow import InboxMessage
from oncemore.messaging.inbox_message import find_message_id
from oncemore.messaging.sources.source import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How long one fetch waits for messages, and how long any reply of the server may take.
POLL_S, REPLY_TIMEOUT_S = 1.0, 5.0
#: The default time without a heartbeat after which the server delivers a message again.
ACK_WAIT_S = 30.0
_NO_SUCH_STREAM, _NO_SUCH_CONSUMER = 10059, 10014


class JetStreamSource:
    """Receives from a consumer; creates a missing consumer, and with `subjects` a missing stream.

    max_ack_pending  the limit of unacknowledged messages of all inboxes of the consumer together
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str,
        durable: str,
        subjects: Sequence[str] = (),
        filter_subject: str | None = None,
        ack_wait_s: float = ACK_WAIT_S,
        max_ack_pending: int = 256,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = parse_servers(url)
        for name, value in (("stream", stream), ("durable", durable)):
            if not isinstance(value, str) or not value or any(char in value for char in " .*>/\\\t\r\n"):
                raise UsageError(f"{name} is {value!r}; it takes a name without spaces and . * > / \\")
        if isinstance(ack_wait_s, bool) or not 0.1 <= ack_wait_s <= 86_400:
            raise UsageError(f"ack_wait is {ack_wait_s!r}; it takes 0.1 to 86400 s")
        self.name, self.heartbeat_s = f"nats:{stream}", ack_wait_s / 3
        self._stream, self._durable = stream, durable
        self._subjects, self._filter = list(subjects), filter_subject
        self._ack_wait_s, self._max_ack_pending, self._options = (
            ack_wait_s,
            max_ack_pending,
            dict(options or {}),
        )
        self._client: Any = None
        self._pull: Any = None

    async def open(self) -> None:
        """Connect, and find or create the stream and the consumer."""
        try:
            import nats
            from nats.js.errors import NotFoundError
        except ImportError as error:
            raise MissingExtra("an inbox on JetStream needs nats-py: pip install 'oncemore[nats]'") from error
        # An earlier attempt may have connected and then failed.
        await self.close()
        defaults = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.25, "error_cb": ignore_error}
        # With unlimited reconnects the first connection would be retried for ever, too.
        connecting = nats.connect(self._servers, **{**defaults, **self._options})
        self._client = await asyncio.wait_for(connecting, REPLY_TIMEOUT_S)
        streams = self._client.jetstream(timeout=REPLY_TIMEOUT_S)
        try:
            await streams.stream_info(self._stream)
        except NotFoundError as error:
            if error.err_code not in (None, _NO_SUCH_STREAM) or not self._subjects:
                raise UsageError(
                    f"there is no stream {self._stream!r}; create it, or pass subjects= to have it created"
                ) from None
            await self._make_stream(streams)
        self.heartbeat_s = await self._ensure_consumer(streams, NotFoundError) / 3
        self._pull = await streams.pull_subscribe_bind(durable=self._durable, stream=self._stream)

    async def _make_stream(self, streams: Any) -> None:
        from nats.js.api import RetentionPolicy, StreamConfig

        await streams.add_stream(
            StreamConfig(name=self._stream, subjects=self._subjects, retention=RetentionPolicy.WORK_QUEUE)
        )

    async def _ensure_consumer(self, streams: Any, missing: type[Exception]) -> float:
        """Find or create the consumer; return its `ack_wait`."""
        from nats.js.api import AckPolicy, ConsumerConfig

        try:
            info = await streams.consumer_info(self._stream, self._durable)
        except missing:
            info = await streams.add_consumer(
                self._stream,
                ConsumerConfig(
                    durable_name=self._durable,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self._ack_wait_s,
                    # Unlimited: the step's policy decides on the number of attempts.
                    max_deliver=-1,
                    max_ack_pending=self._max_ack_pending,
                    filter_subject=self._filter,
                ),
            )
        if info.config.ack_policy != AckPolicy.EXPLICIT:
            raise UsageError(
                f"consumer {self._durable!r} has ack policy {info.config.ack_policy}; it must be explicit"
            )
        return float(info.config.ack_wait or ACK_WAIT_S)

    async def receive(self, limit: int) -> list[ReceivedMessage]:
        """Return messages, or none if there are none within `POLL_S`."""
        from nats.errors import TimeoutError as FetchTimeout

        try:
            messages = await self._pull.fetch(limit, timeout=POLL_S)
        except FetchTimeout:
            return []
        return [ReceivedMessage(self._make_message(message), message) for message in messages]

    def _make_message(self, message: Any) -> InboxMessage:
        headers = {str(name).lower(): str(value) for name, value in (message.headers or {}).items()}
        metadata = message.metadata
        # With the time, because a stream that was deleted and created again starts at sequence 1.
        position = f"{metadata.stream} {metadata.sequence.stream} {metadata.timestamp.isoformat()}"
        message_id = headers.get("nats-msg-id") or find_message_id(headers) or position
        return InboxMessage(message_id, self.name, message.data, headers, metadata.num_delivered)

    async def ack(self, delivery: ReceivedMessage) -> None:
        """Acknowledge a message; return when the server has confirmed it."""
        await self._send_answer(delivery, b"+ACK")

    async def nak(self, delivery: ReceivedMessage, delay_s: float) -> None:
        """Have a message delivered again after a delay."""
        delay = b' {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b""
        await self._send_answer(delivery, b"-NAK" + delay)

    async def terminate(self, delivery: ReceivedMessage, reason: str) -> None:
        """Remove a message that was not processed; the server publishes the reason as an advisory."""
        await self._send_answer(delivery, b"+TERM " + reason.encode("ascii", "replace")[:100])

    async def _send_answer(self, delivery: ReceivedMessage, word: bytes) -> None:
        # A request, not a publish: its reply is the server's confirmation.
        await self._client.request(delivery.token.reply, word, timeout=REPLY_TIMEOUT_S)

    async def extend_lease(self, delivery: ReceivedMessage) -> None:
        """Restart the `ack_wait` of a message."""
        await self._client.publish(delivery.token.reply, b"+WPI")

    async def close(self) -> None:
        """Disconnect; messages that were fetched and not begun are delivered again after `ack_wait`."""
        client, self._client, self._pull = self._client, None, None
        if client is not None:
            await client.close()
