"""Orders as Dramatiq actors: one fails after its work is done and is retried, each order is booked once.

    python examples/engines/in_dramatiq.py

Dramatiq delivers at least once and retries after exceptions; few retries, close together, are enough, since
the step has its own. The broker here is Dramatiq's in-memory one, with a real worker.
"""

from __future__ import annotations

import dramatiq
import shop
from dramatiq.brokers.stub import StubBroker

broker = StubBroker()
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=2, min_backoff=10, max_backoff=100)
def deliver(order: str) -> None:
    """Process one message."""
    shop.deliver(order)


def main() -> None:
    """Send three orders, one of them twice, and start a worker."""
    shop.open_shop(meets="errors")
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
    for order in ("A-1", "A-1", "A-2", "A-3"):
        deliver.send(order)
    worker.start()
    broker.join(deliver.queue_name, timeout=60_000, fail_fast=False)
    worker.join()
    worker.stop()
    shop.report()


if __name__ == "__main__":
    main()
