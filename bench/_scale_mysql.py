"""The subjects of scale.py on MySQL: our steps, and two commits by hand.

By hand means: PyMySQL, a row with 600 bytes that is inserted before the work and updated after it; two
commits, two round trips, nothing else. PyMySQL has no prepared statements. Everybody has a database of
their own on one server, which syncs at every commit (`innodb_flush_log_at_trx_commit=1`, its default).
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from _durable import AT_ONCE, OURS, TASKS, in_tasks, in_threads, ours, timed, wall
from _measure import Effort, Goal, Group, Subject, at_least, interleaved
from _scale_postgres import LONG, cost_table

import oncemore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

RAW = "two commits by hand, PyMySQL"
ALONE, MANY = "MySQL, a step at a time", f"MySQL, {AT_ONCE} steps at once"
TABLE = (
    "create table run(`key` varbinary(32) primary key, arguments blob not null, result blob) engine = InnoDB"
)


def by_hand(url: str, opened: ExitStack) -> Subject:
    """Two commits, one after the other."""
    cursor = opened.enter_context(mariadb.connect(url)).cursor()
    cursor.execute(TABLE)
    arguments, result = os.urandom(600), b"1"

    def both(n: int) -> None:
        key = n.to_bytes(32, "big")
        cursor.execute("insert into run(`key`, arguments) values (%s, %s)", (key, arguments))
        cursor.execute("update run set result = %s where `key` = %s", (result, key))

    return Subject(RAW, timed(both, wall))


def groups(url: str, effort: Effort, opened: ExitStack) -> Iterator[Group]:
    """One step at a time beside two commits by hand; 32 at once beside that."""
    names = count(1)

    def database() -> str:
        name = f"bench_{next(names)}"
        mariadb.create_database(url, name)
        return f"{url}/{name}"

    def engine() -> oncemore.Engine:
        return opened.enter_context(closing(oncemore.open(database())))

    alone = ours(engine())
    yield cost_table(ALONE, RAW, interleaved([alone, by_hand(database(), opened)], effort))
    runner, pool = opened.enter_context(asyncio.Runner()), opened.enter_context(ThreadPoolExecutor(AT_ONCE))
    together = [in_tasks(engine(), runner), in_threads(engine(), pool)]
    subjects = [alone, *(at_least(one, LONG * AT_ONCE if effort.rounds > 3 else 1) for one in together)]
    yield cost_table(MANY, OURS, interleaved(subjects, effort))


def goals(found: dict[str, Group]) -> list[Goal]:
    """Judge what was measured."""
    alone, many = found[ALONE].of(OURS).ratio, found[MANY].of(TASKS).ratio
    return [
        Goal("MySQL", "a step beside two commits by hand", alone, 0.4, 0.5, most=False),
        Goal("MySQL", f"{AT_ONCE} tasks beside one at a time", many, 2, None, most=False),
    ]
