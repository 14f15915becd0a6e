"""The subjects of scale.py on PostgreSQL: our steps, two commits by hand, DBOS, and workers in processes.

By hand means: psycopg, prepared statements, a row with 600 bytes that is inserted before the work and updated
after it; two commits, two round trips, nothing else. Everybody has a database of their own on one server,
which syncs at every commit (`fsync=on`, its default) and listens on the loopback address.

The processor time of a step is that of the worker processes *and* of the server, as the kernel counts it for
all of the server's processes: work that is only moved to the other side is not saved.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from _durable import AT_ONCE, OURS, TASKS, Dbos, has_dbos, in_tasks, in_threads, ours, timed, wall
from _durable import DBOS_TASKS as DBOS_IN_TASKS
from _durable import DBOS_THREADS as DBOS_IN_THREADS
from _measure import Effort, Goal, Group, Row, Spread, Subject, at_least, interleaved, ratios, spread

import oncemore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    Costs = dict[str, list[float]]

RAW = "two commits by hand, psycopg, prepared"
ALONE, MANY = "PostgreSQL, a step at a time", f"PostgreSQL, {AT_ONCE} steps at once"
WORKERS = "PostgreSQL, workers"
ONE, TWO = "one worker process", "two worker processes"
RUNS, CONCURRENCY = 3_000, 8
LONG = 10  # steps of each of those who work at once, in one turn
MICRO = 1e3

TABLE = "create table run(key bytea primary key, arguments bytea not null, result bytea)"
BEGUN = b"insert into run(key, arguments) values (%b, %b)"
DONE = b"update run set result = %b where key = %b"

#: A worker as a program: it waits for a word, does all that is due, and says how many that were.
WORKER = """
import sys, oncemore
sys.path.insert(0, sys.argv[1])
from _scale_postgres import touch
with oncemore.open(sys.argv[2]) as engine:
    engine.store.load_head("run/0")
    print("ready", flush=True)
    sys.stdin.readline()
    print(oncemore.Worker(engine, [touch], concurrency=int(sys.argv[3])).run_until_idle().done, flush=True)
"""


@oncemore.step(effect="idempotent", name="bench.touch")
def touch(n: int) -> int:
    """Do next to nothing."""
    return n


class Server:
    """The server under test; it gives out databases and says how much processor time it has used."""

    def __init__(self, url: str, opened: ExitStack) -> None:
        self._url, self._opened, self._names = url, opened, count(1)
        self._boss = opened.enter_context(psycopg.connect(url, autocommit=True))
        told = self._boss.execute("select pg_read_file('postmaster.pid')").fetchone()
        assert told is not None
        self._pid = int(told[0].split()[0])

    def database(self) -> str:
        """Return the address of a new database."""
        name = f"bench_{next(self._names)}"
        self._boss.execute(f"create database {name}".encode())
        return f"{self._url.rpartition('/')[0]}/{name}"

    def engine(self) -> oncemore.Engine:
        """Return an engine on a database of its own."""
        return self._opened.enter_context(closing(oncemore.open(self.database())))

    def cpu_s(self) -> float:
        """Return the processor time of all its processes, also of those that have ended."""
        ticks = sum(_ticks(self._pid, ended=True))
        for child in Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split():
            ticks += sum(_ticks(int(child), ended=False))
        return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int, *, ended: bool) -> list[int]:
    """Return user and system time of a process, and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed: its parent has it
        return [0]
    return [int(field) for field in fields[11 : 15 if ended else 13]]


def by_hand(url: str, opened: ExitStack) -> Subject:
    """Two commits, one after the other."""
    connection = opened.enter_context(psycopg.connect(url, autocommit=True))
    connection.execute(TABLE)
    arguments, result = os.urandom(600), b"1"

    def both(n: int) -> None:
        key = n.to_bytes(32, "big")
        connection.execute(BEGUN, (key, arguments), prepare=True, binary=True)
        connection.execute(DONE, (result, key), prepare=True, binary=True)

    return Subject(RAW, timed(both, wall))


# Steps.


def steps(server: Server, effort: Effort, opened: ExitStack) -> Iterator[Group]:
    """One at a time beside two commits by hand; 32 at once beside that and DBOS."""
    alone = ours(server.engine())
    yield cost_table(ALONE, RAW, interleaved([alone, by_hand(server.database(), opened)], effort))
    runner, pool = opened.enter_context(asyncio.Runner()), opened.enter_context(ThreadPoolExecutor(AT_ONCE))
    together = [in_tasks(server.engine(), runner), in_threads(server.engine(), pool)]
    if has_dbos():
        process = opened.enter_context(Dbos(server.database(), 2 * AT_ONCE))
        together += [
            process.subject(DBOS_IN_TASKS, "tasks"),
            process.subject(DBOS_IN_THREADS, "threads"),
        ]
    subjects = [alone, *(at_least(one, LONG * AT_ONCE if effort.rounds > 3 else 1) for one in together)]
    yield cost_table(MANY, OURS, interleaved(subjects, effort))


def cost_table(name: str, over: str, costs: Costs) -> Group:
    """Return a table of costs; its ratios are of rates, so that more is better."""
    against = ratios({subject: [1 / one for one in own] for subject, own in costs.items()}, over)
    rows = [Row(one, spread([cost / MICRO for cost in costs[one]]), against[one]) for one in costs]
    return Group(name, "µs each", f"the rate of {over}", rows)


# Workers.


class Drained(NamedTuple):
    """What it took to do all that was due, for each run: wall time, and processor time of all."""

    wall_us: float
    cpu_us: float
    client_us: float


def workers(server: Server, effort: Effort) -> Iterator[Group]:
    """Drain a queue with one worker process and with two, in turns."""
    runs = RUNS if effort.rounds > 3 else 300
    costs: dict[str, list[Drained]] = {ONE: [], TWO: []}
    url = server.database()
    with oncemore.open(url) as engine:
        numbers = count(1)
        for _ in range(max(3, effort.rounds // 3)):
            for name, processes in ((ONE, 1), (TWO, 2)):
                _hand_in(engine, [next(numbers) for _ in range(runs)])
                costs[name].append(_drained(server, url, runs, processes))
    total = {name: [one.cpu_us for one in own] for name, own in costs.items()}
    against = ratios(total, ONE)
    rows = [Row(name, spread(own), against[name]) for name, own in total.items()]
    mine = ", ".join(f"{name} {median([one.client_us for one in own]):.0f}" for name, own in costs.items())
    rates = ", ".join(
        f"{name} {1e6 / median([one.wall_us for one in own]):,.0f}" for name, own in costs.items()
    )
    note = f"{CONCURRENCY} runs at once in each process; the workers' own: {mine}; runs a second: {rates}"
    yield Group(WORKERS, "µs CPU of a run, workers and server", ONE, rows, note)


def _hand_in(engine: oncemore.Engine, numbers: list[int]) -> None:
    step = touch.bind(engine)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(step.submit, numbers))


def _drained(server: Server, url: str, runs: int, processes: int) -> Drained:
    folder = str(Path(__file__).parent)
    team = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, folder, url, str(CONCURRENCY)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for one in team:
        assert _said(one) == "ready"
    before, own = server.cpu_s(), _own_cpu_s(team)
    begun = wall()
    for one in team:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    done = sum(int(_said(one)) for one in team)
    took = wall() - begun
    assert done == runs, f"{done} of {runs}"
    mine, theirs = _own_cpu_s(team) - own, server.cpu_s() - before
    for one in team:
        one.communicate(timeout=60)
    return Drained(took / 1e3 / runs, (mine + theirs) * 1e6 / runs, mine * 1e6 / runs)


def _own_cpu_s(team: list[subprocess.Popen[str]]) -> float:
    return sum(sum(_ticks(one.pid, ended=False)) for one in team) / os.sysconf("SC_CLK_TCK")


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a worker ended; what it said is above"
    return line.strip()


# What scale.py calls.


def groups(url: str, effort: Effort, opened: ExitStack) -> Iterator[Group]:
    """Measure, table by table; subjects of one table take turns."""
    server = Server(url, opened)
    yield from steps(server, effort, opened)
    yield from workers(server, effort)


def goals(found: dict[str, Group]) -> list[Goal]:
    """Judge what was measured."""
    alone, many, processes = (found[name] for name in (ALONE, MANY, WORKERS))
    judged = [
        Goal("PostgreSQL", "a step beside two commits by hand", alone.of(OURS).ratio, 0.6, 0.7, most=False),
        Goal(
            "PostgreSQL", f"{AT_ONCE} tasks beside one at a time", many.of(TASKS).ratio, 4, None, most=False
        ),
    ]
    if any(row.subject == DBOS_IN_TASKS for row in many.rows):
        quickest = min(many.of(DBOS_IN_TASKS).cost.median, many.of(DBOS_IN_THREADS).cost.median)
        own = many.of(TASKS).cost
        beside = Spread(quickest / own.median, quickest / own.high, quickest / own.low)
        judged.append(Goal("PostgreSQL", f"… beside DBOS, {AT_ONCE} at once", beside, 20, None, most=False))
    more = processes.of(TWO).ratio
    return [*judged, Goal("PostgreSQL", "CPU of a run, two worker processes over one", more, 1.15, None)]
