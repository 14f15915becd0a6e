"""A shop with one product: a checkout waits for its payment, and a dispatch takes its time (oncemore)."""

import os

import sqlalchemy as sa
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncemore

DISPATCH_S = float(os.environ.get("DISPATCH_S", "1"))
SHOP = sa.create_engine("sqlite:///shop.db")


def execute(statement: str, **values: object) -> sa.CursorResult:
    return oncemore.current().transaction(SHOP.connect()).execute(sa.text(statement), values)


def open_shop() -> None:
    with SHOP.begin() as shop:
        shop.execute(sa.text("CREATE TABLE IF NOT EXISTS stock (left_over INTEGER)"))
        shop.execute(
            sa.text("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, state, progress)")
        )
        shop.execute(sa.text("INSERT INTO stock SELECT 2 WHERE NOT EXISTS (SELECT * FROM stock)"))


@oncemore.step(effect="transactional")
def create_order(checkout: str) -> int:
    return execute("INSERT INTO orders (state, progress) VALUES ('pending', 0)").lastrowid


@oncemore.step(effect="transactional")
def reserve_item(order: int) -> bool:
    return execute("UPDATE stock SET left_over = left_over - 1 WHERE left_over > 0").rowcount == 1


@oncemore.step(effect="transactional")
def return_item(order: int) -> None:
    execute("UPDATE stock SET left_over = left_over + 1")


@oncemore.step(effect="transactional")
def set_order_state(order: int, state: str) -> None:
    execute("UPDATE orders SET state = :state WHERE number = :order", state=state, order=order)


@oncemore.step(effect="transactional")
def set_progress(order: int, progress: int) -> None:
    execute("UPDATE orders SET progress = :done WHERE number = :order", done=progress, order=order)


@oncemore.workflow
def dispatch(order: int) -> None:
    for number in range(10):
        oncemore.sleep(DISPATCH_S)
        set_progress(order, number + 1)
    set_order_state(order, "dispatched")


@oncemore.workflow
def check_out(checkout: str) -> None:
    order = create_order(checkout)
    if not reserve_item(order):
        set_order_state(order, "cancelled")
        oncemore.set_value("payment_id", None)
        return
    oncemore.set_value("payment_id", checkout)
    if oncemore.wait_for("payment_status", timeout=120, default=None) == "paid":
        set_order_state(order, "paid")
        dispatch.submit(order)
    else:
        return_item(order)
        set_order_state(order, "cancelled")
    oncemore.set_value("order", order)


def handle_checkout(request: Request) -> JSONResponse:
    run = check_out.submit(request.path_params["checkout"])
    payment_id = run.get_value("payment_id", timeout=60)
    return JSONResponse({"payment_id": payment_id}, 409 if payment_id is None else 200)


def handle_payment(request: Request) -> JSONResponse:
    run = check_out.last_run(request.path_params["payment_id"])
    run.signal("payment_status", request.path_params["status"], signal_id="payment")
    return JSONResponse({"order": run.get_value("order", timeout=60)})


open_shop()
routes = [
    Route("/checkout/{checkout}", handle_checkout, methods=["POST"]),
    Route("/payments/{payment_id}/{status}", handle_payment, methods=["POST"]),
]
with oncemore.open("log.db") as engine, oncemore.Worker(engine, [check_out, dispatch]):
    uvicorn.run(Starlette(routes=routes), port=int(os.environ.get("PORT", "8001")), log_level="warning")
