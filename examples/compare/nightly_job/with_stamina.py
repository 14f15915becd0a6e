"""Send a report every morning at six, once over all processes that run this program (stamina).

stamina has no schedule: croniter computes the ticks, and a table of our own has the process of each. A tick whose
process is killed meanwhile is lost.
"""

import os
import sqlite3
import time
from datetime import datetime
from zoneinfo import ZoneInfo

import httpx
import stamina
from croniter import croniter

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
DATABASE = sqlite3.connect("ticks.db", timeout=30)
DATABASE.execute("CREATE TABLE IF NOT EXISTS ticks (tick TEXT PRIMARY KEY)")


def claim_tick(tick: str) -> bool:
    with DATABASE:
        return DATABASE.execute("INSERT OR IGNORE INTO ticks VALUES (?)", (tick,)).rowcount == 1


@stamina.retry(on=httpx.TransportError, attempts=3)
def send_report(tick: str) -> None:
    SERVICE.post("/reports", json={"tick": tick}, headers={"Idempotency-Key": tick}).raise_for_status()


start = datetime.now(ZoneInfo("Europe/Berlin"))
for tick in croniter(os.environ.get("SCHEDULE", "0 6 * * *"), start, ret_type=datetime):
    time.sleep(max(0.0, tick.timestamp() - time.time()))
    if claim_tick(tick.isoformat()):
        send_report(tick.isoformat())
