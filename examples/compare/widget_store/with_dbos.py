"""A shop with one product: a checkout waits for its payment, and a dispatch takes its time (DBOS)."""

import os

import sqlalchemy as sa
import uvicorn
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

DISPATCH_S = float(os.environ.get("DISPATCH_S", "1"))
SHOP = SQLAlchemyDatasource.create("sqlite:///shop.db")


def execute(statement: str, **values: object) -> sa.CursorResult:
    return SHOP.sql_session().execute(sa.text(statement), values)


@SHOP.transaction
def open_shop() -> None:
    execute("CREATE TABLE IF NOT EXISTS stock (left_over INTEGER)")
    execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, state TEXT, progress INTEGER)")
    execute("INSERT INTO stock SELECT 2 WHERE NOT EXISTS (SELECT * FROM stock)")


@SHOP.transaction
def create_order() -> int:
    return execute("INSERT INTO orders (state, progress) VALUES ('pending', 0)").lastrowid


@SHOP.transaction
def reserve_item() -> bool:
    return execute("UPDATE stock SET left_over = left_over - 1 WHERE left_over > 0").rowcount == 1


@SHOP.transaction
def return_item() -> None:
    execute("UPDATE stock SET left_over = left_over + 1")


@SHOP.transaction
def set_order_state(order: int, state: str) -> None:
    execute("UPDATE orders SET state = :state WHERE number = :order", state=state, order=order)


@SHOP.transaction
def advance_dispatch(order: int) -> None:
    execute("UPDATE orders SET progress = progress + 1 WHERE number = :order", order=order)


@DBOS.workflow()
def dispatch(order: int) -> None:
    for _ in range(10):
        DBOS.sleep(DISPATCH_S)
        advance_dispatch(order)
    set_order_state(order, "dispatched")


@DBOS.workflow()
def check_out() -> None:
    order = create_order()
    if not reserve_item():
        set_order_state(order, "cancelled")
        DBOS.set_event("payment_id", None)
        return
    DBOS.set_event("payment_id", DBOS.workflow_id)
    if DBOS.recv("payment_status", timeout_seconds=120) == "paid":
        set_order_state(order, "paid")
        DBOS.start_workflow(dispatch, order)
    else:
        return_item()
        set_order_state(order, "cancelled")
    DBOS.set_event("order", order)


def handle_checkout(request: Request) -> JSONResponse:
    with SetWorkflowID(request.path_params["checkout"]):
        handle = DBOS.start_workflow(check_out)
    payment_id = DBOS.get_event(handle.workflow_id, "payment_id")
    return JSONResponse({"payment_id": payment_id}, 409 if payment_id is None else 200)


def handle_payment(request: Request) -> JSONResponse:
    payment_id, status = request.path_params["payment_id"], request.path_params["status"]
    DBOS.send(payment_id, status, "payment_status")
    return JSONResponse({"order": DBOS.get_event(payment_id, "order")})


DBOS(config={"name": "widget-store", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
open_shop()
routes = [
    Route("/checkout/{checkout}", handle_checkout, methods=["POST"]),
    Route("/payments/{payment_id}/{status}", handle_payment, methods=["POST"]),
]
uvicorn.run(Starlette(routes=routes), port=int(os.environ.get("PORT", "8001")), log_level="warning")
