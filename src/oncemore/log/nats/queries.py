"""Lists of heads of a log in NATS: a projection of it, in this process.

A server finds messages by subject and by number, and by nothing else. So whoever lists heads keeps a table
of them, in memory: filled from the last message of every subject without its content, then kept up by what
came since, each time somebody asks. Only those who list pay for it: to fill it costs what there is of
entities; to keep it up, what is written.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import apsw

from oncemore._values import make
from oncemore.log.nats.connection import Unanswered
from oncemore.log.nats.messages import STONE, told
from oncemore.log.sqlite import queries
from oncemore.log.store import Head, Index

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.connection import Line, Message
    from oncemore.log.store import Query

STALE_S = 600.0  # a table that nobody asked for so long is filled anew: what was dropped may leave no trace
LOST_S = 0.05  # how long a consumer may have nothing where the leader has something
BEHIND_S = 10.0  # how long a consumer is waited for that gives less than the leader has
IDLE_S = 60.0  # the server forgets a consumer that nobody used for so long

_TABLES = """
CREATE TABLE head(
    id INTEGER PRIMARY KEY, entity TEXT NOT NULL UNIQUE, version INT, hash BLOB, head BLOB, kind TEXT,
    state TEXT, due REAL, step TEXT, worker TEXT, dataset TEXT, seq INT, at INT);
CREATE INDEX head_due ON head(kind, due) WHERE due IS NOT NULL;
CREATE INDEX head_step ON head(kind, step, due, entity) WHERE due IS NOT NULL;
CREATE UNIQUE INDEX head_at ON head(at);
CREATE INDEX head_seq ON head(seq);
CREATE VIEW log AS SELECT seq, entity, NULL AS body FROM head;
CREATE TABLE stone(subject TEXT PRIMARY KEY, at INT, stored REAL);
"""


class Projection:
    """The heads of a log, as far as they were read; used in the line's loop only."""

    def __init__(self, line: Line, stream: str, subjects: str) -> None:
        self._line = line
        self._stream, self._subjects = stream, subjects
        self._lock: asyncio.Lock | None = None
        self._empty()

    def _empty(self) -> None:
        self._table = apsw.Connection(":memory:")
        self._table.execute(_TABLES)
        self._place = 0  # the sequence up to which everything was read
        self._consumer, self._number = "", 0
        self._asked = 0.0

    async def heads(self, query: Query, least: int, body: Callable[[str], Any]) -> list[Head]:
        """Return what a query asks for, from a log that was read at least up to a sequence."""
        await self.catch_up(least)
        if not query.tells:
            return [_head(row) for row in queries.rows(query, self._read)]
        found: list[Head] = []
        for row in queries.rows(query._replace(tells=b"", limit=-1), self._read):
            whole = await body(row[0])
            if whole is not None and query.tells in (whole.body or b""):
                found.append(whole)
                if len(found) == query.limit:
                    break
        return found

    def stones(self) -> dict[str, tuple[int, float]]:
        """Return the subjects of dropped entities: where their stone is, and when it was put there."""
        return {subject: (at, stored) for subject, at, stored in self._read("SELECT * FROM stone", ())}

    def _read(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._table.execute(sql, values).fetchall()

    async def catch_up(self, least: int) -> None:
        """Read what came since; from a server that lags behind, until it has come as far as is asked."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if time.monotonic() - self._asked > STALE_S:
                self._empty()
            began = time.monotonic()
            while True:
                try:
                    await self._pull()
                except Unanswered:
                    self._consumer = ""
                    raise
                if self._place >= least or await self._passed(least):
                    break
                waited = time.monotonic() - began
                if waited > BEHIND_S:
                    raise Unanswered("a server is behind")
                if waited > LOST_S:  # what it gave to nobody does not come again: have it from another
                    self._consumer = ""
                await asyncio.sleep(0.01)
            self._asked = time.monotonic()

    async def _passed(self, least: int) -> bool:
        """Whether what is missing up to a sequence is not there any more, or no head's."""
        message = await self._line.next(self._stream, self._subjects, self._place + 1)
        return message is None or message.seq > least

    async def _pull(self) -> None:
        if not self._consumer:
            self._consumer, self._number = await self._subscribe(), 0
        while True:
            found = await self._line.fetch(self._stream, self._consumer)
            for given in found:
                if given.number != self._number + 1:
                    raise Unanswered("messages were lost on the way")
                self._number = given.number
                self._take(given.message, given.stored)
            if not found or not found[-1].left:
                return

    async def _subscribe(self) -> str:
        since: dict[str, Any] = (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": self._place + 1}
            if self._place
            else {"deliver_policy": "last_per_subject"}
        )
        config = {
            "ack_policy": "none",
            "headers_only": True,
            "filter_subject": self._subjects,
            "inactive_threshold": int(IDLE_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
            **since,
        }
        said = await self._line.api(
            f"CONSUMER.CREATE.{self._stream}", stream_name=self._stream, config=config
        )
        if "error" in said:
            raise Unanswered(str(said["error"].get("description")))
        return str(said["name"])

    def _take(self, message: Message, stored: float) -> None:
        self._place = message.seq
        kind, head, _ = told(message)
        if kind == STONE:
            self._table.execute("DELETE FROM head WHERE entity=?", (head.entity,))
            values = (message.subject, message.seq, stored)
            self._table.execute("INSERT OR REPLACE INTO stone VALUES (?, ?, ?)", values)
            return
        self._table.execute(
            "DELETE FROM stone WHERE subject=?", (message.subject,)
        )  # what it left is cleared
        row = (head.entity, head.version, head.hash, head.head, *head.by, head.seq, message.seq)
        self._table.execute(
            "INSERT OR REPLACE INTO head VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row
        )


def _head(row: tuple[Any, ...]) -> Head:
    entity, version, digest, head, *_ = row
    return make(Head, (entity, version, digest, head, make(Index, row[4:10]), row[10], row[11]))
