"""Deliveries of one message, each in a process that is killed after one of its appends to the log.

`python -m tests.storm.redelivery FOLDER KIND` forks a process for every delivery. A delivery opens the log,
handles the message, and sends SIGKILL to itself right after its n-th append was stored. Two campaigns:

    one log       delivery n is killed after its n-th append, until one comes to its end
    a log each    for every n: one delivery is killed after its n-th append, the next one is not killed

Prints JSON: how many deliveries were killed, and how many copies of the effect each log has at its end.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.outbox import OutboxRelay
from oncemore.policy.policy import Policy
from oncemore.profiles.kfm.loop import retry_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore import Engine

MESSAGE = "order-17"
PATIENT = Policy("patient", max_attempts=10)
MOST = 60
HERE = {"folder": Path()}


def receiver() -> sqlite3.Connection:
    """The world outside: it applies what has one key once, as whoever takes an idempotency key does."""
    line = sqlite3.connect(HERE["folder"] / "world.db", isolation_level=None, timeout=30)
    line.execute("create table if not exists copies (key text, kind text)")
    return line


def apply_once(key: str) -> None:
    with closing(receiver()) as line:
        line.execute(
            "insert into copies select ?, 'x' where not exists (select 1 from copies where key = ?)",
            (key, key),
        )


@oncemore.step(effect="transactional", name="book", policy=PATIENT)
def book(order: str) -> str:
    line = receiver()  # it lives until the step is over
    oncemore.current().transaction(line).execute("insert into copies values (?, 'row')", (order,))
    return order


@oncemore.step(effect="idempotent", name="charge", policy=PATIENT)
def charge(order: str) -> str:
    apply_once(oncemore.current().key)
    return order


@oncemore.step(effect="outbox", name="announce", policy=PATIENT)
def announce(order: str) -> str:
    oncemore.current().emit("orders", {"order": order})
    return order


class Report:
    """A node of a pipeline; its effect is what it sends outside."""

    node_id, effect, policy = "report", "idempotent", PATIENT

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        return run.resume({"begun": True})

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        apply_once(oncemore.current().key)
        return inputs


def announce_and_deliver(engine: Engine) -> None:
    announce(MESSAGE)
    OutboxRelay(engine, {"orders": lambda message: apply_once(message.id)}).run_once()


KINDS: dict[str, Callable[[Engine], object]] = {
    "transactional": lambda engine: book(MESSAGE),
    "idempotent": lambda engine: charge(MESSAGE),
    "outbox": announce_and_deliver,
    "node": lambda engine: retry_loop(Report(), MESSAGE),
}


def deliver(kind: str, dies_after: int) -> bool:
    """Deliver the message to a new process; return whether it came to its end, or was killed."""
    child = os.fork()
    if child == 0:
        try:
            with oncemore.open(HERE["folder"] / "log.db") as engine:
                engine.store.append = dying(engine.store.append, dies_after)  # type: ignore[method-assign]
                KINDS[kind](engine)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "a delivery failed"
    return True


def dying(append: Callable[[Any], Any], dies_after: int) -> Callable[[Any], Any]:
    """Return an append that kills the process when so many were stored."""
    count = 0

    def stored(batch: Any) -> Any:
        nonlocal count
        ticket = append(batch)
        ticket.wait()
        count += 1
        if count == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return ticket

    return stored


def copies() -> int:
    with closing(receiver()) as line:
        (found,) = line.execute("select count(*) from copies").fetchone()
    return int(found)


def new_log(root: Path, name: str) -> None:
    HERE["folder"] = root / name
    HERE["folder"].mkdir()


def main(root: Path, kind: str) -> None:
    told: dict[str, Any] = {"killed": 0, "copies": []}
    new_log(root, "one")
    killed = next(n for n in range(1, MOST) if deliver(kind, n)) - 1
    told["killed"], told["copies"] = killed, [copies()]
    for n in range(1, MOST):
        new_log(root, f"each-{n}")
        if deliver(kind, n):
            break
        assert deliver(kind, 0)
        assert deliver(kind, 0), "a message that was handled is delivered once more"
        told["killed"] += 1
        told["copies"].append(copies())
    else:
        raise AssertionError("a delivery has no end")
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
