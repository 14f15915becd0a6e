"""How fast a signed log is verified, and what checkpoints add to a durable step.

    python bench/ledger.py            the tables, and a verdict for each goal
    python bench/ledger.py --quick    the same in a few seconds, too noisy to believe
    python bench/ledger.py --json     the same for a machine

Method: `_measure.py`. The log is written by durable steps that succeed at once: two entries per run, which is
the dearest case, because every second entry is the last of its entity, and its head is compared. All of it is
verified: every hash, every head, the Merkle tree and every signature. Cost is CPU time of one thread, so that
a rate is one per core. The log is on a disk in memory.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _measure import Effort, Goal, Group, Row, Subject, calls, command, interleaved, ratios, spread

import oncemore
from oncemore.governance.checkpoints import LedgerSigner, make_checkpoint
from oncemore.governance.keys import generate_key
from oncemore.governance.ledger_verify import verify_ledger

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from oncemore.steps.engine import Engine

READ, CHAINS, LEDGER = "read the entries", "oncemore store verify", "oncemore ledger verify"
STEP, SIGNED = "durable step", "durable step, a checkpoint every second"
SIZES = {True: 1_000, False: 50_000}


async def _fill(engine: Engine, runs: int) -> None:
    """Write so many runs that succeed at once."""
    step = oncemore.step(effect="idempotent", name="booked")(_booked).bind(engine)
    turns = asyncio.Semaphore(64)

    async def book(number: int) -> None:
        async with turns:
            await step(number, f"customer {number}")

    await asyncio.gather(*(book(number) for number in range(runs)))


async def _booked(order: int, customer: str) -> dict[str, Any]:
    return {"order": order, "customer": customer, "total": order * 3}


def verifying(folder: Path, quick: bool) -> tuple[Group, Goal]:
    """Verify one log: chains and heads alone, and with the tree and its signatures."""
    with closing(oncemore.open(folder / "log.db")) as engine:
        asyncio.run(_fill(engine, SIZES[quick]))
        signer = LedgerSigner(generate_key())
        make_checkpoint(engine, signer)
        keys = [signer.key.public]
        entries = verify_ledger(engine, keys).entries
        subjects = [
            calls(READ, lambda _: sum(1 for _ in engine.store.read_entries())),
            calls(CHAINS, lambda _: engine.verify()),
            calls(LEDGER, lambda _: verify_ledger(engine, keys)),
        ]
        costs = interleaved(subjects, Effort(3 if quick else 9, 1, 120.0))
    per_entry = {name: [cost / entries for cost in own] for name, own in costs.items()}
    against = ratios(costs, READ)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in per_entry.items()]
    rate = spread([1e9 / cost for cost in per_entry[LEDGER]])
    group = Group(f"a log of {entries:,} entries", "ns CPU per entry", READ, rows)
    goal = Goal("ledger", "entries verified a second per core", rate, 100_000.0, None, "", most=False)
    return group, goal


def stepping(folder: Path, quick: bool) -> tuple[Group, Goal]:
    """New work, with a thread that makes checkpoints, and without."""
    with (
        closing(oncemore.open(folder / "plain.db")) as plain,
        closing(oncemore.open(folder / "signed.db")) as signed,
    ):
        step = oncemore.step(effect="idempotent", name="worked")(_worked)
        stopped = threading.Event()
        signer = LedgerSigner(generate_key())

        def sign() -> None:
            while not stopped.wait(1.0):
                make_checkpoint(signed, signer)

        thread = threading.Thread(target=sign)
        thread.start()
        effort = Effort(3, 3_000_000) if quick else Effort(41, 60_000_000, 60.0)
        costs = interleaved([_each(STEP, step.bind(plain)), _each(SIGNED, step.bind(signed))], effort)
        stopped.set()
        thread.join()
    against = ratios(costs, STEP)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    group = Group("checkpoints beside durable steps", "ns CPU of the step's thread", STEP, rows)
    return group, Goal("ledger", "added to a durable step", against[SIGNED], 1.10, 1.03)


def _worked(n: int) -> int:
    return n


def _each(name: str, step: Callable[[int], object]) -> Subject:
    """A subject whose every call is new work."""
    numbers = itertools.count()
    return Subject(name, calls(name, lambda _: step(next(numbers))).run)


def main() -> None:
    """Measure, and print."""
    goals: list[Goal] = []

    def measured(options: Namespace) -> Iterator[Group]:
        memory = Path("/dev/shm")
        for measure in (verifying, stepping):
            with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
                group, goal = measure(Path(folder), options.quick)
            goals.append(goal)
            yield group

    command(__doc__, ("cryptography",), measured, lambda groups: goals)


if __name__ == "__main__":
    main()
