"""The program that is killed: every order is charged, booked, filed and told.

It is an ordinary program on an ordinary log: nothing in it knows which line is its last. `oncemore demo`
copies it into a folder and runs it there, beside `plan.json`, which says what to do. Run it again when all
is done, and nothing is done again.

    charge   HTTP: the provider keeps the key that it is given, and charges once per key
    book     a table: its row, and the mark that it is there, are one transaction
    file     a file, kept under the digest of its bytes
    tell     a message that exists if and only if its step is done; the relay posts it to a webhook
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import oncemore
from oncemore.outbox import POLICY as PATIENT
from oncemore.outbox import OutboxRelay, WebhookSink

PLAN = json.loads(Path("plan.json").read_text(encoding="utf-8"))
PACE, CARELESS = PLAN["pace"], PLAN["careless"]
POLICY = "demo.yaml"
HURRIED = PATIENT.replace(schedule=oncemore.backoff.exponential(0.5 * PACE), max_delay_s=5.0)
_direct = build_opener(ProxyHandler({}))  # whatever the environment says: it is on this machine


def post(path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    """Post JSON and return what is answered."""
    given = json.dumps(body).encode()
    request = Request(PLAN["url"] + path, given, {"Content-Type": "application/json", **headers})  # noqa: S310
    with _direct.open(request, timeout=PLAN["limit_s"]) as answer:
        return json.loads(answer.read())


def note(what: str, order: str) -> None:
    """Write down that the code of a step runs, for whoever counts: one line, whole or not at all."""
    book = os.open("tried.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(book, json.dumps({"what": what, "order": order}).encode() + b"\n")
    os.close(book)


class ShopDatabase(sqlite3.Connection):
    """The shop's database; it says when rows are on the disk, which is a bad moment to be killed."""

    booked = ""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement."""
        cursor = super().execute(sql, *values)
        if sql == "COMMIT" and self.booked:
            post("/moment", {"order": self.booked}, {})
        return cursor


@oncemore.step(effect="idempotent", name="charge", partition=PLAN["seed"], policy=POLICY)
def charge(order: str, cents: int) -> str:
    """Have an order paid. The careless variant keeps the key to itself, and says that it is idempotent."""
    key = {} if CARELESS else {"Idempotency-Key": oncemore.current().key}
    note("charge", order)
    return str(post("/charges", {"order": order, "cents": cents}, key)["receipt"])


def book(order: str, cents: int, receipt: str) -> None:
    """Write a row; the careless variant commits it by itself."""
    database = sqlite3.connect("shop.db", isolation_level=None, timeout=10, factory=ShopDatabase)
    if CARELESS:
        database.execute("BEGIN IMMEDIATE")
    else:
        oncemore.current().transaction(database)
    note("book", order)
    database.booked = order
    database.execute("INSERT INTO sales VALUES (?, ?, ?)", (order, cents, receipt))
    time.sleep(0.3 * PACE)
    if CARELESS:
        database.execute("COMMIT")


book = oncemore.step(
    effect="idempotent" if CARELESS else "transactional", name="book", partition=PLAN["seed"], policy=POLICY
)(book)


@oncemore.step(effect="pure", name="file", partition=PLAN["seed"], policy=POLICY)
def file(order: str, cents: int, receipt: str) -> oncemore.Artifact:
    """Keep a receipt as a file."""
    note("file", order)
    time.sleep(0.3 * PACE)
    text = f"receipt for {order}\n{cents} cents\n{receipt}\n"
    kept: oncemore.Artifact = oncemore.current().put(
        text.encode(), name=f"{order}.txt", media_type="text/plain"
    )
    return kept


@oncemore.step(effect="outbox", name="tell", partition=PLAN["seed"], policy=POLICY)
def tell(order: str, receipt: str) -> None:
    """Give the news away."""
    note("tell", order)
    oncemore.current().emit("order.done", {"order": order, "receipt": receipt})


def work(order: str, cents: int) -> None:
    """Bring one order to its end; what is done already is not done again."""
    try:
        receipt = charge(order, cents)
    except oncemore.StepFailed:  # the provider refused it, or did not come round; the log says which, and why
        return
    book(order, cents, receipt)
    file(order, cents, receipt)
    tell(order, receipt)


def main() -> int:
    """Work on four orders at a time, deliver what they have to tell, and say what is left."""
    with sqlite3.connect("shop.db", timeout=10) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS sales(sale TEXT, cents INTEGER, receipt TEXT)")
    database.close()
    with oncemore.open("log.db") as engine, ThreadPoolExecutor(4) as pool:
        relay = OutboxRelay(
            engine, {"*": WebhookSink(PLAN["url"] + "/told", timeout=5)}, policy=HURRIED, poll_s=0.2
        )
        with relay:
            # Each in a copy of this context: a pool's threads do not know which engine is around them.
            jobs = [pool.submit(copy_context().run, work, *each) for each in PLAN["orders"]]
            for job in jobs:
                job.result()
        ends = time.monotonic() + 30
        while (left := relay.run_once()).waiting + left.failed and time.monotonic() < ends:
            time.sleep(0.1)
        print(left)
    return 0


def leave_with_the_stage() -> None:
    """End when standard input does: whoever started this is gone, and nobody would end it."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    if "staged" in sys.argv:
        Thread(target=leave_with_the_stage, daemon=True).start()
    sys.exit(main())
