"""Pay for an order once, also if the program is killed and started again (DBOS)."""

import os
import sys

import httpx
from dbos import DBOS, SetWorkflowID

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def is_lost(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError)


@DBOS.step(retries_allowed=True, should_retry=is_lost)
def send_payment(order: str, cents: int) -> str:
    headers, body = {"Idempotency-Key": DBOS.workflow_id}, {"order": order, "cents": cents}
    response = SERVICE.post("/payments", json=body, headers=headers)
    return response.raise_for_status().json()["id"]


@DBOS.workflow()
def pay(order: str, cents: int) -> str:
    return send_payment(order, cents)


DBOS(config={"name": "payments", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
with SetWorkflowID(f"pay-{sys.argv[1]}"):
    print(pay(sys.argv[1], 1250))
DBOS.destroy()
