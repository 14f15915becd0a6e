"""A storm: workers on one store are killed at random moments; then all is finished without help.

Used by the tests of `make test` and, for longer, by those of `make torture`.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncemore
from tests.storm.checker import Report, check
from tests.storm.recorder import ask
from tests.storm.work import STEPS

if TYPE_CHECKING:
    from tests.storm.crew import Child, Crew

AT_ONCE = 4
LONGEST_LIFE_S = 0.06
RECENT = 30


def rage(crew: Crew, kills: int, seed: str, longest_life_s: float = LONGEST_LIFE_S) -> list[list[Any]]:
    """Kill workers until there were enough kills; return the orders they worked on.

    Half of them are killed at any moment after they were forked, half after they have opened the store.
    """
    chance = random.Random(seed)
    orders: list[list[Any]] = []
    alive: list[tuple[Child, Any, float | None]] = []
    killed = 0
    while killed < kills:
        while len(alive) < AT_ONCE:
            orders += [
                [step, f"{len(orders)}", chance.choice((0, 0, 1))] for step in chance.sample(list(STEPS), 3)
            ]
            child = crew.start("hammer", orders=orders[-RECENT:], seed=f"{seed}/{len(orders)}")
            life = chance.uniform(0.001, longest_life_s)
            soon = chance.random() < 0.5
            alive.append((child, life, time.monotonic() + life if soon else None))
        now = time.monotonic()
        for child, life, at in list(alive):
            if at is None and Path(f"{crew.place['acks']}-{child.pid}").exists():
                alive[alive.index((child, life, at))] = (child, life, now + life)
            elif at is not None and now >= at:
                alive.remove((child, life, at))
                child.send(signal.SIGKILL)
                assert child.wait() == -signal.SIGKILL, crew.complaints()
                killed += 1
        time.sleep(0.001)
    for child, _, _ in alive:
        child.kill()
    return orders


def finish(crew: Crew, orders: list[list[Any]]) -> None:
    """Bring everything to its end without any help: two workers at once call each step once."""
    parts = [orders, orders[::-1]]
    workers = [crew.start("finish", orders=part) for part in parts]
    for worker in workers:
        assert worker.wait(total_timeout=600) == 0, crew.complaints()


def settle(crew: Crew, orders: list[list[Any]]) -> int:
    """Do what only a person can: look what became of held work, say so, and let it go on; return how many."""
    settled = 0
    with oncemore.open(crew.place["store"]):
        for step, order, fails in orders:
            work = STEPS[step]
            run = work.last_run(order, fails)
            if run is None or run.held_for != "outcome_unknown":
                continue
            found = ask(crew.place["recorder"], op="look", key=run.key)["receipts"]
            told = (
                oncemore.applied({"order": order, "receipt": found[0]}) if found else oncemore.not_applied()
            )
            work.settle(told, order, fails, reason="looked at what the recorder has")
            settled += 1
    return settled


def report(crew: Crew) -> Report:
    """Join what the log, the recorder and the workers say."""
    return check(crew.place["store"], crew.effects(), crew.acks())
