"""Test helpers for relays: steps that emit events, consumers that drop repeats, relays that crash.

`drive` runs a relay's pass operation by operation and can crash it before or after any of them: what a crash
leaves is what the store and the consumer hold at that moment, and a process that is provably gone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore import outbox
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.messaging import driver as couriers
from oncemore.messaging.delivery import deliver_due_events
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from oncemore.outbox import EventMessage

#: Three attempts, after 5 and 7 seconds.
POLICY = Policy(
    "test", max_attempts=3, schedule=Schedule("fixed", delays=(5.0, 7.0)), jitter=Jitter("none"),
    unmatched="retry",
)  # fmt: skip


class Crash(BaseException):
    """A simulated crash of the process."""


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


class Shared(MemoryStore):
    """A store that stays open when one of its engines is closed."""

    def close(self) -> None:
        """Do nothing."""


class World:
    """One store, one consumer, and any number of simulated processes."""

    def __init__(self, *turns: tuple[str, list[str]], fails: dict[Any, Exception] | None = None) -> None:
        self.now = 1_000.0
        self.store = Shared(lambda: self.now)
        self.consumer = Consumer(fails)
        self._engines: list[Engine] = []
        home = self.engine()
        for name, topics in turns:
            give.bind(home)(name, topics)

    def engine(self) -> Engine:
        """Return the engine of a new simulated process."""
        made = Engine(lambda: self.store, "memory:")
        self._engines.append(made)
        return made

    def relay(self, engine: Engine | None = None, sink: Any = None) -> outbox.OutboxRelay:
        return outbox.OutboxRelay(engine or self.engine(), {"*": sink or self.consumer}, policy=POLICY)

    def script(self, relay: outbox.OutboxRelay) -> Any:
        return Pass(self, relay)

    def die(self, engine: Engine) -> None:
        """Make a process detectably dead, with its work in progress."""
        for me in engine.leases.workers.values():
            me._presence.close()
        if engine.leases.heartbeat is not None:
            engine.leases.heartbeat.stop_heartbeat()

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


class Pass:
    """One pass of a relay, operation by operation."""

    def __init__(self, world: World, relay: outbox.OutboxRelay) -> None:
        self.world, self._relay = world, relay
        self.courier = relay._make_driver(None)
        self._script = deliver_due_events(relay._options)
        self.op: Any = next(self._script)
        self.count = 0
        self.tally: Any = None

    def step(self, crash: str = "") -> None:
        """Perform the next operation, or crash before or after it."""
        self.count += 1
        assert self.count < 2_000, "the pass does not end"
        if crash == "before":
            self._die()
        kind = type(self.op)
        answer = (couriers._IMMEDIATE.get(kind) or couriers._BLOCKING[kind])(self.courier, self.op)
        if crash == "after":
            self._die()
        try:
            self.op = self._script.send(answer)
        except StopIteration as end:
            self.op, self.tally = None, end.value

    def run(self, crash_at: tuple[int, str] | None = None, most: int = 10_000) -> int:
        """Run to the end, to the crash, or for a number of operations; return the number performed."""
        begun = self.count
        while self.op is not None and self.count - begun < most:
            at = self.count + 1
            self.step(crash_at[1] if crash_at is not None and crash_at[0] == at else "")
        return self.count

    def _die(self) -> None:
        self.world.die(self.courier.engine)
        raise Crash
