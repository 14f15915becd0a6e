"""The subjects of steps.py: our steps, the same thing through apsw by hand, and DBOS.

Every subject works with keys that it never had before, on a file of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from importlib.util import find_spec
from itertools import count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import apsw
import msgspec
from _measure import Subject

import oncemore
from oncemore.log.sqlite.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from oncemore.log.store import Entry, Head
    from oncemore.steps.engine import Engine

    Run = Callable[[int], int]
    Clock = Callable[[], int]

AT_ONCE = 32
LIMIT = "two commits by hand (limit)"
RAW, SAME_ROWS = "raw apsw, two commits of 600 B", "raw apsw, the same rows"
SELECT, BY_HAND = "select by key, decoded (limit)", "by hand: digest, select, decode"
LIMIT_STDLIB, SELECT_STDLIB = f"{LIMIT[:-1]}, standard library)", f"{SELECT[:-1]}, standard library)"
OURS, PURE = "oncemore", "oncemore, pure"
TASKS, THREADS = f"oncemore, {AT_ONCE} tasks", f"oncemore, {AT_ONCE} threads"
DBOS, DBOS_TASKS, DBOS_THREADS = "DBOS", f"DBOS, {AT_ONCE} tasks", f"DBOS, {AT_ONCE} threads"
FDATASYNC = "append 600 B and fdatasync, once"

wall, cpu = time.perf_counter_ns, time.process_time_ns
_numbers = count(1)

logging.getLogger("oncemore").setLevel(logging.ERROR)  # or it tells of every new file


def timed(call: Callable[[int], object], clock: Clock) -> Run:
    """Return what calls a function n times, each time with a number that is new, and says what that took."""

    def run(n: int) -> int:
        begin = clock()
        for _ in repeat(None, n):
            call(next(_numbers))
        return clock() - begin

    return run


# Ours.


@oncemore.step(effect="idempotent", name="bench.step")
def work(n: int) -> int:
    return n


@oncemore.step(effect="pure", name="bench.pure")
def pure(n: int) -> int:
    return n


@oncemore.step(effect="idempotent", name="bench.task")
async def task(n: int) -> int:
    return n


@oncemore.step(effect="idempotent", name="bench.parked")
def parked(n: int) -> int:
    raise ConnectionError("not now")


def engine_at(path: Path, stack: ExitStack) -> Engine:
    """Return an engine on a file of its own, which is closed with everything else."""
    return stack.enter_context(closing(oncemore.open(path)))


def ours(engine: Engine, name: str = OURS, step: Any = work, clock: Clock = wall) -> Subject:
    """One step after the other."""
    return Subject(name, timed(step.bind(engine), clock))


def in_tasks(engine: Engine, runner: asyncio.Runner) -> Subject:
    """32 tasks of one loop, each one step after the other."""
    step = task.bind(engine)

    async def drain(left: Any) -> None:
        for _ in left:
            await step(next(_numbers))

    async def drained(n: int) -> None:
        left = repeat(None, n)
        await asyncio.gather(*(drain(left) for _ in range(AT_ONCE)))

    def run(n: int) -> int:
        begin = wall()
        runner.run(drained(n))
        return wall() - begin

    return Subject(TASKS, run)


def in_threads(engine: Engine, pool: ThreadPoolExecutor) -> Subject:
    """32 threads, each one step after the other."""
    step = work.bind(engine)

    def drain(left: Any) -> None:
        for _ in left:
            step(next(_numbers))

    def run(n: int) -> int:
        left, begin = repeat(None, n), wall()
        for done in [pool.submit(drain, left) for _ in range(AT_ONCE)]:
            done.result()
        return wall() - begin

    return Subject(THREADS, run)


def at_once(folder: Path, stack: ExitStack) -> list[Subject]:
    """Return our tasks and our threads, on a file each."""
    runner, pool = stack.enter_context(asyncio.Runner()), stack.enter_context(ThreadPoolExecutor(AT_ONCE))
    return [
        in_tasks(engine_at(folder / "tasks.db", stack), runner),
        in_threads(engine_at(folder / "threads.db", stack), pool),
    ]


# By hand.


def durable(path: Path, schema: str) -> apsw.Cursor:
    """Return a cursor on a new file that waits for the disk at each commit, as ours does."""
    connection = apsw.Connection(str(path))
    assert connection.pragma("journal_mode", "wal") == "wal"
    connection.pragma("synchronous", "FULL")
    connection.execute(schema)
    return connection.cursor()


def fdatasync(path: Path, stack: ExitStack) -> Subject:
    """What the disk can do: 600 bytes more, and wait for them."""
    file, body = stack.enter_context(path.open("wb", buffering=0)), os.urandom(600)

    def append(_: int) -> None:
        file.write(body)
        os.fdatasync(file.fileno())

    return Subject(FDATASYNC, timed(append, wall))


def raw(path: Path, clock: Clock = wall) -> Subject:
    """Two commits, each of one row with 600 bytes."""
    cursor = durable(path, "CREATE TABLE log(seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    body = os.urandom(600)

    def twice(_: int) -> None:
        cursor.execute("INSERT INTO log(body) VALUES (?)", (body,))
        cursor.execute("INSERT INTO log(body) VALUES (?)", (body,))

    return Subject(RAW, timed(twice, clock))


def same_rows(path: Path, clock: Clock = wall) -> Subject:
    """The rows of our step, in our tables, in two transactions; nobody makes them, asks or compares."""
    cursor = durable(path, SCHEMA)
    (begun, claim), (over, outcome) = sample(work, path.with_suffix(".sample"))

    def both(n: int) -> None:
        entity, seq = f"run/{n:064x}", 2 * n
        execute = cursor.execute
        execute("BEGIN IMMEDIATE")
        execute(HEAD_ROW, (entity, 1, begun.hash, begun.head, *begun.by, seq))
        execute(LOG_ROW, (seq, entity, 1, 0, claim.hash, claim.header, claim.body))
        execute("COMMIT")
        execute("BEGIN IMMEDIATE")
        execute(LOG_ROW, (seq + 1, entity, 2, seq, outcome.hash, outcome.header, outcome.body))
        execute(_NEW_HEAD, (2, over.hash, over.head, *over.by, seq + 1, entity))
        execute("COMMIT")

    return Subject(SAME_ROWS, timed(both, clock))


HEAD_ROW = (
    "INSERT INTO head(entity, version, hash, head, kind, state, due, step, worker, dataset, seq) "
    "VALUES (?,?,?,?,?,?,?,?,?,?,?)"
)
LOG_ROW = "INSERT INTO log(seq, entity, version, before, hash, header, body) VALUES (?,?,?,?,?,?,?)"
_NEW_HEAD = (
    "UPDATE head SET version=?, hash=?, head=?, kind=?, state=?, due=?, step=?, worker=?, dataset=?, seq=? "
    "WHERE entity=?"
)


def sample(step: Any, path: Path) -> list[tuple[Head, Entry]]:
    """Return head and entry after each of the two writes of a real step."""
    heads: list[Head] = []

    def seen(n: int) -> int:
        heads.append(engine.store.load_head(entity))  # type: ignore[arg-type]
        return n

    watched = oncemore.step(effect="idempotent", name=step.name)(seen)
    with closing(oncemore.open(path)) as engine:
        entity = f"run/{watched.bind(engine).key(0)}"
        watched.bind(engine)(0)
        heads.append(engine.store.load_head(entity))  # type: ignore[arg-type]
        return list(zip(heads, engine.store.read_entries(entity), strict=True))


class ByHand:
    """What a careful person writes: the intent is on disk before the work, its outcome after it."""

    def __init__(self, path: Path) -> None:
        table = "CREATE TABLE run(key BLOB PRIMARY KEY, arguments BLOB NOT NULL, result BLOB) WITHOUT ROWID"
        self._cursor = durable(path, table)

    def call(self, n: int) -> int:
        arguments = msgspec.json.encode({"n": n})
        key = sha256(arguments).digest()
        self._cursor.execute("INSERT INTO run(key, arguments) VALUES (?,?)", (key, arguments))
        value = work.__wrapped__(n)
        self._cursor.execute("UPDATE run SET result=? WHERE key=?", (msgspec.json.encode(value), key))
        return value

    def again(self, n: int) -> Any:
        return self.select(sha256(msgspec.json.encode({"n": n})).digest())

    def select(self, key: bytes) -> Any:
        ((result,),) = self._cursor.execute("SELECT result FROM run WHERE key=?", (key,)).fetchall()
        return msgspec.json.decode(result)

    def size(self) -> int:
        """Return the bytes of the file, without what its write-ahead log holds twice."""
        pragma = self._cursor.connection.pragma
        return int(pragma("page_count")) * int(pragma("page_size"))


def by_hand(path: Path, clock: Clock = wall) -> Subject:
    """The hand-written step."""
    return Subject(LIMIT, timed(ByHand(path).call, clock))


class WithStdlib:
    """The same by somebody who has nothing but the standard library, as most who write it have."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._execute = self._connection.execute
        assert self._execute("PRAGMA journal_mode=wal").fetchone() == ("wal",)
        self._execute("PRAGMA synchronous=FULL")
        self._execute(
            "CREATE TABLE run(key BLOB PRIMARY KEY, arguments BLOB NOT NULL, result BLOB) WITHOUT ROWID"
        )

    def call(self, n: int) -> int:
        arguments = json.dumps({"n": n}, sort_keys=True).encode()
        key = sha256(arguments).digest()
        self._execute("INSERT INTO run(key, arguments) VALUES (?,?)", (key, arguments))
        value = work.__wrapped__(n)
        self._execute("UPDATE run SET result=? WHERE key=?", (json.dumps(value), key))
        return value

    def select(self, key: bytes) -> Any:
        (result,) = self._execute("SELECT result FROM run WHERE key=?", (key,)).fetchone()
        return json.loads(result)


# DBOS.


def has_dbos() -> bool:
    """Whether DBOS is installed, with a SQLite that it can use."""
    new_enough = sqlite3.sqlite_version_info >= (3, 42) or find_spec("pysqlite3") is not None
    return find_spec("dbos") is not None and new_enough


class Dbos:
    """DBOS in its own process; it is asked for n at a time and says what they took."""

    def __init__(self, where: Path | str, least: int) -> None:
        if isinstance(where, Path):
            where.mkdir()
            where = str(where.absolute())
        script = Path(__file__).with_name("_dbos.py")
        self._least = least
        self._process = subprocess.Popen(
            [sys.executable, str(script), where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def subject(self, name: str, what: str, clock: Clock = wall) -> Subject:
        """Return a subject; with many at once, at least so many that all have something to do."""
        least = self._least if what in ("tasks", "threads") else 1

        def run(n: int) -> int:
            times = max(n, least)
            return self._took(what, times)[0 if clock is wall else 1] * n // times

        return Subject(name, run)

    def _took(self, what: str, n: int) -> list[int]:
        told, answers = self._process.stdin, self._process.stdout
        assert told is not None
        assert answers is not None
        told.write(f"{what} {n}\n")
        told.flush()
        if not (line := answers.readline()):
            raise RuntimeError("DBOS ended; what it said is above")
        return json.loads(line)  # type: ignore[no-any-return]
