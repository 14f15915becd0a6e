"""Make the report of a day in five steps; a run that was killed goes on where it ended (DBOS)."""

import os
import sys

import httpx
from dbos import DBOS, SetWorkflowID

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def is_lost(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError)


@DBOS.step(retries_allowed=True, should_retry=is_lost)
def fetch_orders(day: str) -> list[dict]:
    print("fetch")
    return SERVICE.get(f"/orders/{day}").raise_for_status().json()


@DBOS.step()
def drop_cancelled(orders: list[dict]) -> list[dict]:
    print("drop")
    return [order for order in orders if order["amount"] > 0]


@DBOS.step()
def add_up(orders: list[dict]) -> dict[str, int]:
    print("add")
    customers = sorted({order["customer"] for order in orders})
    return {name: sum(o["amount"] for o in orders if o["customer"] == name) for name in customers}


@DBOS.step()
def write_report(totals: dict[str, int]) -> str:
    print("write")
    return ", ".join(f"{name} {total}" for name, total in totals.items())


@DBOS.step(retries_allowed=True, should_retry=is_lost)
def publish(day: str, report: str) -> str:
    print("publish")
    headers = {"Idempotency-Key": f"report-{day}"}
    return SERVICE.post("/reports", json={"text": report}, headers=headers).raise_for_status().json()["id"]


@DBOS.workflow()
def report_day(day: str) -> str:
    orders = drop_cancelled(fetch_orders(day))
    return publish(day, write_report(add_up(orders)))


DBOS(config={"name": "report", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
with SetWorkflowID(f"report-{sys.argv[1]}"):
    print(report_day(sys.argv[1]))
DBOS.destroy()
