"""Send a report every hour, once over all processes that run this program (DBOS)."""

import os
import threading
from datetime import datetime
from typing import Any

import httpx
from dbos import DBOS

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def is_lost(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError)


@DBOS.step(retries_allowed=True, should_retry=is_lost)
def send_report(tick: str) -> None:
    SERVICE.post("/reports", json={"tick": tick}, headers={"Idempotency-Key": tick}).raise_for_status()


@DBOS.workflow()
def report_workflow(tick: datetime, context: Any) -> None:
    send_report(tick.isoformat())


DBOS(config={"name": "hourly", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
DBOS.apply_schedules(
    [
        {
            "schedule_name": "report",
            "workflow_fn": report_workflow,
            "schedule": os.environ.get("SCHEDULE", "0 * * * *"),
        }
    ]
)
threading.Event().wait()
