"""The steps of the storm, one for each effect, and what a worker process does with them.

Every execution tells the recorder, so that it can be counted from outside. What a worker was told by the
library (a value, or how it ended) it appends to a file of acknowledgements: from then on it must be true.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from tests.storm import points
from tests.storm.recorder import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine

MOST_ATTEMPTS = 5
#: Its redeliveries raise the stored failure; a policy made in code would begin a new run.
POLICY = str(Path(__file__).with_name("storm.yaml"))
#: Where the recorder listens; told to a worker when it starts.
RECORDER = {"address": ""}


class NotSent(oncemore.TransientError):
    """Nothing has happened outside."""


def happen(effect: str, part: str = "") -> int:
    """Let the effect of this attempt happen; return its receipt."""
    attempt = oncemore.current()
    told = {
        "op": "effect",
        "effect": effect,
        "key": attempt.key + part,
        "run": attempt.key,
        "step": attempt.step,
    }
    points.here("effect:before")
    answer = ask(
        RECORDER["address"], **told, attempt=attempt.number, fence=attempt.fence, pid=os.getpid(), part=part
    )
    points.here("effect:after")
    return int(answer["receipt"])


def _stumble(fails: int, error: type[Exception] = oncemore.TransientError) -> None:
    """Fail in the first attempts; count those that crashed too, so that it comes to its end."""
    if oncemore.current().number <= fails:
        raise error("the network is having a bad day")


def _linger() -> None:
    """Work until the heartbeat comes, if that is what the worker waits for."""
    point = points.armed()
    if point is not None and point.mark == "LEASE":
        time.sleep(10)


@oncemore.step(effect="pure", policy=POLICY, name="compute")
def compute(order: str, fails: int = 0) -> dict[str, str]:
    points.here("work:begin")
    happen("pure")
    _linger()
    _stumble(fails)
    return {"order": order, "sum": hashlib.sha256(order.encode()).hexdigest()}


@oncemore.step(effect="idempotent", policy=POLICY, name="charge")
def charge(order: str, fails: int = 0) -> dict[str, Any]:
    points.here("work:begin")
    receipt = happen("idempotent")
    _linger()
    _stumble(fails)
    return {"order": order, "receipt": receipt}


@oncemore.step(effect="idempotent", policy=POLICY, name="batch")
def batch(order: str, fails: int = 0) -> dict[str, Any]:
    """Two parts with a checkpoint after each: what a checkpoint says is done is not done again."""
    points.here("work:begin")
    done = oncemore.current().resume([])
    for part in ("first", "second")[len(done) :]:
        done.append([part, happen("idempotent", f":{part}")])
        oncemore.current().checkpoint(done)
    _linger()
    _stumble(fails)
    return {"order": order, "done": done}


@oncemore.step(effect="outbox", policy=POLICY, name="announce")
def announce(order: str, fails: int = 0) -> dict[str, str]:
    points.here("work:begin")
    happen("outbox")
    for number in (1, 2):
        oncemore.current().emit("orders", {"order": order, "number": number})
    _linger()
    _stumble(fails)
    return {"order": order}


@oncemore.step(effect="once", policy=POLICY, name="pay", not_applied=NotSent)
def pay(order: str, fails: int = 0) -> dict[str, Any]:
    points.here("work:begin")
    _stumble(fails, NotSent)
    receipt = happen("once")
    _linger()
    return {"order": order, "receipt": receipt}


def _look(order: str, fails: int = 0) -> Any:
    points.here("reconcile")
    found = ask(RECORDER["address"], op="look", key=oncemore.current().key)["receipts"]
    return oncemore.applied({"order": order, "receipt": found[0]}) if found else oncemore.not_applied()


@oncemore.step(effect="once", policy=POLICY, name="wire", not_applied=NotSent, reconcile=_look)
def wire(order: str, fails: int = 0) -> dict[str, Any]:
    points.here("work:begin")
    _stumble(fails, NotSent)
    receipt = happen("once")
    _linger()
    return {"order": order, "receipt": receipt}


STEPS: dict[str, Any] = {
    "compute": compute,
    "charge": charge,
    "batch": batch,
    "announce": announce,
    "pay": pay,
    "wire": wire,
}


# What a worker process does ---------------------------------------------------------------------------


@contextmanager
def ready(
    place: dict[str, str], point: list[Any] | None = None, lease_s: float | None = None
) -> Iterator[Engine]:
    """Have an engine on the storm's store, and a moment to wait for."""
    RECORDER["address"] = place["recorder"]
    points.arm(None if point is None else points.Point(*point))
    lease_s = float(place["lease_s"]) if lease_s is None else lease_s
    with oncemore.open(place["store"], lease_s=lease_s) as engine:
        if point is not None:
            points.watch(engine.store)
        yield engine


def acknowledge(place: dict[str, str], **told: Any) -> None:
    """Write down, as one line, what this worker was told."""
    file = os.open(place["acks"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(file, json.dumps({"pid": os.getpid(), **told}).encode() + b"\n")
    os.close(file)


def do(place: dict[str, str], step: str, order: str, fails: int = 0) -> str:
    """Call a step and acknowledge how it ended; return that in a word."""
    work = STEPS[step]
    told = {"step": step, "order": order, "key": work.key(order, fails)}
    try:
        value = work(order, fails)
    except oncemore.Error as error:
        acknowledge(place, **told, error=type(error).__name__)
        return type(error).__name__
    acknowledge(place, **told, value=value)
    return "value"


def call(place: dict[str, str], step: str, order: str, **told: Any) -> None:
    """Call one step once."""
    with ready(place, told.get("point"), told.get("lease_s")) as engine:
        _together(engine, told.get("at", 0.0))
        if told.get("blind"):
            engine.store.is_worker_gone = lambda worker: False  # type: ignore[method-assign]
        do(place, step, order, told.get("fails", 0))


def callers(place: dict[str, str], step: str, order: str, threads: int, at: float) -> None:
    """Call one step from several threads at once."""
    with ready(place) as engine:
        work = STEPS[step].bind(engine)
        _together(engine, at)

        def one() -> None:
            acknowledge(place, step=step, order=order, key=work.key(order), value=work(order))

        team = [threading.Thread(target=one) for _ in range(threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()


def _together(engine: Engine, at: float) -> None:
    """Begin at the same moment as others; the store is open by then."""
    if at:
        assert engine.store
        time.sleep(max(0.0, at - time.monotonic()))


def hammer(place: dict[str, str], orders: list[list[Any]], seed: str) -> None:
    """Call the steps for orders in any order, again and again, until somebody kills this process."""
    chance = random.Random(seed)
    with ready(place) as engine:
        assert engine.store
        os.close(os.open(f"{place['acks']}-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600))
        while True:
            step, order, fails = chance.choice(orders)
            do(place, step, order, fails)


def finish(place: dict[str, str], orders: list[list[Any]]) -> None:
    """Call the step of every order once."""
    with ready(place):
        for step, order, fails in orders:
            do(place, step, order, fails)


def delayed(place: dict[str, str], order: str) -> None:
    """Fail once with a delay of 1.5 s after it, then succeed."""
    policy = Policy(
        "slow", max_attempts=3, schedule=Schedule("exponential", base=1.5, factor=2.0), jitter=Jitter("none")
    )

    @oncemore.step(effect="idempotent", policy=policy, name="delayed")
    def work(order: str) -> int:
        receipt = happen("idempotent")
        if oncemore.current().number == 1:
            raise oncemore.TransientError("not now")
        return receipt

    with ready(place):
        work(order)


def waits(place: dict[str, str], where: str) -> None:
    """Sit in one of the waits that a call can have."""
    slow = Policy(
        "slow",
        max_attempts=3,
        schedule=Schedule("exponential", base=50.0),
        jitter=Jitter("none"),
        max_delay_s=60.0,
    )

    @oncemore.step(
        effect="idempotent", policy=slow, name="waits", timeout=50.0 if where == "helper" else None
    )
    def work(where: str) -> int:
        happen("idempotent")
        if where == "retry":
            raise oncemore.TransientError("not now")
        time.sleep(50)
        return 1

    @oncemore.step(effect="idempotent", policy=slow, name="waits")
    async def awaited(where: str) -> int:
        happen("idempotent")
        if where == "async retry":
            raise oncemore.TransientError("not now")
        await asyncio.sleep(50)
        return 1

    with ready(place):
        if where.startswith("async"):
            asyncio.run(awaited(where))  # type: ignore[arg-type]
        else:
            work(where)
