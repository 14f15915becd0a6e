"""Orders as Ray tasks: two workers are killed, Ray runs their tasks again, each order is booked once.

    python examples/engines/in_ray.py

`max_retries` is the number of repeats of a task whose worker died. `step.map(items, executor=ray)` does not
need it: the job sends lost items again and counts them.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import shop


@ray.remote(max_retries=2)
def deliver(order: str) -> str:
    """Process one order."""
    return shop.deliver(order)


def main() -> None:
    """Deliver three orders, one of them twice; then the same and another three as a job."""
    shop.open_shop(meets="kills")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="critical")
    try:
        for order in ("A-1", "A-1", "A-2", "A-3"):
            ray.get(deliver.remote(order), timeout=90)
        job = shop.book.map(["A-1", "A-2", "B-1", "B-2", "B-3"], executor=ray)
        print(job.outcome, job.counts["done"])
    finally:
        ray.shutdown()
    shop.report()


if __name__ == "__main__":
    main()
