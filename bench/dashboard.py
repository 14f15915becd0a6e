"""What fifty open live pages cost a worker, and how long pages take over a large store.

    python bench/dashboard.py                 50 pages beside a worker; pages over 1,000,000 runs
    python bench/dashboard.py --runs 100000   the same with fewer runs

This process submits runs, and a worker in it makes them. The dashboard and the reader of its 50 streams (five
kinds of pages) are processes of their own, which are stopped (SIGSTOP) in every second round. The slowdown is
that of the time on the clock until all runs of a round are made, the median of interleaved rounds; only a
quiet machine with a spare core shows it. Beside it stand the slowdown of the worker's CPU time, which other
processes disturb little, and the share of a core that the dashboard itself uses.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from http.cookiejar import CookieJar
from pathlib import Path
from statistics import median
from urllib.request import HTTPCookieProcessor, build_opener

import _filled

import oncemore

PAGES = ("/", "/runs", "/limits", "/schedules", "/review")
SEARCHES = ("/runs?state=HARD_FAIL", "/runs?state=COMPLETE", "/runs?step=nothing", "/ledger")
STREAMS, ROUNDS, STEPS = 50, 12, 1000
MAX_PAGE_MS, MAX_SLOWDOWN = 300.0, 0.05
#: Reads streams until it is killed.
READER = """
import asyncio, sys
host, port, cookie, count, *pages = sys.argv[1:]
async def read(page):
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"GET /live?page={page} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nCookie: {cookie}"
    writer.write((head + "\\r\\n" * 2).encode())
    assert b" 200 " in await reader.readline()
    while await reader.read(65536):
        pass
async def main():
    streams = [asyncio.create_task(read(pages[n % len(pages)])) for n in range(int(count))]
    await asyncio.sleep(3)
    print("ready", flush=True)
    await asyncio.gather(*streams)
asyncio.run(main())
"""


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
        self.cookies = CookieJar()
        self.opener = build_opener(HTTPCookieProcessor(self.cookies))
        self.reader: subprocess.Popen[str] | None = None
        # The server prints its link before it listens; the delays grow to about 20 s in all.
        for attempt in range(12):
            try:
                self.opener.open(link, timeout=60).read()
                break
            except OSError:
                time.sleep(0.005 * 2**attempt)

    def open_streams(self) -> None:
        """Open the streams in a process that does nothing but read them."""
        cookie = "; ".join(f"{each.name}={each.value}" for each in self.cookies)
        host, _, port = self.url.removeprefix("http://").partition(":")
        command = [sys.executable, "-c", READER, host, port, cookie, str(STREAMS), *PAGES]
        self.reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.reader.stdout is not None
        assert self.reader.stdout.readline() == "ready\n"

    def send_signal(self, number: int) -> None:
        """Stop or continue both processes."""
        for process in (self.process, self.reader):
            process.send_signal(number)

    def close(self) -> None:
        """End the processes."""
        for process in (self.process, self.reader):
            if process is not None:
                process.kill()
                process.wait()


def measure_rate(worker: oncemore.Worker, first: int) -> tuple[float, float]:
    """Return the runs that a worker makes per second in one round: by the clock, and by its CPU time."""
    for number in range(first, first + STEPS):
        work.submit(number)
    clock, cpu = time.perf_counter(), time.process_time()
    worker.run_until_idle()
    return STEPS / (time.perf_counter() - clock), STEPS / (time.process_time() - cpu)


def read_cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_slowdown(folder: Path) -> tuple[float, float, float]:
    """Return by which share a worker is slower with 50 open pages: clock, CPU; and the dashboard's load."""
    clock_shares, cpu_shares, first, used_s, watched_s = [], [], 0, 0.0, 0.0
    with oncemore.open(folder / "log.db") as engine:
        worker = oncemore.Worker(engine, [work])
        measure_rate(worker, 10_000_000)
        pages = OpenPages(folder / "log.db")
        pages.open_streams()
        try:
            for number in range(ROUNDS):
                rates = {}
                # The order changes, so that a trend of the machine favours neither.
                for is_watched in ((True, False), (False, True))[number % 2]:
                    pages.send_signal(signal.SIGCONT if is_watched else signal.SIGSTOP)
                    cpu_s, started = read_cpu_s(pages.process.pid), time.perf_counter()
                    rates[is_watched] = measure_rate(worker, first)
                    if is_watched:
                        used_s += read_cpu_s(pages.process.pid) - cpu_s
                        watched_s += time.perf_counter() - started
                    first += STEPS
                clock_shares.append(1 - rates[True][0] / rates[False][0])
                cpu_shares.append(1 - rates[True][1] / rates[False][1])
                print(
                    f"  alone {rates[False][0]:,.0f}/s, with pages {rates[True][0]:,.0f}/s", file=sys.stderr
                )
        finally:
            pages.close()
    return median(clock_shares), median(cpu_shares), used_s / watched_s


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
        slowdown, cpu, load = measure_slowdown(Path(name))
        times = measure_pages(Path(name), options.runs)
    print(f"{STREAMS} open pages slow a worker by {slowdown:.1%} (limit {MAX_SLOWDOWN:.0%})")
    print(f"by CPU time {cpu:.1%}; the dashboard uses {load:.1%} of a core meanwhile")
    for page, ms in times.items():
        print(f"{ms:8.1f} ms  {page}  over {options.runs:,} runs (limit {MAX_PAGE_MS:.0f} ms)")
    return int(slowdown > MAX_SLOWDOWN or max(times.values()) > MAX_PAGE_MS)


if __name__ == "__main__":
    sys.exit(main())
