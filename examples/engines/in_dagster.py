"""Orders as ops of a Dagster job: Dagster retries one, the whole job runs twice, each is booked once.

python examples/engines/in_dagster.py
"""

from __future__ import annotations

import logging
import os
import tempfile

import shop
from dagster import DagsterInstance, DynamicOut, DynamicOutput, RetryPolicy, job, op


@op(out=DynamicOut())
def received():
    """Yield the orders."""
    for order in ("A-1", "A-2", "A-3"):
        yield DynamicOutput(order, mapping_key=order.replace("-", "_"))


@op(retry_policy=RetryPolicy(max_retries=2))
def deliver(order: str) -> str:
    """Process one order."""
    return shop.deliver(order)


@job
def orders():
    """Deliver each order."""
    received().map(deliver)


def main() -> None:
    """Run the job twice."""
    shop.open_shop(meets="errors")
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as home, DagsterInstance.local_temp(home) as instance:
        for _ in range(2):
            print(orders.execute_in_process(instance=instance).success)
    shop.report()


if __name__ == "__main__":
    main()
