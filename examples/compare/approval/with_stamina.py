"""Ship an order when a person has approved it, within three days; a restart changes nothing (stamina).

    with_stamina.py ORDER                       wait for the approval, then ship
    with_stamina.py approve ORDER PERSON        approve it, from another process

stamina keeps nothing: a table of our own has the approvals, and the process polls it.
"""

import os
import sqlite3
import sys

import httpx
import stamina

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
DATABASE = sqlite3.connect("approvals.db", timeout=30)
DATABASE.execute('CREATE TABLE IF NOT EXISTS approvals ("order" TEXT PRIMARY KEY, person TEXT)')


class NotApproved(Exception):
    pass


@stamina.retry(
    on=NotApproved, attempts=None, timeout=3 * 86_400, wait_initial=0.2, wait_exp_base=1, wait_jitter=0
)
def wait_for_approval(order: str) -> str:
    row = DATABASE.execute('SELECT person FROM approvals WHERE "order" = ?', (order,)).fetchone()
    if row is None:
        raise NotApproved
    return row[0]


@stamina.retry(on=httpx.TransportError, attempts=3)
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
