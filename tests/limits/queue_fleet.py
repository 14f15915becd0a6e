"""Processes at a queue: python -m tests.limits.queue_fleet STORE FOLDER RUNS KILLS

The parent submits runs of a queue with three slots, forks three workers, kills some of them with SIGKILL on
the way, and lets the rest finish. Each run takes one of three locks of the kernel in FOLDER, which end with
their process; a run that finds all of them taken writes a line to FOLDER/over. So the bound is judged by the
kernel, and not by the log.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import oncemore
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

CONCURRENCY, PROCESSES, LEASE_S = 3, 3, 1.0
POLICY = Policy("fleet", max_attempts=20, schedule=Schedule("fixed", delays=(0.01,)), jitter=Jitter("none"))
FOLDER = Path()
#: After a kill the kernel may free our own lock of the dead process a moment before this one.
TRIES = 1


def send(number: int) -> int:
    """Hold one of the locks for a moment."""
    for attempt in range(TRIES):
        for slot in range(CONCURRENCY):
            handle = os.open(FOLDER / f"slot{slot}", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                append("started", f"{number} {slot}")
                time.sleep(0.02)
                return number
            except BlockingIOError:
                continue
            finally:
                os.close(handle)
        time.sleep(0.003 * (attempt + 1 < TRIES))
    append("over", str(number))
    return number


def append(name: str, line: str) -> None:
    """Append a line to a file of the folder, at once."""
    handle = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


with warnings.catch_warnings():
    # Many attempts with short waits are what this test is about.
    warnings.simplefilter("ignore", oncemore.PolicyWarning)
    mail, news = (
        oncemore.step(effect="idempotent", name=name, policy=POLICY, queue="emails", concurrency=CONCURRENCY)(
            send
        )
        for name in ("fleet.mail", "fleet.news")
    )


def fork_worker(store: str) -> int:
    child = os.fork()
    if not child:
        try:
            with oncemore.open(store, lease_s=LEASE_S) as engine:
                oncemore.Worker(engine, [mail, news], concurrency=5, poll_s=0.2).run()
        finally:
            os._exit(1)
    return child


def main(store: str, folder: str, runs: int, kills: int) -> None:
    """Kill workers, then let one of them finish."""
    global FOLDER, TRIES
    FOLDER, TRIES = Path(folder), 2 if kills else 1
    chance = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}", flush=True)
    submitter = os.fork()
    if not submitter:
        with oncemore.open(store, lease_s=LEASE_S) as engine:
            for number in range(runs):
                (mail if number % 2 else news).bind(engine).submit(number)
        os._exit(0)
    _, status = os.waitpid(submitter, 0)
    assert status == 0, status
    fleet = [fork_worker(store) for _ in range(PROCESSES)]
    for _ in range(kills):
        time.sleep(chance.uniform(0.05, 0.15))
        victim = chance.randrange(PROCESSES)
        os.kill(fleet[victim], signal.SIGKILL)
        os.waitpid(fleet[victim], 0)
        fleet[victim] = fork_worker(store)
    with oncemore.open(store, lease_s=LEASE_S) as engine:
        # A part of the fleet: a direct call takes a slot like any other attempt.
        mail.bind(engine)(runs + 1)
        worker = oncemore.Worker(engine, [mail, news], concurrency=2, poll_s=0.2)
        while any(
            decode_head(head.head).state != "COMPLETE" for head in engine.store.list_heads(HeadQuery("run"))
        ):
            worker.run_until_idle()
            time.sleep(0.02)
    for child in fleet:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
