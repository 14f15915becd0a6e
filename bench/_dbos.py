"""DBOS in a process of its own: on SQLite it needs its own sqlite3, and its threads should disturb nobody.

    python bench/_dbos.py FOLDER      on SQLite; run by _durable.py
    python bench/_dbos.py URL         on PostgreSQL; run by _scale_postgres.py

Reads lines like `one 100` (which subject, how many) and answers each with `[wall ns, CPU ns]`.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

if sqlite3.sqlite_version_info < (3, 42):  # too old for its statements; this one brings a newer
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3

from dbos import DBOS, SetWorkflowID

AT_ONCE = 32


@DBOS.step()
def work(n: int) -> int:
    return n


@DBOS.workflow()
def flow(n: int) -> int:
    return work(n)


@DBOS.step()
async def work_async(n: int) -> int:
    return n


@DBOS.workflow()
async def flow_async(n: int) -> int:
    return await work_async(n)


@DBOS.workflow()
def five_steps(n: int) -> int:
    for stage in range(5):
        n = work(n + stage)
    return n


def five(n: int) -> None:
    for at in range(n):
        five_steps(at)


def one(n: int) -> None:
    for at in range(n):
        flow(at)


def again(n: int) -> None:
    for _ in repeat(None, n):
        with SetWorkflowID("again"):
            flow(1)


def tasks(n: int) -> None:
    left = iter(range(n))

    async def drain() -> None:
        for at in left:
            await flow_async(at)

    async def drained() -> None:
        await asyncio.gather(*(drain() for _ in range(AT_ONCE)))

    runner.run(drained())


def threads(n: int) -> None:
    for _ in pool.map(flow, range(n)):
        pass


SUBJECTS: dict[str, Callable[[int], None]] = {
    "one": one, "five": five, "again": again, "tasks": tasks, "threads": threads,
}  # fmt: skip


def served(name: str, n: int) -> list[int]:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    SUBJECTS[name](n)
    return [time.perf_counter_ns() - wall, time.process_time_ns() - cpu]


if __name__ == "__main__":
    url = sys.argv[1] if "://" in sys.argv[1] else f"sqlite:///{sys.argv[1]}/dbos.db"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL"})
    DBOS.launch()
    with asyncio.Runner() as runner, ThreadPoolExecutor(AT_ONCE) as pool:
        for line in sys.stdin:
            subject, _, times = line.partition(" ")
            print(json.dumps(served(subject, int(times))), flush=True)
    DBOS.destroy()
