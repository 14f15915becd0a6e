"""OUTBOX: delivering the events that durable steps give away with `current().emit()`.

    from oncemore.outbox import Command, JsonLines, Relay, Webhook

    relay = Relay(engine, {"orders.*": Webhook("https://example.org/hook"), "*": JsonLines("rest.jsonl")})
    with relay:
        ...

How it works is told in `messaging.delivery`; here a relay is given what only the rooms above the engine know:
what an error means, and what may be kept of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.audit.neutral import neutral
from oncemore.classifiers.classify import classify, ready
from oncemore.messaging import relay
from oncemore.messaging.command_sink import Command
from oncemore.messaging.delivery import Tally
from oncemore.messaging.message import SCHEMA, Message
from oncemore.messaging.queue_sinks import JetStream, Sqs
from oncemore.messaging.relay import MOST_BYTES, POLICY, DeadLetter
from oncemore.messaging.sink_urls import sink_at
from oncemore.messaging.sinks import JsonLines, Webhook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine

__all__ = [
    "POLICY",
    "SCHEMA",
    "Command",
    "DeadLetter",
    "JetStream",
    "JsonLines",
    "Message",
    "Relay",
    "Sqs",
    "Tally",
    "Webhook",
]


class Relay(relay.Relay):
    """Delivers the events of an engine's store, at least once, each under one id, in order per run's key.

    routes     which sink a topic has: a name, or a pattern with `*`; a name comes first, then the first
               pattern that fits; a sink is a function of one `Message`, or where it leads as a text:
               https://… (a webhook), file:path (JSON lines), nats://host:4222 (JetStream), sqs:https://…
    policy     how often and when a message is sent again, and how long a sink may take
    batch      how many events are looked at together
    max_bytes  the largest payload that is sent; a larger one is a dead letter
    poll_s     how often to look for what has become due, where nothing else happens
    """

    def __init__(
        self,
        engine: Engine,
        routes: Mapping[str, Callable[[Message], Any] | str],
        *,
        policy: Policy = POLICY,
        batch: int = 256,
        max_bytes: int = MOST_BYTES,
        poll_s: float = 1.0,
    ) -> None:
        ready()
        sinks = {
            topic: sink_at(sink, f"the sink of {topic!r}") if isinstance(sink, str) else sink
            for topic, sink in routes.items()
        }
        self._own = [sinks[topic] for topic, sink in routes.items() if isinstance(sink, str)]
        super().__init__(
            engine, sinks, classify=classify, describe=neutral, policy=policy, batch=batch,
            max_bytes=max_bytes, poll_s=poll_s,
        )  # fmt: skip

    def close(self) -> None:
        """Stop after the event under way, leave no thread behind, and close what was opened for addresses."""
        super().close()
        for sink in self._own:
            getattr(sink, "close", _nothing)()


def _nothing() -> None:
    """Close nothing: most sinks have nothing open."""
