"""Send a report every hour, once over all processes that run this program (stamina).

stamina has no schedule: a loop computes the ticks, and a table of our own has those that a process took.
A tick whose process is killed meanwhile is lost.
"""

import os
import sqlite3
import time

import httpx
import stamina

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
EVERY_S = float(os.environ.get("EVERY_S", "3600"))
DATABASE = sqlite3.connect("ticks.db", timeout=30)
DATABASE.execute("CREATE TABLE IF NOT EXISTS ticks (tick REAL PRIMARY KEY)")


def claim_tick(tick: float) -> bool:
    with DATABASE:
        return DATABASE.execute("INSERT OR IGNORE INTO ticks VALUES (?)", (tick,)).rowcount == 1


@stamina.retry(on=httpx.TransportError, attempts=3)
def send_report(tick: float) -> None:
    SERVICE.post("/reports", json={"tick": tick}, headers={"Idempotency-Key": str(tick)}).raise_for_status()


while True:
    tick = (time.time() // EVERY_S + 1) * EVERY_S
    time.sleep(max(0.0, tick - time.time()))
    if claim_tick(tick):
        send_report(tick)
