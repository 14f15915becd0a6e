"""Test helpers for relays: steps that emit events, consumers that drop repeats, and relays that crash.

What a crash leaves is what the store and the consumer hold at that moment, and a process that is gone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore import outbox
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.messaging.delivery import deliver_due_events
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain
from tests.crash.harness import SharedStore, run_with_delivery_driver

if TYPE_CHECKING:
    from oncemore.outbox import EventMessage
    from tests.crash.harness import ScriptRun

#: Three attempts, after 5 and 7 seconds.
POLICY = Policy(
    "test", max_attempts=3, schedule=Schedule("fixed", delays=(5.0, 7.0)), jitter=Jitter("none"),
    unmatched="retry",
)  # fmt: skip


class Consumer:
    """A consumer that drops repeated ids, and fails as configured by topic and attempt."""

    def __init__(self, fails: dict[tuple[str, int], Exception] | None = None) -> None:
        self.fails = fails or {}
        self.got: list[EventMessage] = []
        self.effects: list[EventMessage] = []

    def __call__(self, message: EventMessage) -> None:
        self.got.append(message)
        error = self.fails.get((message.topic, message.attempt)) or self.fails.get((message.topic, 0))
        if error is not None:
            raise error.with_traceback(None)  # it is raised often, and would remember every time
        if message.id not in {one.id for one in self.effects}:
            self.effects.append(message)

    @property
    def payloads(self) -> list[Any]:
        return [message.payload for message in self.effects]

    def sends(self) -> Counter[str]:
        return Counter(message.id for message in self.got)

    def check_order(self) -> None:
        """Check that the first deliveries of each lane were in order."""
        last: dict[str, int] = {}
        for message in self.effects:
            assert message.sequence > last.get(message.lane, -1), self.effects
            last[message.lane] = message.sequence


@oncemore.step(effect="outbox", name="give")
def give(name: str, topics: list[str]) -> str:
    """Emit one event per topic."""
    for n, topic in enumerate(topics):
        oncemore.current().emit(topic, f"{name}{n}")
    return name


def events(engine: Engine) -> dict[str, EventRecord]:
    """Return all events of a store by topic and ordinal."""
    found = [
        decode_head(head.head, EventRecord)
        for head in engine.store.list_heads(HeadQuery("event", limit=100_000))
    ]
    return {event.event_id: event for event in found}


def states(engine: Engine) -> Counter[str]:
    return Counter(event.state for event in events(engine).values())


class OutboxSimulation:
    """One store, one consumer, and any number of simulated processes.

    `runs` are the names and topics of runs that have emitted events; `fails` has the errors of the consumer.
    """

    def __init__(self, *runs: tuple[str, list[str]], fails: dict[Any, Exception] | None = None) -> None:
        self.now = 1_000.0
        self.store = SharedStore(lambda: self.now)
        self.consumer = Consumer(fails)
        self._engines: list[Engine] = []
        home = self.engine()
        for name, topics in runs:
            give.bind(home)(name, topics)

    def engine(self) -> Engine:
        """Return the engine of a new simulated process."""
        made = Engine(lambda: self.store, "memory:")
        self._engines.append(made)
        return made

    def relay(self, engine: Engine | None = None, sink: Any = None) -> outbox.OutboxRelay:
        return outbox.OutboxRelay(engine or self.engine(), {"*": sink or self.consumer}, policy=POLICY)

    def start_pass(self, relay: outbox.OutboxRelay | None = None) -> ScriptRun:
        """Return one pass of a relay, to be performed operation by operation."""
        relay = relay or self.relay()
        courier = relay._make_driver(None)
        return run_with_delivery_driver(courier.engine, courier, deliver_due_events(relay._options))

    def finish(self) -> None:
        """Deliver the remaining events with new processes while the clock advances."""
        engine = self.engine()
        for _ in range(8):
            self.relay(engine).run_once()
            self.now += 100.0
            if not states(engine).keys() - {"DELIVERED", "DEAD"}:
                break

    def check(self, engine: Engine | None = None) -> None:
        """Check the log: hash links, legal transitions, and attempts that were counted before they began."""
        verify_chain(self.store.read_entries())
        sends = self.consumer.sends()
        for event in events(engine or self._engines[0]).values():
            assert event.attempt <= POLICY.max_attempts
            assert sends[event.event_id] <= event.attempt
            numbers = [one.attempt for one in self.consumer.got if one.id == event.event_id]
            assert len(set(numbers)) == len(numbers), "an attempt's number was used twice"
        self.consumer.check_order()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
