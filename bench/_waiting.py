"""The memory of calls that wait for their next attempt; run by retry.py in an interpreter of its own.

    python bench/_waiting.py SUBJECT TASKS traced|resident

Starts the tasks, lets every one fail and begin to wait for an hour, and prints the bytes that each
holds: as the interpreter's own allocations (the same in every run), or as growth of the process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _peers import LIBRARIES, LIMIT, OURS, OURS_DRAWN, fails, loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from _peers import Work

HOUR = 3600.0


async def sleeps(value: object) -> None:
    await asyncio.sleep(HOUR)


SUBJECTS: dict[str, Work] = {
    "asyncio.sleep": sleeps,
    LIMIT: loop(fails, HOUR),
    **{peer.name: peer.decorate(fails, HOUR) for peer in (OURS, OURS_DRAWN, *LIBRARIES)},
}


def resident() -> int:
    """Return the bytes of memory that the process occupies."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def traced() -> int:
    """Return the bytes that the interpreter has handed out since tracing began."""
    return tracemalloc.get_traced_memory()[0]


async def held(call: Work, tasks: int, measure: Callable[[], int]) -> float:
    """Return the bytes that a waiting call holds."""
    # A few first, and gone again: caches and first-time imports are not what a further call costs.
    await over(await waiting(call, 20))
    gc.collect()
    before = measure()
    started = await waiting(call, tasks)
    gc.collect()
    bytes_each = (measure() - before) / tasks
    if any(task.done() for task in started):
        raise RuntimeError("a call ended instead of waiting")
    await over(started)
    return bytes_each


async def waiting(call: Work, tasks: int) -> list[asyncio.Task[Any]]:
    """Start tasks and let all of them come to their wait."""
    started = [asyncio.ensure_future(call(7)) for _ in range(tasks)]
    for _ in range(5):
        await asyncio.sleep(0)
    return started


async def over(started: list[asyncio.Task[Any]]) -> None:
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


def main(subject: str, tasks: str, how: str) -> None:
    measure = {"traced": traced, "resident": resident}[how]
    if measure is traced:
        tracemalloc.start()
    print(json.dumps(asyncio.run(held(SUBJECTS[subject], int(tasks), measure))))


if __name__ == "__main__":
    main(*sys.argv[1:])
