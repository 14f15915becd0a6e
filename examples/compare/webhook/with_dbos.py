"""Receive webhooks; one that is delivered again gets the same response and books nothing (DBOS)."""

import os

import httpx
import uvicorn
from dbos import DBOS, SetWorkflowID
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SERVICE = httpx.AsyncClient(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def is_lost(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError)


@DBOS.step(retries_allowed=True, should_retry=is_lost)
async def send_booking(delivery: str, order: dict) -> str:
    headers = {"Idempotency-Key": delivery}
    response = await SERVICE.post("/bookings", json=order, headers=headers)
    return response.raise_for_status().json()["id"]


@DBOS.workflow()
async def book(delivery: str, order: dict) -> str:
    return await send_booking(delivery, order)


async def receive(request: Request) -> JSONResponse:
    delivery, order = request.headers["Delivery-Id"], await request.json()
    with SetWorkflowID(delivery):
        return JSONResponse({"booking": await book(delivery, order)})


DBOS(config={"name": "webhook", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
app = Starlette(routes=[Route("/hooks", receive, methods=["POST"])])
uvicorn.run(app, port=int(os.environ.get("PORT", "8001")), log_level="warning")
