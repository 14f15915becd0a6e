"""What a breaker, the dataset gate and measuring cost while all is well: around a light retry beside its
peers, and on a durable step.

    python bench/gates.py            the tables, and a verdict for each goal
    python bench/gates.py --quick    the same in a few seconds, too noisy to believe
    python bench/gates.py --json     the same for a machine

Method: `_measure.py`. Every breaker is closed and nothing has failed; each opens after three failures in a
row and stays open for five minutes. On a durable step it is shared by all processes on one SQLite store,
which is on a disk in memory, so that computing shows and not the disk: its share is smaller where syncing
takes time. The dataset is registered and open: the gate permits every attempt. The chain of hashes is part of
every durable step, with and without a gate. Measuring is the energy, carbon and cost of each attempt, with a
grid intensity and prices that are constants; the step also reads an input, whose lineage edge COMMIT stores.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import circuitbreaker
import interlock
import purgatory
import pybreaker
from _measure import (
    Effort,
    Goal,
    Group,
    Row,
    Subject,
    awaits,
    calls,
    command,
    compared,
    interleaved,
    ratios,
    spread,
)
from _peers import plain_try, succeeds, succeeds_async

import oncemore

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

WITHOUT, WITH = "oncemore.retry", "oncemore.retry, breaker="
BY_HAND = "hand-written (limit)"
STEP, GATED = "durable step", "durable step, shared breaker"
DATASET = "durable step, open dataset"
UNMEASURED, MEASURED = "durable step, energy: off", "durable step, measured"
EDGE = "durable step, measured, one lineage edge"
PACKAGES = ("pybreaker", "purgatory", "circuitbreaker", "interlock-cb")


class Scale(NamedTuple):
    """How much is measured."""

    calls: Effort
    steps: Effort


FULL = Scale(Effort(101, 4_000_000), Effort(41, 60_000_000, 60.0))
QUICK = Scale(Effort(3, 300_000), Effort(3, 3_000_000))


def ours(name: str) -> dict[str, Any]:
    return {"on": ConnectionError, "breaker": oncemore.Breaker(name)}


def light(effort: Effort) -> tuple[Group, Goal]:
    """A plain function that comes good, behind each library's breaker."""
    factory = purgatory.SyncCircuitBreakerFactory(default_threshold=3, default_ttl=300)
    subjects = [
        calls(BY_HAND, plain_try(succeeds)),
        calls(WITHOUT, oncemore.retrying(succeeds, on=ConnectionError)),
        calls(WITH, oncemore.retrying(succeeds, **ours("light"))),
        calls("oncemore.Breaker.call", _called(oncemore.Breaker("alone"))),
        calls("pybreaker", pybreaker.CircuitBreaker(fail_max=3, reset_timeout=300)(succeeds)),
        calls("circuitbreaker", circuitbreaker.circuit(failure_threshold=3, recovery_timeout=300)(succeeds)),
        calls("purgatory", factory("light")(succeeds)),
        calls("interlock-cb", _interlocked()),
    ]
    costs = interleaved(subjects, effort)
    against = ratios(costs, WITHOUT)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    added = spread([one - other for one, other in zip(costs[WITH], costs[WITHOUT], strict=True)])
    group = Group("a closed breaker, sync", "ns CPU per call", WITHOUT, rows)
    return group, Goal("breaker", "added to retry's happy path", added, 1000.0, 100.0, " ns")


def _called(breaker: oncemore.Breaker) -> Callable[[object], object]:
    return lambda value: breaker.call(succeeds, value)


def _interlocked() -> Callable[[object], object]:
    breaker = interlock.CircuitBreaker(name="light")  # it goes by a rate only
    return lambda value: breaker.call_sync(succeeds, value)


def light_async(effort: Effort) -> Group:
    """The same for a coroutine."""
    with asyncio.Runner() as runner:
        subjects = [
            awaits(WITHOUT, oncemore.retrying(succeeds_async, on=ConnectionError), runner),
            awaits(WITH, oncemore.retrying(succeeds_async, **ours("awaited")), runner),
            awaits("circuitbreaker", circuitbreaker.circuit(failure_threshold=3)(succeeds_async), runner),
        ]
        return compared("a closed breaker, async", subjects, effort, WITHOUT)


def durable(effort: Effort) -> tuple[Group, Goal]:
    """New work on a store that all share, with a breaker that all share, and without."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        closing(oncemore.open(Path(folder, "log.db"))) as engine,
    ):
        plain = oncemore.step(effect="idempotent", name="plain")(_worked)
        gated = oncemore.step(effect="idempotent", name="gated", breaker="provider")(_worked)
        costs = interleaved([_each(STEP, plain.bind(engine)), _each(GATED, gated.bind(engine))], effort)
    against = ratios(costs, STEP)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    group = Group("a durable step, its breaker closed", "ns CPU per call", STEP, rows)
    return group, Goal("breaker", "durable step with a shared one", against[GATED], 1.10, 1.05)


def governed(effort: Effort) -> tuple[Group, Goal]:
    """New work that names a registered, open dataset, and work that names none."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        closing(oncemore.open(Path(folder, "log.db"))) as engine,
    ):
        engine.datasets.register("survey", care_label="Public", reason="measured by the benchmark")
        plain = oncemore.step(effect="idempotent", name="plain")(_worked)
        gated = oncemore.step(effect="idempotent", name="gated", dataset="survey")(_worked)
        costs = interleaved([_each(STEP, plain.bind(engine)), _each(DATASET, gated.bind(engine))], effort)
    against = ratios(costs, STEP)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    group = Group("a durable step, its dataset open", "ns CPU per call", STEP, rows)
    return group, Goal("gate", "durable step with an open dataset", against[DATASET], 1.10, 1.05)


def metered(effort: Effort) -> tuple[Group, Goal]:
    """New work whose attempts are measured, with an input that its lineage names, and work without both."""
    memory = Path("/dev/shm")
    prices = {"grid_intensity": 400.0, "energy_price": 0.3, "compute_unit_cost": 0.1}
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        closing(oncemore.open(Path(folder, "off.db"), energy="off")) as off,
        closing(oncemore.open(Path(folder, "on.db"), signals=prices)) as on,
    ):
        step = oncemore.step(effect="idempotent", name="plain")(_worked)
        reading = oncemore.step(effect="idempotent", name="reading")(_reads)
        subjects = [
            _each(UNMEASURED, step.bind(off)),
            _each(MEASURED, step.bind(on)),
            _each(EDGE, reading.bind(on)),
        ]
        costs = interleaved(subjects, effort)
    against = ratios(costs, UNMEASURED)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    group = Group("a durable step, measured", "ns CPU per call", UNMEASURED, rows)
    return group, Goal("measuring", "added to a durable step", against[MEASURED], 1.10, 1.05)


def _worked(n: int) -> int:
    return n


def _reads(n: int) -> int:
    oncemore.current().use(b"an input", name="input")
    return n


def _each(name: str, step: Callable[[int], object]) -> Subject:
    """A subject whose every call is new work."""
    numbers = itertools.count()
    counted = calls(name, lambda _: step(next(numbers)))
    return Subject(name, counted.run)


def main() -> None:
    """Measure, and print."""
    goals: list[Goal] = []

    def measured(options: Namespace) -> Iterator[Group]:
        scale = QUICK if options.quick else FULL
        group, goal = light(scale.calls)
        goals.append(goal)
        yield group
        yield light_async(scale.calls)
        for measure in (durable, governed, metered):
            group, goal = measure(scale.steps)
            goals.append(goal)
            yield group

    command(__doc__, PACKAGES, measured, lambda groups: goals)


if __name__ == "__main__":
    main()
