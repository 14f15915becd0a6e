"""The program that is killed: every order is charged, booked, filed and announced.

It is an ordinary program: nothing in it prepares for the kills. `oncemore demo` copies it into a folder as
`pipeline.py` and runs it there, beside its input `plan.json`. Run it again at the end, and nothing is done
again.

    charge   HTTP: the provider remembers the key of a request, and charges once per key
    book     a table: the row and its marker are one transaction
    file     a file, stored under the digest of its bytes
    notify   a message that exists if and only if its step is done; the relay posts it to a webhook
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
from oncemore.outbox import POLICY as DELIVERY_POLICY
from oncemore.outbox import OutboxRelay, WebhookSink

PLAN = json.loads(Path("plan.json").read_text(encoding="utf-8"))
PACE, CARELESS = PLAN["pace"], PLAN["careless"]
POLICY = "demo.yaml"
FAST_DELIVERY = DELIVERY_POLICY.replace(schedule=oncemore.backoff.exponential(0.5 * PACE), max_delay_s=5.0)
# No proxy, even if the environment names one: the server is on this machine.
_opener = build_opener(ProxyHandler({}))


def post_json(path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    """Post JSON and return the decoded reply."""
    data = json.dumps(body).encode()
    request = Request(PLAN["url"] + path, data, {"Content-Type": "application/json", **headers})  # noqa: S310
    with _opener.open(request, timeout=PLAN["timeout_s"]) as reply:
        return json.loads(reply.read())


def record_start(step: str, order: str) -> None:
    """Record that the code of a step runs, for the final count."""
    # One write of one line: O_APPEND keeps it whole even if the process is killed.
    file = os.open("tried.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, json.dumps({"step": step, "order": order}).encode() + b"\n")
    os.close(file)


class ShopDatabase(sqlite3.Connection):
    """The shop's database; it announces a commit, which is a bad moment to be killed."""

    booked = ""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement."""
        cursor = super().execute(sql, *values)
        if sql == "COMMIT" and self.booked:
            post_json("/kill-point", {"order": self.booked}, {})
        return cursor


@oncemore.step(effect="idempotent", name="charge", partition=PLAN["seed"], policy=POLICY)
def charge(order: str, cents: int) -> str:
    """Charge an order. The careless variant claims to be idempotent and does not send its key."""
    key = {} if CARELESS else {"Idempotency-Key": oncemore.current().key}
    record_start("charge", order)
    return str(post_json("/charges", {"order": order, "cents": cents}, key)["receipt"])


def book(order: str, cents: int, receipt: str) -> None:
    """Write a row. The careless variant commits it by itself."""
    database = sqlite3.connect("shop.db", isolation_level=None, timeout=10, factory=ShopDatabase)
    if CARELESS:
        database.execute("BEGIN IMMEDIATE")
    else:
        oncemore.current().transaction(database)
    record_start("book", order)
    database.booked = order
    database.execute("INSERT INTO sales VALUES (?, ?, ?)", (order, cents, receipt))
    # Slow enough for a person to see the step run.
    time.sleep(0.3 * PACE)
    if CARELESS:
        database.execute("COMMIT")


book = oncemore.step(
    effect="idempotent" if CARELESS else "transactional", name="book", partition=PLAN["seed"], policy=POLICY
)(book)


@oncemore.step(effect="pure", name="file", partition=PLAN["seed"], policy=POLICY)
def file(order: str, cents: int, receipt: str) -> oncemore.Artifact:
    """Store a receipt as a file."""
    record_start("file", order)
    time.sleep(0.3 * PACE)
    text = f"receipt for {order}\n{cents} cents\n{receipt}\n"
    artifact: oncemore.Artifact = oncemore.current().put(
        text.encode(), name=f"{order}.txt", media_type="text/plain"
    )
    return artifact


@oncemore.step(effect="outbox", name="notify", partition=PLAN["seed"], policy=POLICY)
def notify(order: str, receipt: str) -> None:
    """Publish that an order is done."""
    record_start("notify", order)
    oncemore.current().emit("order.done", {"order": order, "receipt": receipt})


def process_order(order: str, cents: int) -> None:
    """Run the four steps of an order; finished steps return their stored results."""
    try:
        receipt = charge(order, cents)
    except oncemore.StepFailed:  # refused by the provider, or out of attempts; the log has the reason
        return
    book(order, cents, receipt)
    file(order, cents, receipt)
    notify(order, receipt)


def main() -> int:
    """Process four orders at a time, deliver their messages, and print the relay's counts."""
    with sqlite3.connect("shop.db", timeout=10) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS sales(sale TEXT, cents INTEGER, receipt TEXT)")
    database.close()
    with oncemore.open("log.db") as engine, ThreadPoolExecutor(4) as pool:
        relay = OutboxRelay(
            engine, {"*": WebhookSink(PLAN["url"] + "/messages", timeout=5)}, policy=FAST_DELIVERY, poll_s=0.2
        )
        with relay:
            # In a copy of this context, because the threads of a pool do not inherit the entered engine.
            jobs = [pool.submit(copy_context().run, process_order, *each) for each in PLAN["orders"]]
            for job in jobs:
                job.result()
        ends = time.monotonic() + 30
        while (left := relay.run_once()).waiting + left.failed and time.monotonic() < ends:
            time.sleep(0.1)
        print(left)
    return 0


def exit_with_parent() -> None:
    """Exit when standard input ends, which means that the demo is gone."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    if "demo" in sys.argv:
        Thread(target=exit_with_parent, daemon=True).start()
    sys.exit(main())
