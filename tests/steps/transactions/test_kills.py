"""Real processes, killed with SIGKILL at named lines and at any moment: every order is there once.

At any moment: 12 kills in `make test`, 400 in `make torture`.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import oncemore
from oncemore.log.store import HeadQuery
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
KILLS, ORDERS = (400 if os.environ.get("ONCEMORE_TORTURE") else 12), 12


class Scene:
    """Two databases and a store, and processes that work on them."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        name = f"kills_{time.monotonic_ns()}"
        with psycopg.connect(server, autocommit=True) as boss:
            boss.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        self.server = psycopg.conninfo.make_conninfo(server, dbname=name)
        with psycopg.connect(self.server) as connection:
            connection.execute("CREATE TABLE orders(n INTEGER, attempt INTEGER)")
        with closing(sqlite3.connect(folder / "mine.db")) as file:
            file.execute("CREATE TABLE orders(n INTEGER, attempt INTEGER)")

    def start(self, last: int, point: str = "") -> subprocess.Popen[bytes]:
        told = [str(self.folder), self.server, "0", str(last), *([point] if point else [])]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.steps.transactions.victim", *told], cwd=ROOT, stderr=subprocess.PIPE
        )

    def finish(self, last: int) -> None:
        """Let one of them work in peace."""
        process = self.start(last)
        _, complaints = process.communicate(timeout=120)
        assert process.returncode == 0, complaints.decode()

    def check(self, last: int) -> None:
        """Count what is there: each order once, each event once, every link of the log."""
        every = Counter(dict.fromkeys(range(last), 1))
        with closing(sqlite3.connect(self.folder / "mine.db")) as file:
            assert Counter(n for (n,) in file.execute("SELECT n FROM orders")) == every
        with psycopg.connect(self.server) as connection:
            assert Counter(n for (n,) in connection.execute("SELECT n FROM orders")) == every
        with oncemore.open(self.folder / "log.db") as engine:
            beside = engine.store.query_rows("SELECT n FROM orders")  # type: ignore[attr-defined]
            assert Counter(n for (n,) in beside) == every
            assert len(list(engine.store.list_heads(HeadQuery("event", limit=10_000)))) == 3 * last
            verify_chain(engine.store.read_entries())


@pytest.fixture
def scene(tmp_path: Path, server: str) -> Scene:
    return Scene(tmp_path, server)


@pytest.mark.parametrize("point", ["function", "finish", "inside"])
def test_a_process_that_dies_at_this_line_leaves_both_or_neither(scene: Scene, point: str) -> None:
    process = scene.start(2, point)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    scene.finish(2)
    scene.check(2)


def test_processes_that_die_at_any_moment_leave_every_order_once(
    scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    killed = 0
    while killed < KILLS:
        pair = [scene.start(ORDERS) for _ in range(2)]
        time.sleep(chance.uniform(0.25, 0.9))  # most of it is the start of the interpreter
        for process in pair:
            process.kill()
            _, complaints = process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL), complaints.decode()
            killed += 1
    scene.finish(ORDERS)
    scene.check(ORDERS)
    record_property("kills in transactions", killed)
