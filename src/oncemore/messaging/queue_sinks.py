"""Where messages go: queues that drop repeats by themselves, JetStream and SQS.

Both get the message's id as the one that they drop repeats by, and the message's JSON as its body, the same
bytes in every attempt. What a queue remembers is a matter of minutes: consumers drop repeats by id as well.
The id follows one way from the run's key, and the key itself never leaves (IDEM-15).
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
from oncemore.log.nats.servers import forever, quiet, servers_of, shown
from oncemore.messaging.cloudevents import form_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from oncemore.messaging.message import Message

#: How long an answer may take, and how long connecting.
ANSWER_S, CONNECT_S = 5.0, 5.0
#: What may stand in a subject, besides letters and digits.
_IN_SUBJECTS = frozenset("._-:/$")


class JetStream:
    """Publishes each message to a subject of a stream; delivered means that the stream has it.

    url      nats://host:4222; `tls://`, `ws://`, `wss://`; the servers of a cluster with commas between
    subject  where to: a text in which `{topic}` stands for the message's topic
    stream   the stream that must have it; unless given, whichever has the subject
    form     "message", "cloudevents" or "cloudevents-binary"; `source` is who sends
    timeout  seconds for the stream's answer
    options  for `nats.connect`: credentials, TLS, …

    A connection is made with the first message, and kept. `close()` lets go of it.
    """

    def __init__(
        self,
        url: str,
        *,
        subject: str = "{topic}",
        stream: str | None = None,
        form: str = "message",
        source: str = "/oncemore",
        timeout: float = ANSWER_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = servers_of(url)
        if isinstance(timeout, bool) or not 0 < timeout <= 600:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to 600 s")
        self._write = form_of(form, source)
        self._subject, self._stream, self._timeout = subject, stream, timeout
        self._options = {"connect_timeout": CONNECT_S, "max_reconnect_attempts": -1, **(options or {})}
        self._options.setdefault("reconnect_time_wait", 0.25)
        self._shown = f"{shown(self._servers)}/{subject}"
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None

    def __repr__(self) -> str:
        return f"<oncemore.JetStream {self._shown}>"

    def __call__(self, message: Message) -> None:
        """Publish a message; raise what nats-py raises where the stream did not say that it has it."""
        subject = self._subject.replace("{topic}", _in_subject(message.topic))
        fields, body = self._write(message)
        headers = {
            **fields, "Nats-Msg-Id": message.id, "Oncemore-Id": message.id,
            "Oncemore-Attempt": str(message.attempt),
        }  # fmt: skip
        if message.correlation_id.isprintable():  # the body has it in any case
            headers["Correlation-Id"] = message.correlation_id
        self._await(self._publish(subject, body, headers))

    def close(self) -> None:
        """Let go of the connection; the next message makes a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._leave(), loop).result(CONNECT_S)
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(CONNECT_S)

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        if self._client is None or self._client.is_closed:
            nats = _library("nats", "JetStream needs nats-py: pip install 'oncemore[nats]'")
            made = nats.connect(self._servers, error_cb=quiet, **self._options)
            self._client = await asyncio.wait_for(made, CONNECT_S)  # or it would never give up
        streams = self._client.jetstream(timeout=self._timeout)
        told = await streams.publish(subject, body, headers=headers, stream=self._stream)
        if told.duplicate:
            await self._check_there(streams, told, headers["Nats-Msg-Id"])

    async def _check_there(self, streams: Any, told: Any, own: str) -> None:
        """Look whether a repeat is really one: a server that lost its log may still remember the id."""
        from nats.js.errors import NotFoundError

        try:
            found = await streams.get_msg(told.stream, told.seq)
        except NotFoundError:
            return  # it was there, and somebody has had it
        if (found.headers or {}).get("Nats-Msg-Id") != own:
            raise TransientError(f"stream {told.stream} calls {own} a repeat, and has another in its place")

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work on the sink's own event loop, so that relays in threads can have it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=forever, args=(self._loop,), name="oncemore-jetstream", daemon=True
                )
                self._thread.start()
            loop = self._loop
        asyncio.run_coroutine_threadsafe(work, loop).result(self._timeout + 2 * CONNECT_S)


class Sqs:
    """Sends each message to an SQS queue; delivered means that the queue has it.

    queue_url  of a queue; in a FIFO one (`….fifo`) messages of one key keep their order
    client     a client of boto3; unless given, one for the region in the URL
    """

    def __init__(self, queue_url: str, *, client: Any = None) -> None:
        parts = urlsplit(queue_url)
        if parts.scheme not in ("http", "https") or not parts.path.strip("/"):
            raise UsageError("queue_url takes the URL of a queue, https://sqs.REGION.amazonaws.com/ID/NAME")
        self._url, self._client, self._lock = queue_url, client, threading.Lock()
        self._fifo = parts.path.endswith(".fifo")

    def __repr__(self) -> str:
        return f"<oncemore.Sqs {hide_credentials(self._url)}>"

    def __call__(self, message: Message) -> None:
        """Send a message."""
        with self._lock:
            self._client = self._client or client_of(self._url)
        told = {
            "Oncemore-Id": message.id, "Oncemore-Attempt": str(message.attempt),
            # SQS refuses control characters; the body has it in any case.
            "Correlation-Id": message.correlation_id if message.correlation_id.isprintable() else "",
        }  # fmt: skip
        fifo = {"MessageGroupId": message.lane, "MessageDeduplicationId": message.id} if self._fifo else {}
        self._client.send_message(
            QueueUrl=self._url,
            MessageBody=message.json().decode(),
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in told.items() if value
            },
            **fifo,
        )


def client_of(queue_url: str) -> Any:
    """Return a client of boto3 for a queue, of the region that its address names."""
    boto3 = _library("boto3", "SQS needs boto3: pip install 'oncemore[aws]'")
    host = (urlsplit(queue_url).hostname or "").split(".")
    region = host[1] if host[0] == "sqs" and len(host) > 2 else None
    return boto3.client("sqs", region_name=region)


def _library(name: str, hint: str) -> Any:
    try:
        return import_module(name)
    except ImportError as missing:
        raise MissingExtra(hint) from missing


def _in_subject(topic: str) -> str:
    """Return a topic as a part of a subject: what has a meaning there is an underscore."""
    return (
        "".join(sign if sign.isalnum() or sign in _IN_SUBJECTS else "_" for sign in topic).strip(".") or "_"
    )
