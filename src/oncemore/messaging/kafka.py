"""The sink that publishes events to a topic of Kafka.

The producer is idempotent: librdkafka repeats a request without storing the message twice, in order, as long
as the producer lives. An event that is sent again by a later attempt is another message with the same
`Oncemore-Id`, so consumers must drop repeats by it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.messaging.message import make_encoder
from oncemore.messaging.queue_sinks import import_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.messaging.message import EventMessage

DELIVERY_TIMEOUT_S = 10.0
#: How long to wait for the report of a delivery beyond its own time limit.
REPORT_GRACE_S = 5.0
MAX_TOPIC_LENGTH = 249
HINT = "Kafka needs confluent-kafka: pip install 'oncemore[kafka]'"


def check_servers(servers: str) -> str:
    """Return a list of Kafka servers, host:port separated by commas; raise `UsageError` if it is not one."""
    text = servers.removeprefix("kafka://").rstrip("/") if isinstance(servers, str) else ""
    if not text or any(char in text for char in "/@? ") or not all(text.split(",")):
        raise UsageError(
            "servers takes host:9092, or several separated by commas; put credentials into options"
        )
    return text


class KafkaSink:
    """Produces each event to a topic of Kafka; delivered means acknowledged by all replicas in sync.

    servers  host:9092, or several separated by commas
    topic    the topic; `{topic}` in it is replaced by the event's topic
    form     "message", "cloudevents" or "cloudevents-binary"; `source` is the sender's URI
    timeout  seconds to wait for the acknowledgement
    options  further settings of librdkafka: security.protocol, sasl.username, …

    Events of one key have the same message key, so that they are in one partition, in order. The sink
    connects at the first event and stays connected until `close()`.
    """

    def __init__(
        self,
        servers: str,
        *,
        topic: str = "{topic}",
        form: str = "message",
        source: str = "/oncemore",
        timeout: float = DELIVERY_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = check_servers(servers)
        if isinstance(timeout, bool) or not 0.1 <= timeout <= 600:
            raise UsageError(f"timeout is {timeout!r}; it takes 0.1 to 600 s")
        self._encode_message = make_encoder(form, source)
        self._topic, self._timeout = topic, timeout
        self._settings = {
            "bootstrap.servers": self._servers,
            "enable.idempotence": True,
            "delivery.timeout.ms": round(timeout * 1000),
            # Below it, as librdkafka demands; a lost request is repeated within the time limit.
            "request.timeout.ms": min(5000, round(timeout * 500)),
            "linger.ms": 0,
            **(options or {}),
        }
        self._lock = threading.Lock()
        self._producer: Any = None

    def __repr__(self) -> str:
        return f"<oncemore.KafkaSink {self._servers}/{self._topic}>"

    def __call__(self, message: EventMessage) -> None:
        """Produce an event; raise `KafkaException` if the servers did not acknowledge it."""
        kafka = import_library("confluent_kafka", HINT)
        fields, body = self._encode_message(message)
        # The binding of CloudEvents to Kafka has an underscore where that to HTTP has a hyphen.
        headers = {name.replace("ce-", "ce_", 1).lower(): value for name, value in fields.items()}
        headers |= {"oncemore-id": message.id, "oncemore-attempt": str(message.attempt)}
        if message.correlation_id.isprintable():
            headers["correlation-id"] = message.correlation_id
        reports: list[Any] = []
        # One event at a time: the next one must not overtake an event that has failed.
        with self._lock:
            if self._producer is None:
                self._producer = kafka.Producer(self._settings)
            producer = self._producer
            producer.produce(
                _topic_name(self._topic.replace("{topic}", message.topic)), body, message.lane,
                headers=list(headers.items()), on_delivery=lambda error, _message: reports.append(error),
            )  # fmt: skip
            deadline = time.monotonic() + self._timeout + REPORT_GRACE_S
            while not reports and time.monotonic() < deadline:
                producer.poll(0.1)
            if not reports or (reports[0] is not None and reports[0].fatal()):
                # A producer with a fatal error sends nothing any more.
                self._producer = None
        if not reports:
            raise TimeoutError(f"Kafka did not report the delivery within {self._timeout:g} s")
        if reports[0] is not None:
            raise kafka.KafkaException(reports[0])

    def close(self) -> None:
        """Close the connection; the next event opens a new one."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.flush(REPORT_GRACE_S)


def _topic_name(topic: str) -> str:
    """Return a name that Kafka accepts, with underscores for other characters."""
    name = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in topic)
    return name[:MAX_TOPIC_LENGTH] or "_"
