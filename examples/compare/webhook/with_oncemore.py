"""Receive webhooks; one that is delivered again gets the same response and books nothing (oncemore)."""

import os

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncemore

SERVICE = httpx.AsyncClient(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@oncemore.step(effect="idempotent", key="delivery", on=httpx.TransportError)
async def book(delivery: str, order: dict) -> str:
    headers = {"Idempotency-Key": delivery}
    response = await SERVICE.post("/bookings", json=order, headers=headers)
    return response.raise_for_status().json()["id"]


async def receive(request: Request) -> JSONResponse:
    delivery, order = request.headers["Delivery-Id"], await request.json()
    return JSONResponse({"booking": await book(delivery, order)})


app = Starlette(routes=[Route("/hooks", receive, methods=["POST"])])
uvicorn.run(app, port=int(os.environ.get("PORT", "8001")), log_level="warning")
