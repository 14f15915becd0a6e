"""Four worker processes on one store are killed at random; of every key the outside saw one effect.

What holds for a store here holds for each: a new one is a line in `STORES` and a branch in `address`.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import oncemore
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from tests.servers import nats, postgres
from tests.storm import storm
from tests.storm.crew import Crew
from tests.storm.points import Point
from tests.storm.work import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.record import RunRecord
    from tests.storm.crew import Child, Warm

LONG = bool(os.environ.get("ONCEMORE_TORTURE"))
KEYS = int(os.environ.get("ONCEMORE_FLEET_KEYS", "1000" if LONG else "100"))
WORKERS, KILLS = 4, max(12, KEYS // 10)
STORES = ("sqlite", "postgresql", "mysql", "nats")
#: What is applied once per key whatever dies: by its key, by asking the outside, by its COMMIT.
WORK = ("charge", "wire", "announce")
#: Elsewhere than on SQLite a dead worker is known by its lease alone.
LEASE_S = 2.0 if LONG else 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    try:
        with postgres.running(max_connections="150") as url:
            yield url
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    try:
        with nats.node() as made:
            yield made.url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


def address(name: str, request: pytest.FixtureRequest) -> str:
    """Return where a store of this kind is; empty for a file beside everything else."""
    if name == "sqlite":
        return ""
    if name == "mysql":
        return str(request.getfixturevalue("mysql_database"))
    if name == "nats":
        return f"{request.getfixturevalue('node')}/fleet"
    url: str = request.getfixturevalue("server")
    with psycopg.connect(url, autocommit=True) as boss:
        boss.execute("drop database if exists fleet with (force)")
        boss.execute("create database fleet")
    return f"{url.rpartition('/')[0]}/fleet"


@pytest.fixture(params=STORES)
def fleet(request: pytest.FixtureRequest, warm: Warm) -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        crew = Crew(warm, Path(folder), address(request.param, request), LEASE_S)
        yield crew
        crew.close()


def hand_in(crew: Crew, orders: list[list[Any]]) -> list[str]:
    with oncemore.open(crew.place["store"]):
        return [STEPS[step].submit(order, fails).key for step, order, fails in orders]


def rage(crew: Crew, chance: random.Random) -> int:
    """Have four workers at any time, each killed a moment after its first effect; return how many were."""
    alive: list[tuple[Child, float | None]] = []
    killed = 0
    with oncemore.open(crew.place["store"]) as engine:
        while killed < KILLS and list(
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


def finish(crew: Crew) -> None:
    workers = [crew.start("tests.storm.hands:finish") for _ in range(2)]
    for worker in workers:
        assert worker.wait(total_timeout=600 if LONG else 120) == 0, crew.complaints()


@pytest.mark.timeout(1800 if LONG else 240)
def test_four_workers_that_are_killed_at_random_do_every_key_once(fleet: Crew) -> None:
    seed = os.environ.get("ONCEMORE_SEED", str(random.SystemRandom().randrange(10**12)))
    print(f"\nONCEMORE_SEED={seed}")
    chance = random.Random(seed)
    orders = [[chance.choice(WORK), f"{n}", 0] for n in range(KEYS)]
    keys = hand_in(fleet, orders)
    assert hand_in(fleet, orders[:10]) == keys[:10], "handed in twice is handed in once"
    killed = rage(fleet, chance)
    finish(fleet)
    report = storm.report(fleet)
    print(f"{killed} killed; {report}")
    assert report.violations == []
    assert report.runs == KEYS
    assert killed >= 5, "hardly anybody was killed"
    assert report.lost >= WORKERS // 2, "nobody was killed in the middle of anything"
    with oncemore.open(fleet.place["store"]) as engine:
        runs: list[RunRecord] = [
            decode_head(head.head) for head in engine.store.list_heads(HeadQuery("run", limit=KEYS))
        ]
    poison = [run for run in runs if run.held_for == "poison"]
    assert report.complete + len(poison) == KEYS, "what was killed in every attempt waits for a person"
    assert len(poison) < KEYS // 20
    applied: dict[str, int] = {}
    for effect in fleet.effects():
        if effect["effect"] != "outbox":  # nothing of an attempt that did not commit has left the building
            applied[effect["run"]] = applied.get(effect["run"], 0) + effect["applied"]
    assert set(applied.values()) == {1}, "by the word of the outside, which knows nothing of us"
