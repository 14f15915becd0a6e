"""Four worker processes on one store are killed at random; of every key the outside saw one effect.

What holds for a store here holds for each: a new one is a line in `STORES` and a branch in `address`.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from tests.servers import nats, postgres
from tests.storm import storm
from tests.storm.crew import Crew
from tests.storm.fleet import WORKERS, create_database, finish_runs, kill_workers, submit_orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.record import RunRecord
    from tests.storm.crew import Warm

LONG = bool(os.environ.get("ONCEMORE_TORTURE"))
KEYS = int(os.environ.get("ONCEMORE_FLEET_KEYS", "1000" if LONG else "100"))
KILLS = max(12, KEYS // 10)
STORES = ("sqlite", "postgresql", "mysql", "nats")
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
    return create_database(request.getfixturevalue("server"), "fleet")


@pytest.fixture(params=STORES)
def fleet(request: pytest.FixtureRequest, warm: Warm) -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        crew = Crew(warm, Path(folder), address(request.param, request), LEASE_S)
        yield crew
        crew.close()


@pytest.mark.timeout(1800 if LONG else 240)
def test_four_workers_that_are_killed_at_random_do_every_key_once(fleet: Crew) -> None:
    seed = os.environ.get("ONCEMORE_SEED", str(random.SystemRandom().randrange(10**12)))
    print(f"\nONCEMORE_SEED={seed}")
    submit_orders(fleet, KEYS, seed)
    killed = kill_workers(fleet, KILLS, random.Random(seed))
    finish_runs(fleet, total_timeout=600 if LONG else 120)
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
