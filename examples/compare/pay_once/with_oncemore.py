"""Pay for an order once, also if the program is killed and started again (oncemore)."""

import os
import sys

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@oncemore.step(effect="idempotent", on=httpx.TransportError)
def pay(order: str, cents: int) -> str:
    headers, body = {"Idempotency-Key": oncemore.current().key}, {"order": order, "cents": cents}
    response = SERVICE.post("/payments", json=body, headers=headers)
    return response.raise_for_status().json()["id"]


print(pay(sys.argv[1], 1250))
