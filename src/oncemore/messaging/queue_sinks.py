"""Sinks for queues that deduplicate: JetStream and SQS.

Both get the event's id as deduplication id and its JSON as body, the same bytes in every attempt. A queue
remembers ids for minutes only, so consumers must drop repeats by id as well. The id is a one-way digest: the
run's key itself is never sent (IDEM-15).
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncemore._redact import hide_credentials
from oncemore.errors import MissingExtra, TransientError, UsageError
from oncemore.log.nats.servers import hide_credentials as show_servers
from oncemore.log.nats.servers import ignore_error, parse_servers, run_loop_forever
from oncemore.messaging.message import make_encoder

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from oncemore.messaging.message import EventMessage

#: The time limits of a publish acknowledgement and of connecting.
REPLY_TIMEOUT_S, CONNECT_TIMEOUT_S = 5.0, 5.0
#: The characters of a topic that a subject may contain, besides letters and digits.
_SUBJECT_CHARACTERS = frozenset("._-:/$")


class JetStreamSink:
    """Publishes each event to a JetStream subject; delivered means acknowledged by the stream.

    url      nats://host:4222; `tls://`, `ws://`, `wss://`; the servers of a cluster separated by commas
    subject  the subject; `{topic}` in it is replaced by the event's topic
    stream   the stream that must store it; by default any stream that has the subject
    form     "message", "cloudevents" or "cloudevents-binary"; `source` is the sender's URI
    timeout  seconds to wait for the acknowledgement
    options  for `nats.connect`: credentials, TLS, …

    The sink connects at the first event and stays connected until `close()`.
    """

    def __init__(
        self,
        url: str,
        *,
        subject: str = "{topic}",
        stream: str | None = None,
        form: str = "message",
        source: str = "/oncemore",
        timeout: float = REPLY_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = parse_servers(url)
        if isinstance(timeout, bool) or not 0 < timeout <= 600:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to 600 s")
        self._encode_message = make_encoder(form, source)
        self._subject, self._stream, self._timeout = subject, stream, timeout
        self._options = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "max_reconnect_attempts": -1,
            **(options or {}),
        }
        self._options.setdefault("reconnect_time_wait", 0.25)
        self._display_url = f"{show_servers(self._servers)}/{subject}"
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None

    def __repr__(self) -> str:
        return f"<oncemore.JetStreamSink {self._display_url}>"

    def __call__(self, message: EventMessage) -> None:
        """Publish an event; raise the error of nats-py if the stream did not acknowledge it."""
        subject = self._subject.replace("{topic}", _subject_token(message.topic))
        fields, body = self._encode_message(message)
        headers = {
            **fields, "Nats-Msg-Id": message.id, "Oncemore-Id": message.id,
            "Oncemore-Attempt": str(message.attempt),
        }  # fmt: skip
        # A control character would break the header; the body has the id in any case.
        if message.correlation_id.isprintable():
            headers["Correlation-Id"] = message.correlation_id
        self._run_in_loop(self._publish_message(subject, body, headers))

    def close(self) -> None:
        """Close the connection; the next event opens a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._close_client(), loop).result(CONNECT_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(CONNECT_TIMEOUT_S)

    async def _publish_message(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        if self._client is None or self._client.is_closed:
            nats = import_library("nats", "JetStream needs nats-py: pip install 'oncemore[nats]'")
            connecting = nats.connect(self._servers, error_cb=ignore_error, **self._options)
            # With unlimited reconnects the first connection would be retried for ever, too.
            self._client = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
        streams = self._client.jetstream(timeout=self._timeout)
        publish_ack = await streams.publish(subject, body, headers=headers, stream=self._stream)
        if publish_ack.duplicate:
            await self._check_duplicate(streams, publish_ack, headers["Nats-Msg-Id"])

    async def _check_duplicate(self, streams: Any, publish_ack: Any, message_id: str) -> None:
        """Raise `TransientError` if the stream does not contain an event that it calls a duplicate."""
        # A server that lost the end of its log in a crash may still remember the id.
        from nats.js.errors import NotFoundError

        try:
            stored = await streams.get_msg(publish_ack.stream, publish_ack.seq)
        except NotFoundError:
            return  # stored before, and already consumed from a work queue
        if (stored.headers or {}).get("Nats-Msg-Id") != message_id:
            raise TransientError(
                f"stream {publish_ack.stream} calls {message_id} a duplicate, but has another message at "
                f"sequence {publish_ack.seq}"
            )

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _run_in_loop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the sink's own event loop, because relays call the sink in threads."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=run_loop_forever, args=(self._loop,), name="oncemore-jetstream", daemon=True
                )
                self._thread.start()
            loop = self._loop
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(self._timeout + 2 * CONNECT_TIMEOUT_S)


class SqsSink:
    """Sends each event to an SQS queue; delivered means accepted by the queue.

    queue_url  the URL of the queue; in a FIFO queue (`….fifo`) events of one key keep their order
    client     a boto3 client; by default one for the region in the URL
    """

    def __init__(self, queue_url: str, *, client: Any = None) -> None:
        parts = urlsplit(queue_url)
        if parts.scheme not in ("http", "https") or not parts.path.strip("/"):
            raise UsageError("queue_url takes the URL of a queue, https://sqs.REGION.amazonaws.com/ID/NAME")
        self._url, self._client, self._lock = queue_url, client, threading.Lock()
        self._fifo = parts.path.endswith(".fifo")

    def __repr__(self) -> str:
        return f"<oncemore.SqsSink {hide_credentials(self._url)}>"

    def __call__(self, message: EventMessage) -> None:
        """Send an event."""
        with self._lock:
            self._client = self._client or make_sqs_client(self._url)
        attributes = {
            "Oncemore-Id": message.id, "Oncemore-Attempt": str(message.attempt),
            # SQS refuses control characters; the body has the id in any case.
            "Correlation-Id": message.correlation_id if message.correlation_id.isprintable() else "",
        }  # fmt: skip
        fifo = {"MessageGroupId": message.lane, "MessageDeduplicationId": message.id} if self._fifo else {}
        self._client.send_message(
            QueueUrl=self._url,
            MessageBody=message.to_json().decode(),
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value}
                for name, value in attributes.items()
                if value
            },
            **fifo,
        )


def make_sqs_client(queue_url: str) -> Any:
    """Return a boto3 client for the region in a queue's URL."""
    boto3 = import_library("boto3", "SQS needs boto3: pip install 'oncemore[aws]'")
    # Other hosts, such as a local emulator, do not name a region.
    host = (urlsplit(queue_url).hostname or "").split(".")
    region = host[1] if host[0] == "sqs" and len(host) > 2 else None
    return boto3.client("sqs", region_name=region)


def import_library(name: str, hint: str) -> Any:
    """Return an optional module; raise `MissingExtra` with the hint if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(hint) from error


def _subject_token(topic: str) -> str:
    """Return a topic as a part of a subject, with underscores for spaces and wildcards."""
    token = "".join(char if char.isalnum() or char in _SUBJECT_CHARACTERS else "_" for char in topic)
    # A subject must not begin or end with a dot, nor be empty.
    return token.strip(".") or "_"
