"""How many attempts a second a what-if simulation decides again, and what an export costs for each run.

    python bench/simulate.py           about a quarter of a minute
    python bench/simulate.py --quick   the same in a few seconds, too noisy to believe
    python bench/simulate.py --json    the same for a machine

The runs are recorded first, by real steps that fail on a test clock, and read from their log. Measured is the
CPU time of one attempt in each of three simulations: under the recorded policies, under another policy
with its error classes, and under a tuned policy with other signals. Reading the runs from the log is measured
beside it. The limit is 20 µs an attempt, reading included: 50,000 a second on one core.

The exports read a SQLite log in memory (/dev/shm), of runs that succeed at once and store one artifact, and
write to nothing. Their memory is the highest that `tracemalloc` saw, over that for a quarter of the log: an
export that streams has about 1.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _measure import Effort, Goal, Group, Row, Subject, command, interleaved, spread

import oncemore
from oncemore.lineage import exports
from oncemore.policy.tuning import Tuning
from oncemore.queries.policies import find_policy
from oncemore.queries.recorded_runs import RecordedRunFilter, build_recorded_world, load_recorded_runs
from oncemore.queries.run_histories import HistoryFilter, read_histories
from oncemore.simulate.recorded_runs import SignalTimeline, SimulatedWorld
from oncemore.simulate.what_if import WhatIf
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from _measure import Spread

    from oncemore.simulate.recorded_runs import RecordedRun

LIMIT_US = 20.0
EXPORTED = {True: 200, False: 20_000}
US = 1e3
READING = "reading the runs"
OPTIONS = exports.ExportOptions()
FULL, QUICK = Effort(rounds=21, batch_ns=60_000_000, most_s=20), Effort(rounds=2, batch_ns=5_000_000)


def recorded_runs(count: int) -> tuple[list[RecordedRun], Callable[[], list[RecordedRun]], oncemore.Engine]:
    """Return runs of a step that fails four times, and the function that reads them again."""
    logging.getLogger("oncemore.steps").setLevel(logging.CRITICAL)

    @oncemore.step(effect="idempotent", name="simulated", attempts=5, on=TimeoutError)
    def work(n: int) -> int:
        if oncemore.current().number < 5:
            raise TimeoutError("no answer")
        return n

    engine = oncemore.open("memory:")
    with engine, FakeClock(), suppress(oncemore.Error):
        for n in range(count):
            work(n)

    def read() -> list[RecordedRun]:
        return load_recorded_runs(engine.store, RecordedRunFilter(0.0, float("inf")))

    return read(), read, engine


def measured(options: Namespace) -> Iterator[Group]:
    runs, read, engine = recorded_runs(100 if options.quick else 1000)
    recorded, policy = build_recorded_world(runs), find_policy("standard").policy
    tuned = policy.copy_with(max_attempts=6, tuning=Tuning())
    world = SimulatedWorld(SignalTimeline([(0.0, 400.0)]), SignalTimeline([(0.0, 0.3)]))
    sides = {
        "as recorded": WhatIf(recorded=recorded),
        "another policy": WhatIf(lambda run, own: policy, recorded=recorded),
        "tuned, other signals": WhatIf(lambda run, own: tuned, world, recorded),
    }

    def subject(name: str, side: WhatIf) -> Subject:
        def simulate(n: int) -> int:
            attempts, begin = 0, time.thread_time_ns()
            while attempts < n:
                for run in runs:
                    attempts += len(side.simulate_run(run).attempts)
                    if attempts >= n:
                        break
            return (time.thread_time_ns() - begin) * n // attempts

        return Subject(name, simulate)

    def read_log(n: int) -> int:
        attempts, begin = 0, time.thread_time_ns()
        while attempts < n:
            attempts += sum(len(run.attempts) for run in read())
        return (time.thread_time_ns() - begin) * n // attempts

    subjects = [subject(name, side) for name, side in sides.items()]
    costs = interleaved([*subjects, Subject(READING, read_log)], QUICK if options.quick else FULL)
    rows = [
        Row(name, spread([one / US for one in own]), spread([one / US / LIMIT_US for one in own]))
        for name, own in costs.items()
    ]
    engine.close()
    yield Group("an attempt decided again", "µs CPU", f"{LIMIT_US:g} µs", rows)
    yield from exported(EXPORTED[options.quick])


def exported(count: int) -> Iterator[Group]:
    """Write every kind of export, of a log of `count` runs and of a quarter of it."""
    writers: dict[str, Callable[[Any, Any], object]] = {
        "PROV-JSON": lambda runs, file: exports.write_prov(runs, file, "prov-json", OPTIONS),
        "PROV, Turtle": lambda runs, file: exports.write_prov(runs, file, "turtle", OPTIONS),
        "OpenLineage": lambda runs, file: exports.write_open_lineage(runs, file, OPTIONS),
        "CloudEvents": lambda runs, file: exports.write_cloud_events(runs, file, OPTIONS),
        "STAC": lambda runs, file: exports.write_stac(runs, file, OPTIONS),
        "DCAT, Turtle": lambda runs, file: exports.write_dcat(runs, file, "turtle", OPTIONS),
    }

    @oncemore.step(effect="idempotent", name="stored")
    def stored(n: int) -> int:
        oncemore.current().put(b"%d" % n, name="number.txt")
        return n

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        engines = []
        for size in (count // 4, count):
            engine = oncemore.open(Path(folder, f"{size}.db"), artifacts=Path(folder, f"{size}"))
            engines.append((size, engine))
            step = stored.bind(engine)
            for n in range(size):
                step(n)
        rows = [Row(name, *_measure_export(write, engines)) for name, write in writers.items()]
        for _, engine in engines:
            engine.close()
    yield Group("a run exported; memory over that of a quarter", "µs CPU", "a quarter of the log", rows)


def _measure_export(
    write: Callable[[Any, Any], object], engines: list[tuple[int, oncemore.Engine]]
) -> tuple[Spread, Spread]:
    """Return the CPU time of a run, and the peak of the memory for the whole log over that for a quarter."""
    peaks = []
    for size, engine in engines:
        begin = time.thread_time_ns()
        with Path(os.devnull).open("w") as file:
            write(read_histories(engine.store, HistoryFilter()), file)
        taken = (time.thread_time_ns() - begin) / size / US
        # Apart from the time: it makes everything slower.
        tracemalloc.start()
        with Path(os.devnull).open("w") as file:
            write(read_histories(engine.store, HistoryFilter()), file)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return spread([taken]), spread([peaks[1] / peaks[0]])


def goals(groups: list[Group]) -> list[Goal]:
    """Every simulation reads and decides at least 50,000 attempts a second; no export grows with the log."""
    group, export = groups
    reading = group.of(READING).cost.median
    decided = [
        Goal(
            "rate",
            f"{row.subject}, reading included, over the time of 50,000 a second",
            spread([(row.cost.median + reading) / LIMIT_US]),
            1.0,
            0.5,
        )
        for row in group.rows
        if row.subject != READING
    ]
    return decided + [Goal("memory", row.subject, row.ratio, 1.3, 1.1) for row in export.rows]


if __name__ == "__main__":
    command(__doc__, ["oncemore"], measured, goals)
