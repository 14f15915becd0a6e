"""Orders as Celery tasks: worker processes die, their messages come again, each order is booked once.

    python examples/engines/in_celery.py

With `acks_late` and `reject_on_worker_lost` Celery delivers the task of a dead process again: without them it
would be lost, with them it runs at least once, and the step applies it once. Celery itself does not retry
(`max_retries=0`): the step's policy decides about retries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import shop
from celery import Celery

if __name__ == "__main__":
    shop.open_shop(meets="kills")

QUEUE = Path(os.environ["SHOP"], "queue")
QUEUE.mkdir(exist_ok=True)
app = Celery("orders", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(QUEUE),
        "data_folder_out": str(QUEUE),
        "control_folder": str(QUEUE / "control"),
        "polling_interval": 0.1,
    },
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,  # a prefetched message waits longest when its worker dies
    worker_enable_remote_control=False,
    worker_lost_wait=1.0,
    worker_hijack_root_logger=False,
)


@app.task(name="deliver", acks_late=True, reject_on_worker_lost=True, max_retries=0, ignore_result=True)
def deliver(order: str) -> None:
    """Process one message."""
    shop.deliver(order)


def main() -> None:
    """Send three orders, one of them twice, and start a worker."""
    for order in ("A-1", "A-1", "A-2", "A-3"):
        deliver.delay(order)
    words = "-q -A in_celery worker --pool prefork -c 1 --without-gossip --without-mingle --without-heartbeat"
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", *words.split(), "--loglevel", "critical"], cwd=Path(__file__).parent
    )
    try:
        ends = time.monotonic() + 90
        while len(shop.delivered()) < 6 or set(shop.booked()) != {"A-1", "A-2", "A-3"}:
            if time.monotonic() > ends or worker.poll() is not None:
                raise SystemExit("the worker did not finish the orders")
            time.sleep(0.1)
        time.sleep(1.0)  # a further delivery would arrive now
    finally:
        worker.terminate()
        worker.wait(30)
    shop.report()


if __name__ == "__main__":
    main()
