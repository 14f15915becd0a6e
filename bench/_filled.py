"""A store that holds many runs already: copies of a real one's rows, under other keys, written in bulk."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import apsw
from _durable import HEAD_ROW, LOG_ROW, sample, work

from oncemore.log.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.log.store import Entry, Head, HeadIndex

DAY_S = 86_400.0
IN_BULK = {"journal_mode": "off", "synchronous": "off", "cache_size": -500_000}


def fill(path: Path, runs: int, due: int) -> None:
    """Make a store with so many finished runs, a tenth as many parked until tomorrow, and some that are due.

    The file is written out and read through, so that neither a backlog of the system nor its empty memory
    is measured with what comes then.
    """
    SqliteStore(path).close()
    rows = sample(work, path.with_suffix(".sample"))
    finished = rows[-1][0].by
    waiting = finished._replace(state="SOFT_FAIL", due=time.time() + DAY_S)
    connection = apsw.Connection(str(path))
    for pragma, value in IN_BULK.items():
        connection.pragma(pragma, value)
    with connection:
        _copy(connection, rows, 0, runs, finished)
        _copy(connection, rows, runs, runs // 10, waiting)
        _copy(connection, rows, runs + runs // 10, due, waiting._replace(due=1.0))
    connection.close()
    _settle(path)


def _copy(
    connection: apsw.Connection, rows: list[tuple[Head, Entry]], first: int, n: int, by: HeadIndex
) -> None:
    """Store a run's last head, looked up by something else, and its two entries, n times."""
    (_, claim), (over, outcome) = rows
    keys = {at: f"run/{sha256(b'%d' % at).hexdigest()}" for at in range(first, first + n)}

    def entries() -> Iterator[tuple[Any, ...]]:
        for at, key in keys.items():
            yield 2 * at + 1, key, 1, 0, claim.hash, claim.header, claim.body
            yield 2 * at + 2, key, 2, 2 * at + 1, outcome.hash, outcome.header, outcome.body

    heads = ((key, 2, over.hash, over.head, *by, 2 * at + 2) for at, key in keys.items())
    connection.executemany(LOG_ROW, entries())
    connection.executemany(HEAD_ROW, heads)


def _settle(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        while file.read(1 << 20):
            pass
