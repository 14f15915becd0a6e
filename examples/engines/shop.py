"""The work of every example here: an order is booked, and two files count deliveries and bookings.

The step does not know the engine that calls it, and finds its store by ONCEMORE_STORE. `deliver` stands for
a task: it records the call, books the order, and, at the first call for an order, fails at the worst moment:
the work is done, and the engine does not know it yet.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

import oncemore


@oncemore.step(effect="transactional")
def book(order: str) -> str:
    """Insert the order into the shop's own database, in one transaction with the marker of the step."""
    ledger = oncemore.current().transaction(sqlite3.connect(_home() / "ledger.db", timeout=30))
    ledger.execute("INSERT INTO orders VALUES (?)", (order,))
    if order == "A-3" and oncemore.current().number == 1 and "kills" in os.environ["SHOP_MEETS"]:
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the work
    return f"{order} is booked"


def deliver(order: str) -> str:
    """Do the work of a task: record the call, book the order, fail at the chosen moment."""
    first = order not in delivered()
    with open(_home() / "deliveries", "a", encoding="utf-8") as file:  # noqa: PTH123 - O_APPEND, one line
        file.write(f"{order}\n")
    receipt = book(order)
    if first and order == "A-2":
        if "kills" in os.environ["SHOP_MEETS"]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError("the work is done, and its engine does not know it")
    return receipt


def open_shop(meets: str) -> None:
    """Create a shop in a folder (the first argument, or a new one), for this process and its children.

    meets  the fault: "errors", or "kills" where the engine survives the death of a worker
    """
    home = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).absolute()
    os.environ.update(SHOP=str(home), SHOP_MEETS=meets, ONCEMORE_STORE=str(home / "log.db"))
    with sqlite3.connect(home / "ledger.db") as ledger:
        ledger.execute("CREATE TABLE orders(number TEXT)")
    (home / "deliveries").touch()


def delivered() -> list[str]:
    """Return the order of each call of a task."""
    return (_home() / "deliveries").read_text(encoding="utf-8").split()


def booked() -> list[str]:
    """Return the orders in the ledger."""
    with sqlite3.connect(_home() / "ledger.db", timeout=30) as ledger:
        return [row[0] for row in ledger.execute("SELECT number FROM orders ORDER BY number")]


def report() -> None:
    """Print how often each order was delivered and booked."""
    calls, rows = delivered(), booked()
    for order in sorted({*calls, *rows}):
        print(f"{order}: delivered {calls.count(order)}, booked {rows.count(order)}", flush=True)


def _home() -> Path:
    return Path(os.environ["SHOP"])
