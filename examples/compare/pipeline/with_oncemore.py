"""Make the report of a day in five steps; a run that was killed goes on where it ended (oncemore)."""

import os
import sys

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@oncemore.step(effect="pure", on=httpx.TransportError)
def fetch_orders(day: str) -> list[dict]:
    print("fetch")
    return SERVICE.get(f"/orders/{day}").raise_for_status().json()


@oncemore.step(effect="pure")
def drop_cancelled(orders: list[dict]) -> list[dict]:
    print("drop")
    return [order for order in orders if order["amount"] > 0]


@oncemore.step(effect="pure")
def add_up(orders: list[dict]) -> dict[str, int]:
    print("add")
    customers = sorted({order["customer"] for order in orders})
    return {name: sum(o["amount"] for o in orders if o["customer"] == name) for name in customers}


@oncemore.step(effect="pure")
def write_report(totals: dict[str, int]) -> str:
    print("write")
    return ", ".join(f"{name} {total}" for name, total in totals.items())


@oncemore.step(effect="idempotent", on=httpx.TransportError)
def publish(day: str, report: str) -> str:
    print("publish")
    headers = {"Idempotency-Key": f"report-{day}"}
    return SERVICE.post("/reports", json={"text": report}, headers=headers).raise_for_status().json()["id"]


def report_day(day: str) -> str:
    orders = drop_cancelled(fetch_orders(day))
    return publish(day, write_report(add_up(orders)))


print(report_day(sys.argv[1]))
