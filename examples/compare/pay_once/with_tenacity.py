"""Pay for an order once, also if the program is killed and started again (tenacity).

tenacity keeps nothing: a table of our own has the key of the payment before it is sent, and its receipt.
"""

import os
import sqlite3
import sys
import uuid

import httpx
import tenacity

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
DATABASE = sqlite3.connect("payments.db", timeout=30)
DATABASE.execute('CREATE TABLE IF NOT EXISTS payments ("order" TEXT PRIMARY KEY, "key" TEXT, receipt TEXT)')


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
    reraise=True,
)
def send_payment(order: str, cents: int, key: str) -> str:
    headers, body = {"Idempotency-Key": key}, {"order": order, "cents": cents}
    response = SERVICE.post("/payments", json=body, headers=headers)
    return response.raise_for_status().json()["id"]


def pay(order: str, cents: int) -> str:
    with DATABASE:
        DATABASE.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, NULL)", (order, str(uuid.uuid4())))
    row = DATABASE.execute('SELECT "key", receipt FROM payments WHERE "order" = ?', (order,))
    key, receipt = row.fetchone()
    if receipt is None:
        receipt = send_payment(order, cents, key)
        with DATABASE:
            DATABASE.execute('UPDATE payments SET receipt = ? WHERE "order" = ?', (receipt, order))
    return receipt


print(pay(sys.argv[1], 1250))
