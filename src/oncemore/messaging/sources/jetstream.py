"""JetStream as a queue: a durable pull consumer with explicit answers.

An answer is asked back for (a "double ack"): when `ack` returns, the server has it. A server that dies
before, or a connection that is cut, leaves the letter unanswered; it comes again after `ack_wait` and is
found in the log. What the letter's id is, the first that is there:

    Nats-Msg-Id                what its sender calls it
    Oncemore-Id, ce-id         the same, in other words
    stream, sequence, time     its place; the time, because a stream that is made anew begins at 1 again
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oncemore.errors import MissingExtra, UsageError
from oncemore.log.nats.servers import quiet, servers_of
from oncemore.messaging.inbox_flow import Letter
from oncemore.messaging.inbox_message import id_in
from oncemore.messaging.inbox_service import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How long one look waits for letters, and one answer of the server for anything.
LOOK_S, ANSWER_S = 1.0, 5.0
#: How long a letter may be under way without a word, unless told; the most of them that are out at once.
ACK_WAIT_S = 30.0
_NO_SUCH_STREAM, _NO_SUCH_CONSUMER = 10059, 10014


class JetStream:
    """The letters of a consumer, which is made if it is not there; so is the stream, if `subjects` are given.

    max_out  the most letters that the server gives out unanswered, to all inboxes of the consumer together
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
        max_out: int = 256,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = servers_of(url)
        for name, value in (("stream", stream), ("durable", durable)):
            if not isinstance(value, str) or not value or any(sign in value for sign in " .*>/\\\t\r\n"):
                raise UsageError(f"{name} is {value!r}; it takes a name without spaces and . * > / \\")
        if isinstance(ack_wait_s, bool) or not 0.1 <= ack_wait_s <= 86_400:
            raise UsageError(f"ack_wait is {ack_wait_s!r}; it takes 0.1 to 86400 s")
        self.name, self.beat_s = f"nats:{stream}", ack_wait_s / 3
        self._stream, self._durable = stream, durable
        self._subjects, self._filter = list(subjects), filter_subject
        self._ack_wait_s, self._max_out, self._options = ack_wait_s, max_out, dict(options or {})
        self._client: Any = None
        self._pull: Any = None

    async def open(self) -> None:
        """Connect, and find the consumer or make it."""
        try:
            import nats
            from nats.js.errors import NotFoundError
        except ImportError as missing:
            raise MissingExtra(
                "an inbox on JetStream needs nats-py: pip install 'oncemore[nats]'"
            ) from missing
        await self.close()  # what an earlier try has left
        told = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.25, "error_cb": quiet}
        # With any number of attempts allowed the first connection has them, too: it would never give up.
        made = nats.connect(self._servers, **{**told, **self._options})
        self._client = await asyncio.wait_for(made, ANSWER_S)
        streams = self._client.jetstream(timeout=ANSWER_S)
        try:
            await streams.stream_info(self._stream)
        except NotFoundError as error:
            if error.err_code not in (None, _NO_SUCH_STREAM) or not self._subjects:
                raise UsageError(
                    f"there is no stream {self._stream!r}; make it, or give subjects= to have it made"
                ) from None
            await self._make_stream(streams)
        self.beat_s = await self._consumer(streams, NotFoundError) / 3
        self._pull = await streams.pull_subscribe_bind(durable=self._durable, stream=self._stream)

    async def _make_stream(self, streams: Any) -> None:
        from nats.js.api import RetentionPolicy, StreamConfig

        await streams.add_stream(
            StreamConfig(name=self._stream, subjects=self._subjects, retention=RetentionPolicy.WORK_QUEUE)
        )

    async def _consumer(self, streams: Any, missing: type[Exception]) -> float:
        """Find the consumer or make it; return its `ack_wait`."""
        from nats.js.api import AckPolicy, ConsumerConfig

        try:
            found = await streams.consumer_info(self._stream, self._durable)
        except missing:
            found = await streams.add_consumer(
                self._stream,
                ConsumerConfig(
                    durable_name=self._durable,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self._ack_wait_s,
                    max_deliver=-1,  # how often is ours to say: the step's policy does
                    max_ack_pending=self._max_out,
                    filter_subject=self._filter,
                ),
            )
        if found.config.ack_policy != AckPolicy.EXPLICIT:
            raise UsageError(
                f"consumer {self._durable!r} has ack policy {found.config.ack_policy}; it must be explicit"
            )
        return float(found.config.ack_wait or ACK_WAIT_S)

    async def receive(self, limit: int) -> list[Delivery]:
        """Return letters that are due."""
        from nats.errors import TimeoutError as NoneYet

        try:
            messages = await self._pull.fetch(limit, timeout=LOOK_S)
        except NoneYet:
            return []
        return [Delivery(self._letter(message), message) for message in messages]

    def _letter(self, message: Any) -> Letter:
        headers = {str(name).lower(): str(value) for name, value in (message.headers or {}).items()}
        told = message.metadata
        place = f"{told.stream} {told.sequence.stream} {told.timestamp.isoformat()}"
        own = headers.get("nats-msg-id") or id_in(headers) or place
        return Letter(own, self.name, message.data, headers, told.num_delivered)

    async def ack(self, delivery: Delivery) -> None:
        """Have it taken off the queue."""
        await self._answered(delivery, b"+ACK")

    async def nak(self, delivery: Delivery, delay_s: float) -> None:
        """Have it come again; at once, if there is no delay."""
        delay = b' {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b""
        await self._answered(delivery, b"-NAK" + delay)

    async def term(self, delivery: Delivery, why: str) -> None:
        """Have it taken off the queue; why, stands in the server's advisory."""
        await self._answered(delivery, b"+TERM " + why.encode("ascii", "replace")[:100])

    async def _answered(self, delivery: Delivery, word: bytes) -> None:
        await self._client.request(delivery.token.reply, word, timeout=ANSWER_S)

    async def beat(self, delivery: Delivery) -> None:
        """Begin its `ack_wait` anew."""
        await self._client.publish(delivery.token.reply, b"+WPI")

    async def close(self) -> None:
        """Leave the server; what was fetched and not begun comes again after `ack_wait`."""
        client, self._client, self._pull = self._client, None, None
        if client is not None:
            await client.close()
