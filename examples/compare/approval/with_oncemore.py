"""Ship an order when a person has approved it, within three days; a restart changes nothing (oncemore).

with_oncemore.py ORDER                       wait for the approval, then ship
with_oncemore.py approve ORDER PERSON        approve it, from another process
"""

import os
import sys
from datetime import timedelta

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@oncemore.step(effect="idempotent", on=httpx.TransportError)
def ship(order: str, person: str) -> str:
    headers, body = {"Idempotency-Key": order}, {"order": order, "approved_by": person}
    return SERVICE.post("/shipments", json=body, headers=headers).raise_for_status().json()["id"]


@oncemore.workflow
def ship_when_approved(order: str) -> str:
    return ship(order, oncemore.wait_for("approved", timeout=timedelta(days=3)))


with oncemore.open("log.db") as engine:
    if sys.argv[1] == "approve":
        ship_when_approved.submit(sys.argv[2]).signal("approved", sys.argv[3])
    else:
        run = ship_when_approved.submit(sys.argv[1])
        print("waiting")
        with oncemore.Worker(engine, [ship_when_approved]):
            print(run.wait().value)
