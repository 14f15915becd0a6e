"""Orders as tasks of a Prefect flow: one is retried, the flow runs twice, each order is booked once.

    python examples/engines/in_prefect.py

Prefect's own cache returns the result of a task that Prefect knows to be done; the step returns it where
Prefect does not know, and in a flow that is started again.
"""

from __future__ import annotations

import os

os.environ.update(
    PREFECT_LOGGING_LEVEL="CRITICAL",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="100",  # a separate process that starts slowly
)

import shop
from prefect import flow, task
from prefect.cache_policies import NO_CACHE


@task(retries=2, retry_delay_seconds=0, cache_policy=NO_CACHE)
def deliver(order: str) -> str:
    """Process one order."""
    return shop.deliver(order)


@flow
def orders() -> list[str]:
    """Deliver three orders."""
    return [deliver(order) for order in ("A-1", "A-2", "A-3")]


def main() -> None:
    """Run the flow twice."""
    shop.open_shop(meets="errors")
    print(orders())
    orders()
    shop.report()


if __name__ == "__main__":
    main()
