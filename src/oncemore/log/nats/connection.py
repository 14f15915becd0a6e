"""One connection to NATS JetStream, and the requests that a store makes over it.

The connection lives in the loop of a `LoopThread`. Publishes are not grouped: each is sent at once with the
sequence that it expects, because the server is fastest that way.

Publishing, the delivery of replies and the parsing of headers are short cuts past nats-py (`direct_io`);
everything else uses its public interface.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore.errors import MissingExtra
from oncemore.log.nats.direct_io import install_header_parser, subscribe_directly, write_messages
from oncemore.log.nats.loop_thread import LoopThread
from oncemore.log.nats.replies import (
    ConsumedMessage,
    NoServerReply,
    PublishReply,
    ReplyInbox,
    StreamMessage,
    parse_consumed,
    parse_publish_reply,
    parse_stored_message,
    set_reply,
)

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
except ImportError as missing:
    raise MissingExtra("a store in NATS needs nats-py: pip install 'oncemore[nats]'") from missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from oncemore.log.nats.address import NatsAddress
    from oncemore.log.nats.messages import OutgoingMessage
    from oncemore.log.nats.replies import OnReplies, OnReply

REPLY_TIMEOUT_S = 2.0  # the outcome of a request without a reply by then is unknown; it is asked again
MIN_BYTES_PER_S = 5_000_000  # a server stores at least this much; large messages get more time
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
RECONNECT_PAUSE_S = 0.05
PAGE_MESSAGES = 500
PAGE_BYTES = 8_000_000
HEADER_ROOM = 4096  # bytes of the largest payload that are left for headers and subjects
MESSAGE_NOT_FOUND = 10037


class NatsConnection(LoopThread):
    """A connection in a thread of its own, made at first use; a forked child makes a new one."""

    def __init__(self, address: NatsAddress) -> None:
        super().__init__(address.shown)
        self.address = address
        self._client: Client | None = None
        self._inbox = ReplyInbox("")
        self._connecting: asyncio.Lock | None = None

    # Connecting; this and all below is called in the loop

    async def get_client(self) -> Client:
        """Return the client, connected at first use."""
        client = self._client
        if client is not None and not client.is_closed:
            return client
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._connect_with_retries()
                # Replies to the old inbox can no longer arrive.
                self._inbox.fail_waiting()
                self._inbox = ReplyInbox(f"{self._client.new_inbox()}.")
                await subscribe_directly(self._client, f"{self._inbox.prefix}*", self._inbox.deliver_message)
            return self._client

    async def _connect_with_retries(self) -> Client:
        """Connect, or raise after a while; nats-py alone would try for ever."""
        if self.address.creds:
            _require_nkeys()
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            client = Client()
            install_header_parser(client)
            error = await self._try_connect(client, deadline - time.monotonic())
            if error is None:
                return client
            await _close_client(client)
            if _is_final(error) or time.monotonic() > deadline:
                advice = "are name and password right?" if _is_final(error) else "is it running?"
                raise NoServerReply(
                    f"there is no connection to the server ({_describe_error(error)}); {advice}"
                )
            await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _try_connect(self, client: Client, timeout_s: float) -> BaseException | None:
        """Connect and return None, or the error."""
        address = self.address
        errors: list[BaseException] = [TimeoutError("no answer in time")]
        is_refused = asyncio.Event()

        async def on_error(error: Exception) -> None:
            errors.append(error)
            if _is_final(error):
                is_refused.set()

        token = address.user if address.user and not address.password else None
        connecting = asyncio.ensure_future(
            client.connect(
                servers=list(address.servers),
                name=f"oncemore {os.getpid()}",
                connect_timeout=CONNECT_TIMEOUT_S,  # type: ignore[arg-type]
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=10,
                error_cb=on_error,
                disconnected_cb=self._on_disconnect,
                user=address.user if token is None and address.user else None,
                password=address.password or None,
                token=token,
                user_credentials=address.creds or None,
                tls=address.tls_context(),
                pending_size=128 * 1024 * 1024,
                # All subjects are built from digests and a checked namespace.
                skip_subject_validation=True,
            )
        )
        # connect() keeps trying after a refused login, and the server may close the connection before its
        # refusal is read. So the error callback ends the attempt as well.
        refused = asyncio.ensure_future(is_refused.wait())
        both: set[asyncio.Future[Any]] = {connecting, refused}
        await asyncio.wait(both, timeout=max(0.05, timeout_s), return_when="FIRST_COMPLETED")
        refused.cancel()
        if connecting.done() and not connecting.cancelled():
            return connecting.exception()
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=CLOSE_TIMEOUT_S)
        return errors[-1]

    async def _get_connected_client(self) -> Client:
        """Return the client if it is connected now; else raise `NoServerReply`.

        A disconnected client would buffer the request and send it after reconnecting, when the caller has
        already been answered.
        """
        client = await self.get_client()
        if not client.is_connected:
            await asyncio.sleep(RECONNECT_PAUSE_S)
            raise NoServerReply("the connection is lost")
        return client

    async def _on_disconnect(self) -> None:
        self._inbox.fail_waiting()

    def _has_work(self) -> bool:
        return super()._has_work() or bool(len(self._inbox))

    async def _finish_work(self) -> None:
        await super()._finish_work()
        client, self._client = self._client, None
        if client is not None:
            await _close_client(client)

    @property
    def max_payload(self) -> int:
        """The largest payload of a message in bytes, with room left for its headers."""
        client = self._client
        return (1024 * 1024 if client is None else int(client.max_payload)) - HEADER_ROOM

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up at this moment."""
        return self._client is not None and self._client.is_connected

    # Requests

    async def send_request(self, subject: str, payload: bytes = b"") -> Any:
        """Send a request and return the reply; raise `NoServerReply` without one."""
        client = await self._get_connected_client()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Not client.request(): that one would wait for its timeout when the connection is lost.
        reply_to = self._inbox.reserve_subject(REPLY_TIMEOUT_S, partial(set_reply, future))
        write_messages(client, [(subject, payload, {})], reply_to)
        return await future

    async def call_api(self, operation: str, /, **fields: Any) -> dict[str, Any]:
        """Call the JetStream API; an error of the API is returned under "error"."""
        message = await self.send_request(
            f"$JS.API.{operation}", msgspec.json.encode(fields) if fields else b""
        )
        reply: dict[str, Any] = msgspec.json.decode(message.data)
        return reply

    async def publish_messages(self, outgoing: list[OutgoingMessage]) -> PublishReply:
        """Publish messages that form one batch and return the server's answer to the last of them."""
        client = await self._get_connected_client()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply_to = self._inbox.reserve_subject(_publish_timeout(outgoing), partial(set_reply, future))
        write_messages(client, outgoing, reply_to)
        return parse_publish_reply(await future)

    def publish_now(self, outgoing: list[OutgoingMessage], on_reply: OnReply) -> bool:
        """Publish messages that form one batch, unless disconnected; return whether it did.

        `on_reply` is called with the answer; `parse_publish_reply` parses its arguments.
        """
        client = self._client
        if client is None or not client.is_connected:
            return False
        write_messages(client, outgoing, self._inbox.reserve_subject(_publish_timeout(outgoing), on_reply))
        return True

    def request_last_now(self, stream: str, subjects: list[str], on_replies: OnReplies) -> bool:
        """Request the last messages of subjects at one moment, unless disconnected; return whether it did.

        Any replica answers, with the messages that it has: the caller must include a subject that shows
        whether the replica is recent enough.
        """
        client = self._client
        if client is None or not client.is_connected:
            return False
        payload = msgspec.json.encode({"multi_last": subjects})
        reply_to = self._inbox.reserve_multi_subject(REPLY_TIMEOUT_S, on_replies)
        write_messages(client, [(f"$JS.API.DIRECT.GET.{stream}", payload, {})], reply_to)
        return True

    # Reading

    async def last_message(self, stream: str, subject: str) -> StreamMessage | None:
        """Return the last message of a subject, from the stream's leader."""
        return await self._get_message(stream, last_by_subj=subject)

    async def next_message(self, stream: str, subject: str, seq: int) -> StreamMessage | None:
        """Return the first message of a subject from a sequence on, from the stream's leader."""
        return await self._get_message(stream, seq=seq, next_by_subj=subject)

    async def message_at(self, stream: str, seq: int) -> StreamMessage | None:
        """Return the message with a sequence, from the stream's leader."""
        return await self._get_message(stream, seq=seq)

    async def _get_message(self, stream: str, **fields: Any) -> StreamMessage | None:
        reply = await self.call_api(f"STREAM.MSG.GET.{stream}", **fields)
        error = reply.get("error")
        if error is None:
            return parse_stored_message(reply["message"])
        if error.get("err_code") == MESSAGE_NOT_FOUND:
            return None
        raise NoServerReply(f"{error.get('err_code')}: {error.get('description')}")

    async def read_page(self, stream: str, subject: str, seq: int) -> list[StreamMessage]:
        """Return some messages of a subject, which may be a wildcard, from a sequence on; [] for none.

        Any replica answers, and one that lags behind has fewer messages: only the leader (`next_message`)
        can tell that there are no more.
        """
        fields = {"seq": seq, "next_by_subj": subject, "batch": PAGE_MESSAGES, "max_bytes": PAGE_BYTES}
        page: list[StreamMessage] = []
        async for headers, data, _ in self._collect_replies(f"$JS.API.DIRECT.GET.{stream}", fields):
            status = headers.get("Status")
            if status in ("204", "404"):
                return page
            if status:
                raise NoServerReply(f"{status} {headers.get('Description', '')}")
            page.append(StreamMessage(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, data))
        raise NoServerReply("a page has no end")

    async def fetch_messages(self, stream: str, consumer: str) -> list[ConsumedMessage]:
        """Return the messages that a consumer has now, or the first of them."""
        limit = PAGE_MESSAGES * 4
        messages: list[ConsumedMessage] = []
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        async for headers, data, names in self._collect_replies(subject, {"batch": limit, "no_wait": True}):
            status = headers.get("Status")
            if status in ("404", "408"):
                return messages
            if status:
                raise NoServerReply(f"{status} {headers.get('Description', '')}")
            messages.append(parse_consumed(*names, headers, data))
            if len(messages) == limit or messages[-1].left == 0:
                return messages
        raise NoServerReply("a fetch has no end")

    async def _collect_replies(
        self, subject: str, fields: dict[str, Any]
    ) -> AsyncIterator[tuple[Mapping[str, str], bytes, tuple[str, str]]]:
        """Send a request and yield each reply: headers, payload, and its subject with its reply subject."""
        client = await self._get_connected_client()
        inbox, reconnects = client.new_inbox(), client.stats["reconnects"]
        try:
            subscription = await client.subscribe(inbox)
            try:
                await client.publish(subject, msgspec.json.encode(fields), reply=inbox)
                while True:
                    message = await subscription.next_msg(timeout=REPLY_TIMEOUT_S)
                    # Replies that were in transit during a reconnect are missing in the middle of the page.
                    if client.stats["reconnects"] != reconnects:
                        raise NoServerReply("the connection was lost in the middle of a page")
                    yield message.headers or {}, message.data or b"", (message.subject, message.reply)
            finally:
                with suppress(nats_errors.Error, OSError):
                    await subscription.unsubscribe()
        except (TimeoutError, nats_errors.Error, OSError) as error:
            raise NoServerReply(_describe_error(error)) from error


async def _close_client(client: Client) -> None:
    with suppress(TimeoutError, nats_errors.Error, OSError):
        await asyncio.wait_for(client.close(), CLOSE_TIMEOUT_S)


def _publish_timeout(outgoing: list[OutgoingMessage]) -> float:
    return REPLY_TIMEOUT_S + sum([len(message[1]) for message in outgoing]) / MIN_BYTES_PER_S


def _require_nkeys() -> None:
    from importlib.util import find_spec

    if find_spec("nkeys") is None:
        raise MissingExtra("a store in NATS with creds= needs nkeys: pip install 'nats-py[nkeys]'")


def _describe_error(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _is_final(error: BaseException) -> bool:
    """Whether connecting again cannot help."""
    return isinstance(error, nats_errors.AuthorizationError) or "authorization" in str(error).lower()
