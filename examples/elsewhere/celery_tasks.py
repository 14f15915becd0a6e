"""The Celery side of docs/how-to/from-celery-retries.md: tasks that retry, in a program without a broker.

    python examples/elsewhere/celery_tasks.py        (needs celery)

`task_always_eager` runs a task where it is called, and its retries at once; a worker would wait for them.
"""

from __future__ import annotations

import json

from celery import Celery

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.task_always_eager = True
CALLS: dict[str, list[str]] = {"fetch": [], "charge": []}


class Busy(Exception):
    """The service is busy; it may pass."""


@app.task(autoretry_for=(Busy,), max_retries=3, retry_backoff=True, retry_backoff_max=60, retry_jitter=True)
def fetch_page(url: str) -> str:
    """Fetch a page; the service is busy twice."""
    CALLS["fetch"].append(url)
    if len(CALLS["fetch"]) < 3:
        raise Busy(url)
    return f"page of {url}"


@app.task(bind=True, max_retries=3, acks_late=True)
def charge_card(self, order: str) -> str:
    """Charge a card; each delivery of the message is another charge, unless the service knows the key."""
    CALLS["charge"].append(order)
    try:
        return send_charge(order, idempotency_key=order, number=self.request.retries)
    except Busy as error:
        raise self.retry(exc=error, countdown=2**self.request.retries) from error


def send_charge(order: str, idempotency_key: str, number: int) -> str:
    """Stand for the request; it fails once."""
    if number == 0:
        raise Busy(idempotency_key)
    return f"receipt of {order}"


def main() -> None:
    """Run both tasks twice and print the results and the numbers of calls."""
    results = [
        fetch_page.delay("a").get(),
        charge_card.delay("o-1").get(),
        charge_card.delay("o-1").get(),
    ]
    print(json.dumps({"results": results, "calls": {name: len(calls) for name, calls in CALLS.items()}}))


if __name__ == "__main__":
    main()
