"""Reading a log in NATS: where entities stand, heads, the entries of one and of all.

Heads and what decides anything are asked of the stream's leader. Pages of entries come from any replica, and
one that lags behind has less; so every page that ends is compared with what the leader knows.

Forgetting goes on while somebody reads: what is left of an entry is written before its message is purged. So
messages are read first and what is left of others after them: each entry is met in one of the two.
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
from oncemore.log.nats import messages as frames
from oncemore.log.nats.connection import Unanswered
from oncemore.log.nats.messages import HUSK, STONE
from oncemore.log.record import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oncemore.log.nats.connection import Line, Message
    from oncemore.log.nats.messages import Frame, Old, Subjects
    from oncemore.log.nats.queries import Projection
    from oncemore.log.store import Entry, Head

PATIENCE_S = 30.0  # how long somebody asks a server that does not answer
BEHIND_S = 0.02
KNOWN = 50_000  # entities whose last sequence is remembered


class At(Value):
    """Where an entity stands: its version, the sequence of its last message, the hash of its last entry."""

    version: int = 0
    seq: int = 0
    hash: bytes = NOWHERE


class Chain(Value):
    """What there is of an entity.

    last     the sequence of its last message
    stone    that of its last stone, which everything before it is under
    frames   its entries that are still whole, by version
    olds     what is left of the others, by version
    olds_at  the sequence of the last message that says so
    """

    last: int
    stone: int
    frames: dict[int, Frame]
    olds: dict[int, Old]
    olds_at: int

    def entries(self, entity: str) -> list[Entry]:
        """Return its entries in their order."""
        found = {number: frame.entry for number, frame in self.frames.items() if frame.entry is not None}
        found |= {number: frames.without_body(entity, old) for number, old in self.olds.items()}
        return [found[number] for number in sorted(found)]


class Log:
    """A log, as it is read; used in the line's loop only."""

    def __init__(self, line: Line, where: Subjects) -> None:
        self.line, self.where = line, where
        self._known: OrderedDict[str, At] = OrderedDict()
        self.acked = 0  # the last sequence that this process was told of
        self.clock = (0.0, 0.0)  # by our own clock, when the server said what time it is; and what it said

    # Where entities stand.

    def known(self, entity: str, version: int) -> At | None:
        """Return where an entity at a version stands, as remembered; None: the leader must be asked."""
        known = self._known.get(entity)
        if known is None:
            return At() if version == 0 else None
        return known if known.version == version else None

    async def stands(self, entity: str, version: int) -> At:
        """Return where an entity stands: as remembered if that fits, else as the leader says."""
        return self.known(entity, version) or self.note(entity, await self.last(entity))

    async def last(self, entity: str) -> Message | None:
        """Return the last message of an entity."""
        return await self.line.last(self.where.stream, self.where.entity(entity))

    def note(self, entity: str, message: Message | None) -> At:
        """Remember where an entity stands by its last message."""
        if message is None:
            self._known.pop(entity, None)
            return At()
        kind, head, _ = frames.told(message)
        if head.entity != entity:
            raise StoreError(f"{head.entity!r} and {entity!r} have one subject, {message.subject}")
        found = At(0, message.seq) if kind == STONE else At(head.version, message.seq, head.hash)
        self.remember(entity, found)
        return found

    def remember(self, entity: str, at: At) -> None:
        """Remember where an entity stands; it is a guess that a write puts to the proof."""
        self._known[entity] = at
        self._known.move_to_end(entity)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Know nothing any more."""
        self._known.clear()

    # One entity.

    async def head(self, entity: str) -> Head | None:
        """Return the head of an entity."""
        message = await self.last(entity)
        if self.note(entity, message).version == 0 or message is None:
            return None
        frame = frames.read(message)
        if frame.kind == HUSK:
            last = await self.line.at(self.where.stream, frame.head.seq)
            if last is None:
                return frame.head
            return frame.head._replace(body=(await self.whole(frames.read(last))).head.body)
        return (await self.whole(frame)).head

    async def whole(self, frame: Frame) -> Frame:
        """Return a frame with its body, if that is elsewhere."""
        if not frame.parts:
            return frame
        subject = self.where.parts + frames.token(frame.head.entity)
        body: list[bytes] = []
        seq = frame.first
        while len(body) < frame.parts:
            page = await self.line.page(self.where.stream, subject, seq)
            page = [part for part in page if part.seq < frame.at][: frame.parts - len(body)]
            if not page or [part.seq for part in page] != list(range(seq, seq + len(page))):
                raise Unanswered(
                    "a part of a body is not there: it is being forgotten, or a server is behind"
                )
            body += [part.data for part in page]
            seq += len(page)
        return frames.with_body(frame, b"".join(body))

    async def chain(self, entity: str) -> Chain | None:
        """Return what there is of an entity; None if there is nothing."""
        last = await self.last(entity)
        if last is None:
            return None
        self.note(entity, last)
        found: dict[int, Frame] = {}
        stone = seq = 0
        while seq < last.seq:
            page = await self.line.page(self.where.stream, last.subject, seq + 1)
            if not page:
                raise Unanswered("a server is behind")
            for message in page:
                seq = message.seq
                frame = frames.read(message)
                if frame.kind == STONE:
                    found.clear()
                    stone = seq
                elif frame.entry is not None:
                    found[frame.entry.version] = await self.whole(frame)
        at, olds = await self.olds(entity)
        kept = {old.version: old for old in olds if old.seq > stone}
        return Chain(seq, stone, found, kept, at)

    async def olds(self, entity: str) -> tuple[int, list[Old]]:
        """Return what is left of an entity's purged entries, and the sequence of the last that says so."""
        subject = self.where.olds + frames.token(entity)
        last = await self.line.last(self.where.stream, subject)
        found: list[Old] = []
        seq = 0
        while last is not None and seq < last.seq:
            page = await self.line.page(self.where.stream, subject, seq + 1)
            if not page:
                raise Unanswered("a server is behind")
            for message in page:
                found += frames.read_olds(message)[1]
            seq = page[-1].seq
        return seq, found

    # All of them.

    async def info(self) -> dict[str, Any]:
        """Return the state of the stream, as its leader tells it."""
        said = await self.line.api(f"STREAM.INFO.{self.where.stream}")
        if "error" in said:
            raise Unanswered(str(said["error"].get("description")))
        self.clock = (time.monotonic(), seconds(said["ts"]))
        state: dict[str, Any] = said["state"]
        return state

    async def patiently(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Ask until there is an answer, for a while; what is asked so may be asked again."""
        ends = 0.0
        while True:
            try:
                return await ask()
            except Unanswered as error:
                now = time.monotonic()
                ends = ends or now + PATIENCE_S
                if now > ends:
                    shown = self.line.where.shown
                    raise StoreError(f"{shown} does not answer since {PATIENCE_S:g} s ({error})") from None
            await asyncio.sleep(0.05)


class Reader:
    """Somebody who goes through the whole log, page by page."""

    def __init__(self, log: Log, projection: Projection, after: int) -> None:
        self._log, self._projection = log, projection
        self._seq = self._olds_at = after  # what is left of an entry was written after it
        self._end = -1
        self._bare: list[tuple[int, int, Entry]] = []
        self._stones: dict[str, tuple[int, float]] = {}

    async def begin(self) -> None:
        """Find out how far the log goes now, and what was dropped."""
        info = await self._log.info()
        await self._projection.catch_up(info["last_seq"])
        self._stones = self._projection.stones()
        self._end = info["last_seq"]

    async def page(self) -> list[Entry] | None:
        """Return some more entries; None: there are no more. It changes nothing if it fails."""
        if self._seq >= self._end:
            return None
        line, where = self._log.line, self._log.where
        page = await line.page(where.stream, f"{where.entities}*", self._seq + 1)
        if not page:
            more = await line.next(where.stream, f"{where.entities}*", self._seq + 1)
            if more is not None and more.seq <= self._end:
                await asyncio.sleep(BEHIND_S)
                raise Unanswered("a server is behind")
        upto = page[-1].seq if page and page[-1].seq < self._end else self._end
        found, lacking = await self._read([message for message in page if message.seq <= upto])
        await self._left()
        if lacking - {seq for seq, _, _ in self._bare}:
            raise Unanswered("a part of a body is not there")
        while self._bare and self._bare[0][0] <= upto:
            seq, _, entry = heappop(self._bare)
            found[seq] = entry
        self._seq = upto
        return [found[seq] for seq in sorted(found)]

    async def _read(self, page: list[Message]) -> tuple[dict[int, Entry], set[int]]:
        """Return the entries of messages, and the sequences of those whose bodies are being forgotten."""
        found: dict[int, Entry] = {}
        lacking: set[int] = set()
        for message in page:
            frame = frames.read(message)
            if frame.entry is None or message.seq < self._stones.get(message.subject, (0, 0.0))[0]:
                continue
            try:
                frame = await self._log.whole(frame)
            except Unanswered:
                lacking.add(message.seq)
            assert frame.entry is not None
            found[message.seq] = frame.entry
        return found, lacking

    async def _left(self) -> None:
        """Read what was left of entries since the last look, which was before their messages went."""
        line, where = self._log.line, self._log.where
        subject = f"{where.olds}*"
        newest = await line.last(where.stream, subject)
        while newest is not None and self._olds_at < newest.seq:
            page = await line.page(where.stream, subject, self._olds_at + 1)
            if not page:
                raise Unanswered("a server is behind")
            for message in page:
                self._olds_at = message.seq
                dropped = self._stones.get(where.entities + message.subject.rpartition(".")[2], (0, 0.0))[0]
                entity, olds = frames.read_olds(message)
                for old in olds:
                    if old.seq > max(self._seq, dropped):
                        bare = frames.without_body(entity, old)
                        heappush(self._bare, (old.seq, message.seq, bare))


def seconds(text: str) -> float:
    """Read the time in an answer of the server."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")
