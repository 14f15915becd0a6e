"""What handing work in and doing it costs: submits and runs a second, and what a million parked runs cost.

    python bench/workers.py                     100,000 parked runs
    python bench/workers.py --parked 1000000    a million (about 2 GB of disk for a while)
    python bench/workers.py --quick             the same in a few seconds, too noisy to believe
    python bench/workers.py --json              the same for a machine

Files are made in the folder it is started from, so that this is the disk that is measured, and removed at the
end. The raw rate of fdatasync is printed beside: a submit waits for one, a run for two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import oncemore
from oncemore.log.store import HeadQuery
from oncemore.workers.poll import PAGE_SIZE
from oncemore.workers.takeover import FAR_FUTURE

WORKER = """
import oncemore, sys
sys.path.insert(0, sys.argv[1])
from workers import touch
with oncemore.open(sys.argv[2]) as engine:
    print("ready", flush=True)
    sys.stdin.readline()
    oncemore.Worker(engine, [touch], concurrency=int(sys.argv[3])).run_until_idle()
"""


@oncemore.step(effect="idempotent", name="bench.touch")
def touch(x: int) -> int:
    """Do next to nothing."""
    return x


@oncemore.step(effect="idempotent", name="bench.parked")
def parked(x: int) -> int:
    """Wait for ever."""
    return x


def memory_mb() -> float:
    """Return how much memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def syncs_per_second(folder: Path, seconds: float) -> float:
    """Return how often the disk can be waited for."""
    file = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        os.write(file, b"x" * 600)
        os.fdatasync(file)
        count += 1
    os.close(file)
    return count / seconds


def submit_rate(count: int, threads: int) -> float:
    """Return how many runs are handed in a second."""
    base = time.time_ns()

    def lane(number: int) -> None:
        for n in range(count // threads):
            touch.submit(base + number * count + n)

    team = [threading.Thread(target=_inside(lane), args=(number,)) for number in range(threads)]
    began = time.perf_counter()
    for one in team:
        one.start()
    for one in team:
        one.join()
    return count // threads * threads / (time.perf_counter() - began)


def _inside(work: Any) -> Any:
    from contextvars import copy_context

    around = copy_context()
    return lambda *told: around.copy().run(work, *told)


def work_rate(path: Path, waiting: int, processes: int, concurrency: int) -> float:
    """Return how many runs a second worker processes bring to their end."""
    team = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(Path(__file__).parent), str(path), str(concurrency)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for one in team:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for one in team:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in team:
        one.wait(600)
    return waiting / (time.perf_counter() - began)


def next_due_ms(engine: oncemore.Engine, name: str, rounds: int) -> float:
    """Return the median time in which a worker finds what is due next of a step."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        list(engine.store.list_heads(HeadQuery("run", step=name, due_by=FAR_FUTURE, limit=PAGE_SIZE)))
        took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took)


def park(engine: oncemore.Engine, count: int, chunk: int = 2000) -> None:
    """Have runs wait for a time in a hundred years, as `submit` writes them."""
    from oncemore.log.entry_codec import build_index, encode_entry, new_nonce, new_uuid7
    from oncemore.log.record import NOWHERE, RecordChange
    from oncemore.log.store import Batch, EntryWrite

    now = engine.now()
    made = parked.submit(-1, at=now + 3e9).state
    for begin in range(0, count, chunk):
        writes = []
        for n in range(begin, min(count, begin + chunk)):
            run = made._replace(run_id=new_uuid7(now), not_before=now + 3e9)
            entity = f"run/{new_nonce():016x}{n:048x}"
            change = RecordChange(("PENDING",), None, run, {"arguments": {"x": n}})
            data = encode_entry(change, entity, 1, NOWHERE, now, new_nonce())
            writes.append(EntryWrite(entity, 0, *data, build_index(run)))
        engine.store.append(Batch(tuple(writes), {}, False)).wait()


def measure(path: Path, count: int, parked_runs: int) -> dict[str, float]:
    """Return all figures of one store."""
    found: dict[str, float] = {"fdatasync a second": syncs_per_second(path.parent, 1.0)}
    with oncemore.open(path) as engine:
        found["submits a second, one thread"] = submit_rate(count, 1)
        found["submits a second, 16 threads"] = submit_rate(count, 16)
        waiting = len(
            list(engine.store.list_heads(HeadQuery("run", step=touch.name, due_by=1e15, limit=1_000_000)))
        )
        found["runs a second, 1 worker of 5"] = work_rate(path, waiting, 1, 5)
        for processes in (1, 2):
            submit_rate(count, 16)
            waiting = count // 16 * 16
            rate = work_rate(path, waiting, processes, 16)
            found[f"runs a second, {processes} worker{'s' * (processes > 1)} of 16"] = rate
        found["ms to find the next due, nothing parked"] = next_due_ms(engine, touch.name, 200)
        before, size = memory_mb(), path.stat().st_size
        began = time.perf_counter()
        park(engine, parked_runs)
        took = time.perf_counter() - began
        oncemore.Worker(engine, [touch, parked]).run_until_idle()
        found["parked runs"] = parked_runs
        found["s to park them, in batches"] = took
        found["ms to find the next due, with them"] = next_due_ms(engine, touch.name, 200)
        found["ms to find the next of the parked"] = next_due_ms(engine, parked.name, 200)
        submit_rate(64, 1)
        worker = oncemore.Worker(engine, [touch, parked])
        began = time.perf_counter()
        worker.run_until_idle()
        found["runs a second beside them, 1 worker of 5"] = worker.stats.done / (time.perf_counter() - began)
        found["MB of memory more than before"] = memory_mb() - before
    found["bytes on disk for each"] = (path.stat().st_size - size) / parked_runs
    return found


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--parked", type=int, default=100_000)
    options.add_argument("--count", type=int, default=2_000)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--json", action="store_true")
    told = options.parse_args()
    count, many = (200, 5_000) if told.quick else (told.count, told.parked)
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as folder:
        found = measure(Path(folder).resolve() / "log.db", count, many)
    if told.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<48}{value:>14,.2f}")


if __name__ == "__main__":
    main()
