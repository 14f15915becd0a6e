"""The example application of DBOS's documentation does the same here: through kills, once per checkout."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.examples.programs import PATIENCE_S, find_free_port, is_listening, wait_until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.examples.programs import Starter


class Shop:
    """The shop as its customers, its payment service and its owner see it."""

    def __init__(self, library: str, start: Starter, folder: Path) -> None:
        self._library, self._start, self._folder, self._port = library, start, folder, find_free_port()
        self.process = self.open()

    def open(self) -> subprocess.Popen[str]:
        variables = {"PORT": str(self._port), "DISPATCH_S": "0.05"}
        self.process = self._start("widget_store", self._library, **variables)
        wait_until(lambda: is_listening(self._port) or self.process.poll() is not None, "the shop")
        return self.process

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE_S)

    def post(self, path: str) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self._port}{path}", timeout=PATIENCE_S)

    def read(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self._folder / "shop.db", timeout=30)) as database:
            return database.execute(query).fetchall()

    def orders(self) -> list[Any]:
        return self.read("SELECT number, state, progress FROM orders ORDER BY number")


@pytest.mark.parametrize("library", ["dbos", "oncemore"])
def test_a_checkout_is_paid_and_dispatched_once_through_kills(
    library: str, start: Starter, tmp_path: Path
) -> None:
    shop = Shop(library, start, tmp_path)
    assert shop.post("/checkout/c-1").json() == {"payment_id": "c-1"}
    shop.kill()  # while the checkout waits for its payment
    shop.open()
    assert shop.post("/checkout/c-1").json() == {"payment_id": "c-1"}
    assert shop.orders() == [(1, "pending", 0)]
    assert shop.post("/payments/c-1/paid").json() == {"order": 1}
    wait_until(lambda: shop.orders()[0][2] >= 3, "the dispatch to begin")
    shop.kill()  # between two of its sleeps
    shop.open()
    wait_until(lambda: shop.orders() == [(1, "dispatched", 10)], "the dispatch to end")
    assert shop.read("SELECT left_over FROM stock") == [(1,)]

    assert shop.post("/checkout/c-2").status_code == 200
    sold_out = shop.post("/checkout/c-3")
    assert (sold_out.status_code, sold_out.json()) == (409, {"payment_id": None})
    assert shop.post("/payments/c-2/refused").json() == {"order": 2}
    wait_until(lambda: shop.read("SELECT left_over FROM stock") == [(1,)], "the item to be returned")
    assert [state for _, state, _ in shop.orders()] == ["dispatched", "cancelled", "cancelled"]
