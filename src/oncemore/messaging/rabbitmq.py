"""The connection to RabbitMQ, and the sink that publishes events there.

pika's blocking connection belongs to one thread, and only that thread can answer the server's heartbeats.
`RabbitConnection` therefore has a thread of its own, which runs until the connection ends; other threads and
event loops submit work to it. A connection that has ended is not repaired: its owner opens a new one.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncemore._redact import hide_credentials
from oncemore.errors import UsageError
from oncemore.messaging.message import make_encoder
from oncemore.messaging.queue_sinks import import_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.messaging.message import EventMessage

#: The time limits of connecting and of a confirmation.
CONNECT_TIMEOUT_S, CONFIRM_TIMEOUT_S = 10.0, 10.0
#: How often the thread looks whether it is to end; heartbeats and work wake it earlier.
POLL_S = 1.0
#: The longest routing key; AMQP has one byte for its length.
MAX_ROUTING_KEY_BYTES = 255
_HINT = "RabbitMQ needs pika: pip install 'oncemore[rabbitmq]'"
_SCHEMES = ("amqp", "amqps")


def check_amqp_url(url: str) -> str:
    """Return an AMQP URL; raise `UsageError` if it is not one."""
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise UsageError("url takes amqp://user:password@host:5672/vhost, or amqps:// for TLS")
    return url


def make_parameters(url: str, options: Mapping[str, Any]) -> Any:
    """Return the connection parameters of pika; `options` are further attributes of them."""
    parameters = import_library("pika", _HINT).URLParameters(url)
    # So that an unreachable server is an error soon; the relay and the inbox try again by themselves.
    parameters.socket_timeout = parameters.stack_timeout = CONNECT_TIMEOUT_S
    parameters.blocked_connection_timeout = CONFIRM_TIMEOUT_S
    for name, value in options.items():
        setattr(parameters, name, value)
    return parameters


class RabbitConnection:
    """A connection with one channel, in a thread of its own.

    open_channel  called in that thread with the new connection; returns the channel
    channel       the channel; to be used in submitted work only
    """

    def __init__(self, parameters: Any, open_channel: Callable[[Any], Any]) -> None:
        self._parameters, self._open_channel = parameters, open_channel
        self._connection: Any = None
        self.channel: Any = None
        self._opened: Future[None] = Future()
        self._pending: set[Future[Any]] = {self._opened}
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._end_error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="oncemore-rabbitmq", daemon=True)
        self._thread.start()

    @property
    def opened(self) -> Future[None]:
        """Done when the channel is open; has the error if it could not be opened."""
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether work can be submitted."""
        return self._end_error is None and self._opened.done() and not self._closing.is_set()

    def submit(self, work: Callable[[Any], Any]) -> Future[Any]:
        """Run a function of the channel in the thread of the connection; return its future."""
        future: Future[Any] = Future()
        with self._lock:
            if self._end_error is not None:
                raise ConnectionResetError("the connection to RabbitMQ has ended") from self._end_error
            self._pending.add(future)
        self._connection.add_callback_threadsafe(lambda: self._run_work(work, future))
        return future

    def close(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Close the connection; the server delivers unacknowledged messages again."""
        self._closing.set()
        with suppress(Exception):
            self._connection.add_callback_threadsafe(lambda: None)
        self._thread.join(timeout_s)

    def _run_work(self, work: Callable[[Any], Any], future: Future[Any]) -> None:
        try:
            result = work(self.channel)
        except Exception as error:  # noqa: BLE001 - it belongs to the submitter
            self._settle(future, error=error)
        else:
            self._settle(future, result)

    def _settle(self, future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            is_pending = future in self._pending
            self._pending.discard(future)
        # A caller that stopped waiting may have cancelled it.
        if is_pending and future.set_running_or_notify_cancel():
            future.set_result(result) if error is None else future.set_exception(error)

    def _serve(self) -> None:
        """Open the connection and process its events until it ends."""
        error: BaseException = ConnectionResetError("the connection to RabbitMQ was closed")
        try:
            connection = import_library("pika", _HINT).BlockingConnection(self._parameters)
            try:
                self.channel = self._open_channel(connection)
                self._connection = connection
                self._settle(self._opened)
                # For a missing exchange the server closes the channel and leaves the connection open.
                while not self._closing.is_set() and self.channel.is_open:
                    connection.process_data_events(POLL_S)
            finally:
                with suppress(Exception):
                    connection.close()
        except Exception as caught:  # noqa: BLE001 - handed to everybody who waits
            error = caught
        with self._lock:
            self._end_error = error
            pending = list(self._pending)
        for future in pending:
            self._settle(future, error=error)


class RabbitMqSink:
    """Publishes each event to an exchange of RabbitMQ; delivered means confirmed by the server.

    url          amqp://user:password@host:5672/vhost; amqps:// for TLS
    exchange     the exchange; the default one has a route to each queue under the queue's name
    routing_key  the routing key; `{topic}` in it is replaced by the event's topic
    form         "message", "cloudevents" or "cloudevents-binary"; `source` is the sender's URI
    timeout      seconds to wait for the confirmation
    options      further attributes of pika's connection parameters: ssl_options, credentials, heartbeat, …

    Messages are persistent, and an event without a route to a queue is an error. The event's id is the
    `message_id`: RabbitMQ does not drop repeats by it, so consumers must. The sink connects at the first
    event and stays connected until `close()`.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        routing_key: str = "{topic}",
        form: str = "message",
        source: str = "/oncemore",
        timeout: float = CONFIRM_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = check_amqp_url(url)
        if isinstance(timeout, bool) or not 0 < timeout <= 600:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to 600 s")
        self._encode_message = make_encoder(form, source)
        self._exchange, self._routing_key, self._timeout = exchange, routing_key, timeout
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._connection: RabbitConnection | None = None

    def __repr__(self) -> str:
        return f"<oncemore.RabbitMqSink {hide_credentials(self._url)} {self._exchange}/{self._routing_key}>"

    def __call__(self, message: EventMessage) -> None:
        """Publish an event; raise the error of pika if the server did not confirm it."""
        routing_key = self._routing_key.replace("{topic}", message.topic)
        fields, body = self._encode_message(message)
        headers = {name: value for name, value in fields.items() if name != "Content-Type"}
        headers.update({"Oncemore-Id": message.id, "Oncemore-Attempt": str(message.attempt)})
        pika = import_library("pika", _HINT)
        properties = pika.BasicProperties(
            content_type=fields["Content-Type"],
            # Persistent: stored on disk before it is confirmed, in a durable queue.
            delivery_mode=2,
            message_id=message.id,
            type=message.topic[:MAX_ROUTING_KEY_BYTES] if message.topic.isascii() else None,
            timestamp=int(message.created),
            # AMQP has one byte for the length; the body has the id in any case.
            correlation_id=message.correlation_id if len(message.correlation_id.encode()) < 256 else None,
            headers=headers,
        )
        connection = self._connect()
        try:
            connection.submit(
                lambda channel: channel.basic_publish(
                    self._exchange, routing_key, body, properties, mandatory=True
                )
            ).result(self._timeout)
        except TimeoutError:
            # A late confirmation must not be taken for that of the next event.
            connection.close(0.0)
            raise TimeoutError(f"RabbitMQ did not confirm the event within {self._timeout:g} s") from None

    def close(self) -> None:
        """Close the connection; the next event opens a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> RabbitConnection:
        """Return the open connection, or a new one if there is none."""
        with self._lock:
            if self._connection is None or not self._connection.is_open:
                self._connection = RabbitConnection(
                    make_parameters(self._url, self._options), _open_confirming_channel
                )
            connection = self._connection
        connection.opened.result(2 * CONNECT_TIMEOUT_S)
        return connection


def _open_confirming_channel(connection: Any) -> Any:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel
