"""A process that is killed: it places orders in two databases until there are none left, or dies on the way.

    python -m tests.steps.transactions.victim FOLDER SERVER FIRST LAST [POINT]

Each order is three steps: through sqlite3, through psycopg, and in the transaction of the store itself.
POINT names a line at which it kills itself: `function`, `finish`, `inside`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import psycopg

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps import transactions

folder, server, first, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
point = sys.argv[5] if len(sys.argv) > 5 else ""


def here(name: str) -> None:
    """Die, if this is the line."""
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)


finish = transactions.AppliedMark.commit_applied


def finished(self: Any, kept: str) -> Any:
    here("function")  # the function has returned, nothing is committed
    yield from finish(self, kept)
    here("finish")  # the user's rows and the mark are committed, our log has not heard of it


transactions.AppliedMark.commit_applied = finished  # type: ignore[method-assign]


#: So many attempts that no order is held for killing its workers: whoever is killed here is innocent.
OFTEN = Policy("victim", max_attempts=90, schedule=Schedule("fixed", delays=(0.05,)), jitter=Jitter("full"))


def ordered(connection: Any, n: int, hole: str) -> None:
    attempt = oncemore.current()
    connection.execute(f"INSERT INTO orders VALUES ({hole}, {hole})", (n, attempt.number))  # noqa: S608
    attempt.emit("ordered", {"n": n})


@oncemore.step(effect="transactional", name="file", policy=OFTEN)
def in_file(n: int) -> int:
    connection = sqlite3.connect(folder / "mine.db", timeout=30)
    ordered(oncemore.current().transaction(connection), n, "?")
    return n


@oncemore.step(effect="transactional", name="server", policy=OFTEN)
def in_server(n: int) -> int:
    ordered(oncemore.current().transaction(psycopg.connect(server)), n, "%s")
    return n


@oncemore.step(effect="transactional", name="beside", policy=OFTEN)
def beside(n: int) -> int:
    attempt = oncemore.current()
    attempt.emit("ordered", {"n": n})
    number = attempt.number

    def write(tx: Any) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS orders(n INTEGER, attempt INTEGER)")
        tx.execute("INSERT INTO orders VALUES (?, ?)", (n, number))
        here("inside")

    attempt.on_commit(write)
    return n


if __name__ == "__main__":
    with oncemore.open(folder / "log.db"):
        for n in range(first, last):
            for step in (in_file, in_server, beside):
                step(n)
