"""Lists of heads, from an in-memory projection of the log.

A server finds messages by subject and by sequence only. A process that lists heads therefore keeps a table of
them in memory: it is filled with the last message of every subject, without payloads, and brought up to date
before each query. Filling it takes time in proportion to the number of entities, updating it in proportion to
what was written since; a process that never lists heads pays nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import apsw

from oncemore._values import make
from oncemore.log.nats.messages import TOMBSTONE, parse_headers
from oncemore.log.nats.replies import NoServerReply
from oncemore.log.sqlite import queries
from oncemore.log.store import Head, HeadIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.connection import NatsConnection
    from oncemore.log.nats.replies import StreamMessage
    from oncemore.log.store import HeadQuery

STALE_S = 600.0  # a table not used for so long is filled again: tombstones of dropped entities may be purged
LOST_S = 0.05  # how long a consumer may have nothing while the leader has something
BEHIND_S = 10.0  # how long to wait for a consumer that delivers less than the leader has
IDLE_S = 60.0  # the server deletes a consumer that was not used for so long

_TABLES = """
CREATE TABLE head(
    id INTEGER PRIMARY KEY, entity TEXT NOT NULL UNIQUE, version INT, hash BLOB, head BLOB, kind TEXT,
    state TEXT, due REAL, step TEXT, worker TEXT, dataset TEXT, seq INT, at INT);
CREATE INDEX head_due ON head(kind, due) WHERE due IS NOT NULL;
CREATE INDEX head_step ON head(kind, step, due, entity) WHERE due IS NOT NULL;
CREATE UNIQUE INDEX head_at ON head(at);
CREATE INDEX head_seq ON head(seq);
CREATE VIEW log AS SELECT seq, entity, NULL AS body FROM head;
CREATE TABLE tombstone(subject TEXT PRIMARY KEY, at INT, stored REAL);
"""


class HeadProjection:
    """The heads of a log up to a sequence; for use in the connection's loop only."""

    def __init__(self, connection: NatsConnection, stream: str, subjects: str) -> None:
        self._connection = connection
        self._stream, self._subjects = stream, subjects
        self._lock: asyncio.Lock | None = None
        self._create_tables()

    def _create_tables(self) -> None:
        self._database = apsw.Connection(":memory:")
        self._database.execute(_TABLES)
        self._seq = 0  # everything up to this sequence has been read
        self._consumer, self._number = "", 0
        self._used_at = 0.0

    async def list_heads(self, query: HeadQuery, min_seq: int, load_head: Callable[[str], Any]) -> list[Head]:
        """Return the heads that match a query, from a table that is complete up to `min_seq`."""
        await self.catch_up(min_seq)
        if not query.body_contains:
            return [_row_to_head(row) for row in queries.read_head_rows(query, self.query_rows)]
        # The table has no bodies, so a search in bodies loads the head of every candidate.
        heads: list[Head] = []
        for row in queries.read_head_rows(query._replace(body_contains=b"", limit=-1), self.query_rows):
            head = await load_head(row[0])
            if head is not None and query.body_contains in (head.body or b""):
                heads.append(head)
                if len(heads) == query.limit:
                    break
        return heads

    def list_tombstones(self) -> dict[str, tuple[int, float]]:
        """Return the subjects of dropped entities: sequence of the tombstone, and when it was stored."""
        rows = self.query_rows("SELECT * FROM tombstone", ())
        return {subject: (seq, stored) for subject, seq, stored in rows}

    def query_rows(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement on the table as it is."""
        return self._database.execute(sql, values).fetchall()

    async def catch_up(self, min_seq: int) -> None:
        """Read what was written since, at least up to `min_seq`; wait for a server that lags behind."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if time.monotonic() - self._used_at > STALE_S:
                self._create_tables()
            began = time.monotonic()
            while True:
                try:
                    await self._pull_messages()
                except NoServerReply:
                    self._consumer = ""
                    raise
                if self._seq >= min_seq or await self._is_caught_up(min_seq):
                    break
                waited = time.monotonic() - began
                if waited > BEHIND_S:
                    raise NoServerReply("a server is behind")
                # A message that was lost in delivery is not delivered again: a new consumer starts after
                # the last one that arrived.
                if waited > LOST_S:
                    self._consumer = ""
                await asyncio.sleep(0.01)
            self._used_at = time.monotonic()

    async def _is_caught_up(self, min_seq: int) -> bool:
        """Whether the sequences up to `min_seq` that were not read are purged, or not of an entity."""
        message = await self._connection.next_message(self._stream, self._subjects, self._seq + 1)
        return message is None or message.seq > min_seq

    async def _pull_messages(self) -> None:
        if not self._consumer:
            self._consumer, self._number = await self._create_consumer(), 0
        while True:
            page = await self._connection.fetch_messages(self._stream, self._consumer)
            for consumed in page:
                # The consumer does not wait for acknowledgements, so a gap in its numbers is a loss.
                if consumed.number != self._number + 1:
                    raise NoServerReply("messages were lost in delivery")
                self._number = consumed.number
                self._apply_message(consumed.message, consumed.stored)
            if not page or not page[-1].left:
                return

    async def _create_consumer(self) -> str:
        start: dict[str, Any] = (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": self._seq + 1}
            if self._seq
            else {"deliver_policy": "last_per_subject"}
        )
        config = {
            "ack_policy": "none",
            "headers_only": True,
            "filter_subject": self._subjects,
            "inactive_threshold": int(IDLE_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
            **start,
        }
        reply = await self._connection.call_api(
            f"CONSUMER.CREATE.{self._stream}", stream_name=self._stream, config=config
        )
        if "error" in reply:
            raise NoServerReply(str(reply["error"].get("description")))
        return str(reply["name"])

    def _apply_message(self, message: StreamMessage, stored: float) -> None:
        self._seq = message.seq
        kind, head, _ = parse_headers(message)
        if kind == TOMBSTONE:
            self._database.execute("DELETE FROM head WHERE entity=?", (head.entity,))
            values = (message.subject, message.seq, stored)
            self._database.execute("INSERT OR REPLACE INTO tombstone VALUES (?, ?, ?)", values)
            return
        # A writer clears what a tombstone left behind before it uses the name again.
        self._database.execute("DELETE FROM tombstone WHERE subject=?", (message.subject,))
        row = (head.entity, head.version, head.hash, head.head, *head.by, head.seq, message.seq)
        self._database.execute(
            "INSERT OR REPLACE INTO head VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row
        )


def _row_to_head(row: tuple[Any, ...]) -> Head:
    # The columns are in the order of the fields of Head and HeadIndex.
    return make(Head, (*row[:4], make(HeadIndex, row[4:10]), *row[10:12]))
