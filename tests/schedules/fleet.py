"""A fleet of schedulers that are killed: python -m tests.schedules.fleet STORE FILE KILLS

The parent forks four workers, kills one of them with SIGKILL after a short time and forks another one, until
so many have been killed. Then one worker runs to the end. Every run appends its tick to FILE. Forking costs a
millisecond where a new process would cost half a second, so that a hundred kills take seconds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

if TYPE_CHECKING:
    from datetime import datetime

SIZE, EVERY_S, LEASE_S = 4, 0.05, 1.0
#: Kills cost attempts, and a run may be hit by many of them.
POLICY = Policy("fleet", max_attempts=20, schedule=Schedule("fixed", delays=(0.01,)), jitter=Jitter("none"))
RECORDER = -1


def append_tick(at: datetime) -> None:
    """Append the tick to the file; a line of this length is written at once."""
    os.write(RECORDER, f"{round(at.timestamp() * 1e6)}\n".encode())


with warnings.catch_warnings():
    # Many attempts with short waits are what this test is about.
    warnings.simplefilter("ignore", oncemore.PolicyWarning)
    step = oncemore.step(effect="idempotent", name="fleet.tick", policy=POLICY)
    tick = oncemore.schedule(every=EVERY_S, missed="all")(step(append_tick))


def work(store: str) -> None:
    """Be a worker of the fleet, until it is killed."""
    with oncemore.open(store, lease_s=LEASE_S) as engine:
        oncemore.Worker(engine, [tick], concurrency=2, poll_s=0.2).run()


def fork_worker(store: str) -> int:
    child = os.fork()
    if not child:
        try:
            work(store)
        finally:
            os._exit(1)
    return child


def main(store: str, path: str, kills: int) -> None:
    """Kill workers, then let one of them finish."""
    global RECORDER
    RECORDER = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    fleet = [fork_worker(store) for _ in range(SIZE)]
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 0.1))
        victim = chance.randrange(SIZE)
        os.kill(fleet[victim], signal.SIGKILL)
        _, status = os.waitpid(fleet[victim], 0)
        assert status == signal.SIGKILL, status
        fleet[victim] = fork_worker(store)
    for child in fleet:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with oncemore.open(store, lease_s=LEASE_S) as engine:
        worker = oncemore.Worker(engine, [tick], concurrency=4, poll_s=0.2)
        # The leases of the last victims end within this time.
        ends = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < ends:
            worker.run_until_idle()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
