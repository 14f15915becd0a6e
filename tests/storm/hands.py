"""What processes do in the storm of workers: some hand work in, some do it, all may be killed."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import oncemore
from oncemore.log.store import HeadQuery
from tests.storm.work import STEPS, ready


def hand_in(place: dict[str, str], orders: list[list[Any]], seed: str) -> None:
    """Hand orders in, again and again, each by chance for a little later; write down which were taken."""
    chance = random.Random(seed)
    file = os.open(f"{place['acks']}-handed", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    with ready(place) as engine:
        while True:
            step, order, fails = chance.choice(orders)
            at = engine.now() + chance.uniform(0, 0.05) if chance.random() < 0.3 else None
            run = STEPS[step].submit(order, fails, at=at)
            os.write(file, json.dumps({"step": step, "key": run.key}).encode() + b"\n")


def serve(place: dict[str, str], concurrency: int, point: list[Any] | None = None) -> None:
    """Be a worker until somebody kills this process, or it comes to a moment to die at."""
    with ready(place, point) as engine:
        os.close(os.open(f"{place['acks']}-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600))
        oncemore.Worker(engine, STEPS.values(), concurrency=concurrency).run()


def finish(place: dict[str, str]) -> None:
    """Be a worker until nothing is left that a worker could do."""
    with ready(place) as engine:
        while True:
            oncemore.Worker(engine, STEPS.values()).run_until_idle()
            heads = [
                head
                for state in ("PENDING", "RUNNING", "SOFT_FAIL")
                for head in engine.store.list_heads(HeadQuery("run", state=state))
                if state == "RUNNING" or head.by.due is not None
            ]
            if not heads:
                return
