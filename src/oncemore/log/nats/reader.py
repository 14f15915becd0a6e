"""Reading a log in NATS: positions of entities, heads, the entries of one entity and of all.

Heads, and everything that a decision rests on, are requested from the stream's leader. Pages of entries come
from any replica, and one that lags behind has fewer; so the end of the pages is compared with the leader.

Bodies may be pruned while a reader is at work. Pruning stores the rest of an entry before it purges the
message, so a reader reads the messages first and the pruned entries after them: it finds every entry in one
of the two.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from datetime import datetime
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.log.nats import messages
from oncemore.log.nats.messages import HEAD_ONLY, TOMBSTONE
from oncemore.log.nats.replies import NoServerReply
from oncemore.log.record import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from oncemore.log.nats.connection import NatsConnection
    from oncemore.log.nats.messages import LogMessage, LogSubjects, OutgoingMessage, PrunedEntry
    from oncemore.log.nats.queries import HeadProjection
    from oncemore.log.nats.replies import StreamMessage
    from oncemore.log.store import Batch, Entry, Head

GIVE_UP_S = 30.0  # how long a question is repeated when no server answers
BEHIND_PAUSE_S = 0.02
MAX_POSITIONS = 50_000  # entities whose position is remembered


class EntityPosition(Value):
    """An entity's version, the sequence of its last message and the hash of its last entry."""

    version: int = 0
    seq: int = 0
    hash: bytes = NOWHERE


class EntityChain(Value):
    """All that the stream has of an entity.

    last_seq    the sequence of its last message
    entries     its entries that still have their bodies, by version
    pruned      the pruned entries, by version
    pruned_seq  the sequence of the last message with pruned entries
    """

    last_seq: int
    entries: dict[int, LogMessage]
    pruned: dict[int, PrunedEntry]
    pruned_seq: int

    def list_entries(self, entity: str) -> list[Entry]:
        """Return the entries in order."""
        found = {number: entry for number, message in self.entries.items() if (entry := message.entry)}
        found |= {number: messages.restore_pruned_entry(entity, old) for number, old in self.pruned.items()}
        return [found[number] for number in sorted(found)]


class NatsLog:
    """A log and a cache of its entities' positions; for use in the connection's loop only."""

    def __init__(self, connection: NatsConnection, subjects: LogSubjects) -> None:
        self.connection, self.subjects = connection, subjects
        self._positions: OrderedDict[str, EntityPosition] = OrderedDict()
        self.clock = (0.0, 0.0)  # our monotonic time when the server last reported its time, and that time

    # Positions

    def known_position(self, entity: str, version: int) -> EntityPosition | None:
        """Return the remembered position of an entity at a version; None: the leader must be asked."""
        position = self._positions.get(entity)
        if position is None:
            # A writer that expects no entity may guess that there is none: the server checks it.
            return EntityPosition() if version == 0 else None
        return position if position.version == version else None

    async def find_position(self, entity: str, version: int) -> EntityPosition:
        """Return the remembered position if it has the version; else the one that the leader reports."""
        return self.known_position(entity, version) or await self.load_position(entity)

    async def load_position(self, entity: str) -> EntityPosition:
        """Return and remember the position that the leader reports."""
        return self.remember_message(entity, await self.load_last_message(entity))

    async def load_last_message(self, entity: str) -> StreamMessage | None:
        """Return the last message of an entity, from the leader."""
        return await self.connection.last_message(self.subjects.stream, self.subjects.entity_subject(entity))

    def remember_message(self, entity: str, message: StreamMessage | None) -> EntityPosition:
        """Remember and return the position of an entity, given its last message."""
        if message is None:
            self._positions.pop(entity, None)
            return EntityPosition()
        kind, head, _ = messages.parse_headers(message)
        # Subjects are digests of names: two names with one digest must not share a chain.
        if head.entity != entity:
            raise StoreError(f"{head.entity!r} and {entity!r} have one subject, {message.subject}")
        position = (
            EntityPosition(0, message.seq)
            if kind == TOMBSTONE
            else EntityPosition(head.version, message.seq, head.hash)
        )
        self.remember_position(entity, position)
        return position

    def remember_position(self, entity: str, position: EntityPosition) -> None:
        """Remember a position; it may be outdated, which the server detects at the next write."""
        self._positions[entity] = position
        self._positions.move_to_end(entity)
        if len(self._positions) > MAX_POSITIONS:
            self._positions.popitem(last=False)

    def clear_cache(self) -> None:
        """Forget all remembered positions."""
        self._positions.clear()

    def build_messages(
        self, batch: Batch, positions: Mapping[str, EntityPosition], append_id: str
    ) -> list[OutgoingMessage]:
        """Return the messages of a batch, for this log's subjects and the server's largest payload."""
        return messages.build_batch_messages(
            batch, positions, append_id, self.subjects, self.connection.max_payload
        )

    # One entity

    async def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity, with the body of its last entry."""
        last = await self.load_last_message(entity)
        if self.remember_message(entity, last).version == 0 or last is None:
            return None
        message = messages.parse_message(last)
        if message.kind == HEAD_ONLY:
            # The body is in the entry that the head belongs to, unless it was pruned.
            entry = await self.connection.message_at(self.subjects.stream, message.head.seq)
            if entry is None:
                return message.head
            whole = await self.load_with_body(messages.parse_message(entry))
            return message.head._replace(body=whole.head.body)
        return (await self.load_with_body(message)).head

    async def load_with_body(self, message: LogMessage) -> LogMessage:
        """Return a message with its body, which is loaded if it is stored in parts."""
        if not message.part_count:
            return message
        subject = self.subjects.parts + messages.entity_token(message.head.entity)
        body: list[bytes] = []
        seq = message.first_part
        while len(body) < message.part_count:
            page = await self.connection.read_page(self.subjects.stream, subject, seq)
            # Parts of later entries are on the same subject.
            page = [part for part in page if part.seq < message.seq][: message.part_count - len(body)]
            if not page or [part.seq for part in page] != list(range(seq, seq + len(page))):
                raise NoServerReply("a part of a body is missing: it is being pruned, or a server is behind")
            body += [part.data for part in page]
            seq += len(page)
        return messages.with_body(message, b"".join(body))

    async def load_chain(self, entity: str) -> EntityChain | None:
        """Return all that the stream has of an entity; None if it has nothing."""
        last = await self.load_last_message(entity)
        if last is None:
            return None
        self.remember_message(entity, last)
        entries: dict[int, LogMessage] = {}
        tombstone_seq = seq = 0
        while seq < last.seq:
            page = await self.connection.read_page(self.subjects.stream, last.subject, seq + 1)
            if not page:
                raise NoServerReply("a server is behind")
            for stored in page:
                seq = stored.seq
                message = messages.parse_message(stored)
                if message.kind == TOMBSTONE:
                    # Entries before it belong to an earlier entity of the same name.
                    entries.clear()
                    tombstone_seq = seq
                elif message.entry is not None:
                    entries[message.entry.version] = await self.load_with_body(message)
        pruned_seq, pruned = await self.load_pruned_entries(entity)
        return EntityChain(
            seq, entries, {old.version: old for old in pruned if old.seq > tombstone_seq}, pruned_seq
        )

    async def load_pruned_entries(self, entity: str) -> tuple[int, list[PrunedEntry]]:
        """Return an entity's pruned entries, and the sequence of the last message that stores them."""
        subject = self.subjects.pruned + messages.entity_token(entity)
        last = await self.connection.last_message(self.subjects.stream, subject)
        pruned: list[PrunedEntry] = []
        seq = 0
        while last is not None and seq < last.seq:
            page = await self.connection.read_page(self.subjects.stream, subject, seq + 1)
            if not page:
                raise NoServerReply("a server is behind")
            for message in page:
                pruned += messages.decode_pruned_entries(message)[1]
            seq = page[-1].seq
        return seq, pruned

    # The stream

    async def stream_info(self) -> dict[str, Any]:
        """Return the state of the stream, from its leader."""
        reply = await self.connection.call_api(f"STREAM.INFO.{self.subjects.stream}")
        if "error" in reply:
            raise NoServerReply(str(reply["error"].get("description")))
        self.clock = (time.monotonic(), parse_time(reply["ts"]))
        state: dict[str, Any] = reply["state"]
        return state

    async def ask_with_retries(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat a question until a server answers, for a while; the question must be repeatable."""
        deadline = 0.0
        while True:
            try:
                return await ask()
            except NoServerReply as error:
                now = time.monotonic()
                deadline = deadline or now + GIVE_UP_S
                if now > deadline:
                    shown = self.connection.address.shown
                    raise StoreError(
                        f"{shown} does not answer: no reply for {GIVE_UP_S:g} s ({error})"
                    ) from None
            await asyncio.sleep(0.05)


class LogPageReader:
    """Reads the whole log page by page."""

    def __init__(self, log: NatsLog, projection: HeadProjection, after: int) -> None:
        self._log, self._projection = log, projection
        # A pruned entry is stored after the entry itself, so `after` is early enough for both.
        self._seq = self._pruned_seq = after
        self._last_seq = -1
        self._pruned: list[tuple[int, int, Entry]] = []  # a heap by the entries' sequences
        self._tombstones: dict[str, tuple[int, float]] = {}

    async def start_reading(self) -> None:
        """Find out the last sequence of the log, and the dropped entities."""
        info = await self._log.stream_info()
        await self._projection.catch_up(info["last_seq"])
        self._tombstones = self._projection.list_tombstones()
        self._last_seq = info["last_seq"]

    async def next_page(self) -> list[Entry] | None:
        """Return some more entries; None at the end. After an error the same call may be repeated."""
        if self._seq >= self._last_seq:
            return None
        connection, subjects = self._log.connection, self._log.subjects
        page = await connection.read_page(subjects.stream, f"{subjects.entities}*", self._seq + 1)
        if not page:
            more = await connection.next_message(subjects.stream, f"{subjects.entities}*", self._seq + 1)
            if more is not None and more.seq <= self._last_seq:
                await asyncio.sleep(BEHIND_PAUSE_S)
                raise NoServerReply("a server is behind")
        # Entries that were appended since `start_reading` are left to the next reader.
        upto = page[-1].seq if page and page[-1].seq < self._last_seq else self._last_seq
        entries, incomplete = await self._parse_page([message for message in page if message.seq <= upto])
        await self._read_pruned()
        # An entry without its parts must have been pruned; otherwise a replica lags behind.
        if incomplete - {seq for seq, _, _ in self._pruned}:
            raise NoServerReply("a part of a body is missing")
        while self._pruned and self._pruned[0][0] <= upto:
            seq, _, entry = heappop(self._pruned)
            entries[seq] = entry
        self._seq = upto
        return [entries[seq] for seq in sorted(entries)]

    async def _parse_page(self, page: list[StreamMessage]) -> tuple[dict[int, Entry], set[int]]:
        """Return the entries of messages, and the sequences of those whose bodies are being pruned."""
        entries: dict[int, Entry] = {}
        incomplete: set[int] = set()
        for stored in page:
            message = messages.parse_message(stored)
            if message.entry is None or stored.seq < self._tombstones.get(stored.subject, (0, 0.0))[0]:
                continue
            try:
                message = await self._log.load_with_body(message)
            except NoServerReply:
                incomplete.add(stored.seq)
            assert message.entry is not None
            entries[stored.seq] = message.entry
        return entries, incomplete

    async def _read_pruned(self) -> None:
        """Read the entries that were pruned since the last call."""
        connection, subjects = self._log.connection, self._log.subjects
        subject = f"{subjects.pruned}*"
        newest = await connection.last_message(subjects.stream, subject)
        while newest is not None and self._pruned_seq < newest.seq:
            page = await connection.read_page(subjects.stream, subject, self._pruned_seq + 1)
            if not page:
                raise NoServerReply("a server is behind")
            for message in page:
                self._pruned_seq = message.seq
                token = message.subject.rpartition(".")[2]
                tombstone_seq = self._tombstones.get(subjects.entities + token, (0, 0.0))[0]
                entity, pruned = messages.decode_pruned_entries(message)
                for old in pruned:
                    if old.seq > max(self._seq, tombstone_seq):
                        entry = messages.restore_pruned_entry(entity, old)
                        heappush(self._pruned, (old.seq, message.seq, entry))


def parse_time(text: str) -> float:
    """Parse a timestamp of the server, which has up to nine digits after the point."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}+00:00").timestamp() + float(f"0.{fraction or 0}")
