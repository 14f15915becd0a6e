"""Ship an order when a person has approved it, within three days; a restart changes nothing (tenacity).

    with_tenacity.py ORDER                       wait for the approval, then ship
    with_tenacity.py approve ORDER PERSON        approve it, from another process

tenacity keeps nothing: a table of our own has the approvals, and the process polls it.
"""

import os
import sqlite3
import sys

import httpx
import tenacity

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
DATABASE = sqlite3.connect("approvals.db", timeout=30)
DATABASE.execute('CREATE TABLE IF NOT EXISTS approvals ("order" TEXT PRIMARY KEY, person TEXT)')


@tenacity.retry(
    retry=tenacity.retry_if_result(lambda person: person is None),
    stop=tenacity.stop_after_delay(3 * 86_400),
    wait=tenacity.wait_fixed(0.2),
)
def wait_for_approval(order: str) -> str | None:
    row = DATABASE.execute('SELECT person FROM approvals WHERE "order" = ?', (order,)).fetchone()
    return row and row[0]


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
    reraise=True,
)
def ship(order: str, person: str) -> str:
    headers, body = {"Idempotency-Key": order}, {"order": order, "approved_by": person}
    return SERVICE.post("/shipments", json=body, headers=headers).raise_for_status().json()["id"]


def ship_when_approved(order: str) -> str:
    return ship(order, wait_for_approval(order))


if sys.argv[1] == "approve":
    with DATABASE:
        DATABASE.execute("INSERT OR IGNORE INTO approvals VALUES (?, ?)", sys.argv[2:4])
else:
    print("waiting")
    print(ship_when_approved(sys.argv[1]))
