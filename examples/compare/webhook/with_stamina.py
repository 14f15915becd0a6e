"""Receive webhooks; one that is delivered again gets the same response and books nothing (stamina).

stamina keeps nothing: a table of our own has the response of each delivery.
"""

import asyncio
import os
import sqlite3

import httpx
import stamina
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def open_database() -> sqlite3.Connection:
    database = sqlite3.connect("deliveries.db", timeout=30)
    database.execute("CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY, booking TEXT)")
    return database


@stamina.retry(on=httpx.TransportError, attempts=3)
def send_booking(delivery: str, order: dict) -> str:
    headers = {"Idempotency-Key": delivery}
    return SERVICE.post("/bookings", json=order, headers=headers).raise_for_status().json()["id"]


def book(delivery: str, order: dict) -> str:
    database = open_database()
    row = database.execute("SELECT booking FROM deliveries WHERE id = ?", (delivery,)).fetchone()
    if row is not None:
        return row[0]
    booking = send_booking(delivery, order)
    with database:
        database.execute("INSERT OR IGNORE INTO deliveries VALUES (?, ?)", (delivery, booking))
    return booking


async def receive(request: Request) -> JSONResponse:
    delivery, order = request.headers["Delivery-Id"], await request.json()
    return JSONResponse({"booking": await asyncio.to_thread(book, delivery, order)})


app = Starlette(routes=[Route("/hooks", receive, methods=["POST"])])
uvicorn.run(app, port=int(os.environ.get("PORT", "8001")), log_level="warning")
