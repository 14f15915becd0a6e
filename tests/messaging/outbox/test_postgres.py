"""Relays on a real PostgreSQL server: the same order, the same claims, leases by the server's clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.log.postgres.store import PostgresStore
from oncemore.messaging.delivery import SendEvent, deliver_due_events
from oncemore.outbox import DeliveryStats, EventMessage, OutboxRelay
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain
from tests.crash.harness import perform_delivery
from tests.messaging.outbox.simulation import POLICY, Consumer, events, give, states
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing import FakeClock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


class Unsure(PostgresStore):
    """A worker check that relies on leases only."""

    def is_worker_gone(self, worker: str) -> bool:
        """Return that the state of the process is not known."""
        return False


def test_relays_on_postgresql_deliver_everything_once_and_in_order(url: str, clock: FakeClock) -> None:
    lock, consumer = threading.Lock(), Consumer({("slow", 1): oncemore.TransientError("not yet")})

    def sink(message: EventMessage) -> None:
        with lock:
            consumer(message)

    engine = Engine(lambda: PostgresStore(url, "relay_many"), "postgresql://")
    with engine:
        for n in range(6):
            give(f"n{n}-", ["x", "slow", "y"])
        crowd = [
            threading.Thread(target=OutboxRelay(engine, {"*": sink}, policy=POLICY).run_once)
            for _ in range(3)
        ]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(60)
        clock.advance(10.0)
        OutboxRelay(engine, {"*": sink}, policy=POLICY).run_once()
        assert states(engine) == {"DELIVERED": 18}
        assert len(consumer.got) == 18 + 6
        consumer.check_order()
        verify_chain(engine.store.read_entries())


def test_events_of_a_silent_relay_are_sent_again_after_its_lease(url: str, clock: FakeClock) -> None:
    silent, other = (Engine(lambda: Unsure(url, "relay_lease"), "postgresql://") for _ in range(2))
    consumer = Consumer()
    with other:
        give("a", ["x", "y"])
        relay = OutboxRelay(silent, {"*": consumer}, policy=POLICY)
        courier, script = relay._make_driver(None), deliver_due_events(relay._options)
        op = next(script)
        while type(op) is not SendEvent:
            op = script.send(perform_delivery(courier, op))
        assert silent.leases.heartbeat is not None
        silent.leases.heartbeat.stop_heartbeat()  # it hangs, and says nothing any more
        again = OutboxRelay(other, {"*": consumer}, policy=POLICY)
        clock.advance(silent.lease_s - 10.0)
        assert again.run_once() == DeliveryStats(waiting=2)
        clock.advance(20.0)
        assert again.run_once() == DeliveryStats(delivered=2)
        assert [(message.payload, message.attempt) for message in consumer.got] == [("a0", 2), ("a1", 1)]
        script.close()
        assert {event.worker for event in events(other).values()} == {""}
    silent.close()
