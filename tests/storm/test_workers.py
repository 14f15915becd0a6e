"""Workers and those who hand work in are killed at random; everything handed in is done, and none twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_head
from tests.storm import storm
from tests.storm.work import STEPS

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from tests.storm.crew import Child, Crew

KILLS = int(os.environ.get("ONCEMORE_KILLS", "200")) // 2


def rage(crew: Crew, kills: int, seed: str) -> tuple[list[list[Any]], Counter[str]]:
    """Kill workers and those who hand in until there were enough kills; return the orders, and who died."""
    chance = random.Random(seed)
    orders = [
        [step, str(n), chance.choice((0, 0, 1))]
        for n in range(kills // 2)
        for step in chance.sample(list(STEPS), 3)
    ]
    alive: list[tuple[str, Child, float]] = []
    killed: Counter[str] = Counter()
    while sum(killed.values()) < kills:
        while len(alive) < 4:
            what = "serve" if sum(kind == "serve" for kind, _, _ in alive) < 3 else "hand_in"
            told: dict[str, Any] = {"concurrency": chance.choice((1, 3))}
            if what == "hand_in":
                some = orders[: 30 + 3 * sum(killed.values())]
                told = {"orders": some[-60:], "seed": f"{seed}/{killed}"}
            child = crew.start(f"tests.storm.hands:{what}", **told)
            alive.append((what, child, time.monotonic() + chance.uniform(0.01, 0.25)))
        for one in list(alive):
            what, child, at = one
            if time.monotonic() >= at:
                alive.remove(one)
                child.send(signal.SIGKILL)
                assert child.wait() == -signal.SIGKILL, crew.complaints()
                killed[what] += 1
        time.sleep(0.001)
    for _, child, _ in alive:
        child.kill()
    return orders, killed


def finish(crew: Crew) -> None:
    workers = [crew.start("tests.storm.hands:finish") for _ in range(2)]
    for worker in workers:
        assert worker.wait(total_timeout=120) == 0, crew.complaints()


@pytest.mark.timeout(400)
@pytest.mark.req("MSG-3")
def test_what_was_handed_in_is_done_and_nothing_twice_though_everybody_is_killed(
    crew: Crew, record_property: Any
) -> None:
    seed = os.environ.get("ONCEMORE_SEED", str(random.SystemRandom().randrange(10**12)))
    print(f"\nseed {seed}")
    orders, killed = rage(crew, KILLS, seed)
    finish(crew)
    settled = storm.settle(crew, orders)
    finish(crew)
    report = storm.report(crew)
    print(f"{dict(killed)} killed, {settled} settled, {report}")
    assert report.violations == []
    handed = [json.loads(line) for line in Path(f"{crew.place['acks']}-handed").read_text().splitlines()]
    with oncemore.open(crew.place["store"]) as engine:
        for told in handed:
            head = engine.store.load_head(f"run/{told['key']}")
            assert head is not None, "what was acknowledged as handed in is not there"
            run: RunRecord = decode_head(
                head.head
            )  # work that was killed in every attempt waits for a person
            assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for == "poison", run
        assert all(job.state != "RUNNING" for job in engine.jobs())
    assert len({told["key"] for told in handed}) > 20
    assert report.complete > 20
    assert killed["serve"] > KILLS // 3
    assert report.lost > 0, "no worker was killed in the middle of anything"
    record_property("kills", sum(killed.values()))
