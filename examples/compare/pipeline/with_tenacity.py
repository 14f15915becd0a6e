"""Make the report of a day in five steps; a run that was killed goes on where it ended (tenacity).

tenacity keeps nothing: a table of our own has the result of each step that is done.
"""

import functools
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import httpx
import tenacity

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
DATABASE = sqlite3.connect("results.db", timeout=30)
DATABASE.execute("CREATE TABLE IF NOT EXISTS results (call TEXT PRIMARY KEY, value TEXT)")


def resumable(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call_once(*args: Any) -> Any:
        call = json.dumps([function.__name__, *args], sort_keys=True)
        row = DATABASE.execute("SELECT value FROM results WHERE call = ?", (call,)).fetchone()
        if row is not None:
            return json.loads(row[0])
        value = function(*args)
        with DATABASE:
            DATABASE.execute("INSERT INTO results VALUES (?, ?)", (call, json.dumps(value)))
        return value

    return call_once


@resumable
@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
    reraise=True,
)
def fetch_orders(day: str) -> list[dict]:
    print("fetch")
    return SERVICE.get(f"/orders/{day}").raise_for_status().json()


@resumable
def drop_cancelled(orders: list[dict]) -> list[dict]:
    print("drop")
    return [order for order in orders if order["amount"] > 0]


@resumable
def add_up(orders: list[dict]) -> dict[str, int]:
    print("add")
    customers = sorted({order["customer"] for order in orders})
    return {name: sum(o["amount"] for o in orders if o["customer"] == name) for name in customers}


@resumable
def write_report(totals: dict[str, int]) -> str:
    print("write")
    return ", ".join(f"{name} {total}" for name, total in totals.items())


@resumable
@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
    reraise=True,
)
def publish(day: str, report: str) -> str:
    print("publish")
    headers = {"Idempotency-Key": f"report-{day}"}
    return SERVICE.post("/reports", json={"text": report}, headers=headers).raise_for_status().json()["id"]


def report_day(day: str) -> str:
    orders = drop_cancelled(fetch_orders(day))
    return publish(day, write_report(add_up(orders)))


print(report_day(sys.argv[1]))
