"""Orders as Dask tasks: two workers are killed, Dask runs their tasks again, each order is booked once.

    python examples/engines/in_dask.py

A task calls a step like any function. With `step.map(items, executor=client)` Dask runs the attempts, while
`map` counts, waits and limits the concurrency.
"""

from __future__ import annotations

import logging

import shop
from distributed import Client, LocalCluster


def main() -> None:
    """Deliver three orders, one of them twice; then the same and another three as a job."""
    shop.open_shop(meets="kills")
    silent = logging.CRITICAL + 1
    with (
        LocalCluster(
            2, processes=True, threads_per_worker=1, dashboard_address=None, silence_logs=silent
        ) as all_,
        Client(all_) as client,
    ):
        for order in ("A-1", "A-1", "A-2", "A-3"):
            client.submit(shop.deliver, order, pure=False).result(timeout=90)
        job = shop.book.map(["A-1", "A-2", "B-1", "B-2", "B-3"], executor=client)
        print(job.outcome, job.counts["done"])
    shop.report()


if __name__ == "__main__":
    main()
