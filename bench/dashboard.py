"""What fifty open live pages cost a worker, and how long pages take over a large store.

    python bench/dashboard.py                 50 pages beside a worker; pages over 1,000,000 runs
    python bench/dashboard.py --runs 100000   the same with fewer runs

The worker is this process: it runs steps one after the other, in rounds with and without pages, interleaved.
The dashboard is a process of its own with 50 streams of five kinds of pages. The ratio is that of the CPU-free
rates of both kinds of rounds; on two cores a busy neighbour changes both alike.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from urllib.request import HTTPCookieProcessor, build_opener

import _filled

import oncemore

PAGES = ("/", "/runs", "/limits", "/schedules", "/review")
STREAMS, ROUNDS, STEPS = 50, 8, 400
MAX_PAGE_MS, MAX_SLOWDOWN = 300.0, 0.05


@oncemore.step(effect="pure", name="bench.work")
def work(number: int) -> int:
    return number


class OpenPages:
    """A dashboard in a process of its own, with streams that this process reads."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "oncemore", "dashboard", "--port", "0", "--store", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        link = self.process.stdout.readline().strip()
        self.url = link.partition("/login")[0]
        self.opener = build_opener(HTTPCookieProcessor())
        while True:
            try:
                self.opener.open(link, timeout=60).read()
                break
            except OSError:
                time.sleep(0.05)
        self.streams: list[threading.Thread] = []

    def open_streams(self) -> None:
        """Open the streams, and read them in threads until the process ends."""

        def read(page: str) -> None:
            try:
                stream = self.opener.open(f"{self.url}/live?page={page}", timeout=600)
                ready.release()
                while stream.readline():
                    pass
            except OSError:
                ready.release()

        ready = threading.Semaphore(0)
        for number in range(STREAMS):
            thread = threading.Thread(target=read, args=(PAGES[number % len(PAGES)],), daemon=True)
            thread.start()
        for _ in range(STREAMS):
            ready.acquire()

    def close(self) -> None:
        """End the process; its streams end with it."""
        self.process.terminate()
        self.process.wait()


def measure_rate(first: int) -> float:
    """Return the steps per second of one round."""
    started = time.perf_counter()
    for number in range(first, first + STEPS):
        work(number)
    return STEPS / (time.perf_counter() - started)


def measure_slowdown(folder: Path) -> float:
    """Return by which share a worker is slower with 50 open pages."""
    ratios, first = [], 0
    with oncemore.open(folder / "log.db"):
        measure_rate(10_000_000)
        for _ in range(ROUNDS):
            alone = measure_rate(first)
            pages = OpenPages(folder / "log.db")
            pages.open_streams()
            time.sleep(2.0)  # the first rendering of every page is over
            watched = measure_rate(first + STEPS)
            pages.close()
            first += 2 * STEPS
            ratios.append(1 - watched / alone)
            print(f"  alone {alone:,.0f}/s, with {STREAMS} pages {watched:,.0f}/s", file=sys.stderr)
    return median(ratios)


def measure_pages(folder: Path, runs: int) -> dict[str, float]:
    """Return the milliseconds of each page over a store of so many runs, the best of three."""
    path = folder / "large.db"
    _filled.fill(path, runs, runs // 1000)
    pages, times = OpenPages(path), {}
    try:
        for page in (
            *PAGES,
            "/runs?state=HARD_FAIL",
            "/runs?state=COMPLETE",
            "/runs?step=nothing",
            "/ledger",
        ):
            best = float("inf")
            for _ in range(3):
                started = time.perf_counter()
                pages.opener.open(pages.url + page, timeout=60).read()
                best = min(best, 1000 * (time.perf_counter() - started))
            times[page] = best
    finally:
        pages.close()
    return times


def main() -> int:
    """Measure both, print them, and return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    os.environ.pop("ONCEMORE_STORE", None)
    with tempfile.TemporaryDirectory() as name:
        slowdown = measure_slowdown(Path(name))
        times = measure_pages(Path(name), options.runs)
    print(f"{STREAMS} open pages slow a worker by {slowdown:.1%} (limit {MAX_SLOWDOWN:.0%})")
    for page, ms in times.items():
        print(f"{ms:8.1f} ms  {page}  over {options.runs:,} runs (limit {MAX_PAGE_MS:.0f} ms)")
    return int(slowdown > MAX_SLOWDOWN or max(times.values()) > MAX_PAGE_MS)


if __name__ == "__main__":
    sys.exit(main())
