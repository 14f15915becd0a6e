"""The outbox: sends the events that durable steps emit with `current().emit()`.

from oncemore.outbox import JsonLinesSink, OutboxRelay, WebhookSink

routes = {"orders.*": WebhookSink("https://example.org/hook"), "*": JsonLinesSink("rest.jsonl")}
with OutboxRelay(engine, routes):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify, ensure_plugins_loaded
from oncemore.messaging import relay
from oncemore.messaging.delivery import DeliveryStats
from oncemore.messaging.kafka import KafkaSink
from oncemore.messaging.message import SCHEMA, EventMessage
from oncemore.messaging.queue_sinks import JetStreamSink, SqsSink
from oncemore.messaging.rabbitmq import RabbitMqSink
from oncemore.messaging.relay import DEFAULT_MAX_BYTES, POLICY, DeadLetter
from oncemore.messaging.sink_urls import resolve_sink
from oncemore.messaging.sinks import CommandSink, JsonLinesSink, WebhookSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine

__all__ = [
    "POLICY",
    "SCHEMA",
    "CommandSink",
    "DeadLetter",
    "DeliveryStats",
    "EventMessage",
    "JetStreamSink",
    "JsonLinesSink",
    "KafkaSink",
    "OutboxRelay",
    "RabbitMqSink",
    "SqsSink",
    "WebhookSink",
]


class OutboxRelay(relay.RelayCore):
    """Sends the events of an engine's store, at least once, each under a stable id, in order per run key.

    routes     sinks by topic, or by a pattern with `*`; an exact topic wins, then the first matching pattern;
               a sink is a function of one `EventMessage`, or an address:
               https://… (a webhook), file:path (JSON lines), nats://host:4222 (JetStream), sqs:https://…,
               amqp://host:5672 (RabbitMQ), kafka://host:9092
    policy     decides on retries, and has the time limit of a sink
    batch      the number of events that are listed at once
    max_bytes  the size limit of a payload; an event with a larger one becomes a dead letter
    poll_s     the interval of looking for due events
    """

    def __init__(
        self,
        engine: Engine,
        routes: Mapping[str, Callable[[EventMessage], Any] | str],
        *,
        policy: Policy = POLICY,
        batch: int = 256,
        max_bytes: int = DEFAULT_MAX_BYTES,
        poll_s: float = 1.0,
    ) -> None:
        ensure_plugins_loaded()
        sinks = {
            topic: resolve_sink(sink, f"the sink of {topic!r}") if isinstance(sink, str) else sink
            for topic, sink in routes.items()
        }
        # The relay built these from addresses, so it closes them.
        self._own_sinks = [sinks[topic] for topic, sink in routes.items() if isinstance(sink, str)]
        super().__init__(
            engine, sinks, classify=classify, describe=error_to_record, policy=policy, batch=batch,
            max_bytes=max_bytes, poll_s=poll_s,
        )  # fmt: skip

    def close(self) -> None:
        """Stop after the current event, join the thread, and close the sinks that were given as addresses."""
        super().close()
        for sink in self._own_sinks:
            if hasattr(sink, "close"):
                sink.close()
