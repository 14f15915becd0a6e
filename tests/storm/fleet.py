"""A fleet: runs are submitted to a store, and worker processes are killed while they execute them.

Used by the tests of `make test` and, for longer, by `tests/torture/long_run.py`.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING, Any

import psycopg

import oncemore
from oncemore.log.store import HeadQuery
from tests.storm.points import Point
from tests.storm.work import STEPS

if TYPE_CHECKING:
    from tests.storm.crew import Child, Crew

WORKERS = 4
#: What is applied once per key whatever dies: by its key, by asking the outside, by its COMMIT.
WORK = ("charge", "wire", "announce")


def create_database(server: str, name: str) -> str:
    """Return the address of a new, empty PostgreSQL database."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)".encode())
        connection.execute(f"create database {name}".encode())
    return f"{server.rpartition('/')[0]}/{name}"


def submit_orders(crew: Crew, count: int, seed: str) -> list[list[Any]]:
    """Submit so many runs, ten of them twice; return the orders."""
    chance = random.Random(seed)
    orders: list[list[Any]] = [[chance.choice(WORK), f"{number}", 0] for number in range(count)]
    with oncemore.open(crew.place["store"]):
        keys = [STEPS[step].submit(order, fails).key for step, order, fails in orders]
        again = [STEPS[step].submit(order, fails).key for step, order, fails in orders[:10]]
    assert again == keys[:10], "submitted twice is submitted once"
    return orders


def kill_workers(crew: Crew, kills: int, chance: random.Random) -> int:
    """Have four workers at any time, each killed a moment after its first effect; return how many were."""
    alive: list[tuple[Child, float | None]] = []
    killed = 0
    with oncemore.open(crew.place["store"]) as engine:
        while killed < kills and list(
            engine.store.list_heads(HeadQuery("run", due_by=engine.now() + 60, limit=1))
        ):
            while len(alive) < WORKERS:
                told: dict[str, Any] = {"concurrency": chance.choice((1, 3))}
                if killed + len(alive) < WORKERS:  # the first ones die in the middle of an attempt for sure
                    told["point"] = Point("effect:after")
                alive.append((crew.start("tests.storm.hands:serve", **told), None))
            at_work = {effect["pid"] for effect in crew.effects()}
            for one in list(alive):
                child, at = one
                if at is None and child.pid in at_work:
                    alive[alive.index(one)] = (child, time.monotonic() + chance.uniform(0.0, 0.05))
                elif at is not None and time.monotonic() >= at:
                    alive.remove(one)
                    child.send(signal.SIGKILL)
                    assert child.wait() == -signal.SIGKILL, crew.complaints()
                    killed += 1
            time.sleep(0.005)
    for child, _ in alive:
        child.kill()
    return killed


def finish_runs(crew: Crew, total_timeout: float) -> None:
    """Have two workers execute what is left, and wait for their end."""
    workers = [crew.start("tests.storm.hands:finish") for _ in range(2)]
    for worker in workers:
        assert worker.wait(total_timeout=total_timeout) == 0, crew.complaints()
