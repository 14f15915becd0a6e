"""Send a report every hour, once over all processes that run this program (oncemore)."""

import os
from datetime import datetime

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
EVERY_S = float(os.environ.get("EVERY_S", "3600"))


@oncemore.schedule(every=EVERY_S)
@oncemore.step(effect="idempotent", on=httpx.TransportError)
def send_report(tick: datetime) -> None:
    headers = {"Idempotency-Key": oncemore.current().key}
    SERVICE.post("/reports", json={"tick": tick.isoformat()}, headers=headers).raise_for_status()


oncemore.Worker(oncemore.open("log.db"), [send_report]).run()
