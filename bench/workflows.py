"""What a workflow of five steps costs beside DBOS on SQLite, and what 10,000 sleeping workflows cost.

    python bench/workflows.py                   the tables
    python bench/workflows.py --sleeping 50000  with more of them
    python bench/workflows.py --quick           the same in a few seconds, too noisy to believe
    python bench/workflows.py --json            the same for a machine

Method: `_measure.py`, wall-clock time, in turns. Our steps are `pure`: each waits for the disk once. Files
are made in the folder it is started from and removed at the end. Without DBOS (`make bench` installs it) its
row is left out.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _durable import Dbos, has_dbos
from _measure import Effort, Goal, Group, Row, Subject, command, interleaved, number, ratios, spread

import oncemore
from oncemore.log.store import HeadQuery

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

OURS, INLINE, DBOS = "workflow of five steps", "five steps without a workflow", "DBOS, workflow of five steps"
FULL, QUICK = Effort(rounds=15, batch_ns=200_000_000), Effort(rounds=3, batch_ns=20_000_000)
MANY, FEW = 10_000, 200
_numbers = itertools.count(1)


@oncemore.step(effect="pure", name="bench.stage")
def stage(n: int, number: int) -> int:
    """Do next to nothing."""
    return n


@oncemore.workflow(name="bench.five")
def five(n: int) -> int:
    """Call five steps."""
    for at in range(5):
        stage(n, at)
    return n


@oncemore.workflow(name="bench.sleeper")
def sleeper(n: int) -> int:
    """Sleep for a hundred days."""
    oncemore.sleep(100 * 86_400)
    return n


def call_five(n: int) -> None:
    """Call five steps without a workflow around them."""
    for at in range(5):
        stage(n, at)


def timed(name: str, call: Any) -> Subject:
    """Return a subject that calls a function with new numbers."""

    def run(n: int) -> int:
        began = time.perf_counter_ns()
        for _ in range(n):
            call(next(_numbers))
        return time.perf_counter_ns() - began

    return Subject(name, run)


def compare(folder: Path, effort: Effort) -> Group:
    """Return what five steps cost in a workflow, without one, and in one of DBOS."""
    subjects = [timed(OURS, five), timed(INLINE, call_five)]
    with oncemore.open(folder / "five.db"):
        for at in range(200):  # past the first growth of the write-ahead log
            five(-at)
        if not has_dbos():
            costs = interleaved(subjects, effort)
        else:
            with Dbos(folder / "dbos", 1) as dbos:
                costs = interleaved([*subjects, dbos.subject(DBOS, "five")], effort)
    over = DBOS if has_dbos() else INLINE
    against = ratios(costs, over)
    rows = [Row(name, spread([1e-6 * cost for cost in costs[name]]), against[name]) for name in costs]
    return Group("a workflow of five steps", "ms", over, rows)


def measure_sleeping(folder: Path, count: int) -> Group:
    """Return what sleeping workflows cost: rows, bytes, threads, and the time to look for due ones."""
    path = folder / "sleeping.db"
    with oncemore.open(path) as engine:
        sleeper.submit(0)
        oncemore.Worker(engine, [sleeper]).run_until_idle()
        before, rows_before = path.stat().st_size, _count_rows(engine)
        for at in range(1, count + 1):
            sleeper.submit(at)
        began = time.perf_counter()
        oncemore.Worker(engine, [sleeper], concurrency=16).run_until_idle()
        took = time.perf_counter() - began
        rows = _count_rows(engine) - rows_before
        assert rows == count
        time.sleep(0.5)  # the threads of the worker end
        threads = [thread.name for thread in threading.enumerate()]
        began = time.perf_counter()
        oncemore.Worker(engine, [sleeper]).run_until_idle()
        look_ms = 1e3 * (time.perf_counter() - began)
    size = (path.stat().st_size - before) / count
    cost = spread([1e6 * took / count])
    note = (
        f"{count:,} sleeping workflows: {rows / count:g} row and {number(size)} bytes each on disk; "
        f"{len(threads)} threads in this process ({', '.join(threads)}); a worker looks for due ones in "
        f"{look_ms:.0f} ms"
    )
    return Group("to begin one and let it sleep", "µs", "itself", [Row("sleeper", cost, spread([1.0]))], note)


def _count_rows(engine: oncemore.Engine) -> int:
    return len(list(engine.store.list_heads(HeadQuery("run", step=sleeper.name, limit=1_000_000))))


def measured(options: argparse.Namespace) -> Iterator[Group]:
    """Yield the tables."""
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        folder = Path(name).resolve()
        yield compare(folder, QUICK if options.quick else FULL)
        yield measure_sleeping(folder, options.sleeping or (FEW if options.quick else MANY))


def goals(groups: list[Group]) -> list[Goal]:
    """Return the one goal: no slower than DBOS."""
    if not has_dbos():
        return []
    return [Goal("6", "a workflow of five steps ÷ DBOS", groups[0].of(OURS).ratio, 1.0, 0.2)]


if __name__ == "__main__":
    command(__doc__, ["oncemore", "dbos"], measured, goals, {"sleeping": "how many workflows sleep"})
