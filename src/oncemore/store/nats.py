"""A store in NATS JetStream: the log is a stream, an entity a subject, a head the last message of it.

**Safety** rests on one thing: a message is stored only if its subject's last message has the sequence that
it expects, which the server checks. Several entities are one atomic batch. Nothing is decided by what was
read, by a window of duplicates, by an acknowledgement of a consumer or by a clock.

**A lost answer** is found again by looking: the first entry after the expected one is ours (it carries our
mark), somebody else's (then ours can never be stored any more), or not there yet; then the same is sent
again, which cannot store it twice. Who gives up after `GIVE_UP_S` is told that nobody knows.

**Durability** is what the server gives, and by default it gives little: it acknowledges before it syncs, up
to two minutes before. Set `sync_interval: always`. No client can see that setting; only the monitoring port
tells, so name it (`?monitor=http://host:8222`): a server that does not sync is refused then, and without it
`facts()` says that nobody has checked.

Not here: rows of the user's own in our transaction (`joins`), and proof that a worker is gone other than its
lease. See `docs/guarantees.md`.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
import weakref
from _thread import allocate_lock
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore.core.record import NOWHERE
from oncemore.core.value import Value
from oncemore.errors import StoreError, UsageError
from oncemore.store import nats_frames as frames
from oncemore.store.base import Conflict, Facts, Head, Room, Stored, Weight, check_batch
from oncemore.store.combine import Op, asleep, release
from oncemore.store.nats_frames import ENTRY, HUSK, STONE
from oncemore.store.nats_list import Projection
from oncemore.store.nats_server import Server, prepare, refused
from oncemore.store.nats_wire import Line, Unanswered, address, nats

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.store.base import Batch, Checked, Entry, Query, Write
    from oncemore.store.nats_wire import Answer, Message

GIVE_UP_S = 30.0
PATIENCE_S = 10.0  # how long a reader asks a server that does not answer
LOOK_S = 0.03  # how often `changed` looks
CLOCK_S = 10.0  # how long the server's time is reckoned with our own clock before it is asked again
KNOWN = 50_000  # entities whose last sequence is remembered
MOST = 400  # entities that are pruned or dropped together
STONES_S = 3600.0  # how long a stone stays: longer than any projection goes without looking

WRONG_SEQUENCE, IN_FLIGHT, ABANDONED, TOO_MANY = 10071, 10164, 10176, 10210
LOOK_AGAIN = {WRONG_SEQUENCE, IN_FLIGHT, ABANDONED, TOO_MANY, 0}


class At(Value):
    """Where an entity stands: its version, the sequence of its last message, the hash of its last entry."""

    version: int = 0
    seq: int = 0
    hash: bytes = NOWHERE


class Present:
    """A worker that is here. Nothing but its lease tells others."""

    def close(self) -> None:
        """Leave."""


class NatsStore:
    """A store in a JetStream server or cluster."""

    joins = False

    def __init__(self, url: str) -> None:
        self._where = address(url)
        name = self._where.namespace
        self._stream = f"{name}_LOG"
        self._entities, self._olds, self._guard = f"{name}.e.", f"{name}.h.", f"{name}.g"
        self._closed = False
        self._fresh()
        try:
            self._server: Server = self._line.do(partial(prepare, self._line, self._stream))
        except BaseException:
            self._line.close()
            raise
        _open_stores.add(self)

    def _fresh(self) -> None:
        self._line = Line(self._where)
        self._known: OrderedDict[str, At] = OrderedDict()
        self._projection = Projection(self._line, self._stream, f"{self._entities}*")
        self._acked = 0
        self._clock = (0.0, 0.0)
        self._latest = 0.0

    def forked(self) -> None:
        """In a forked child: leave what was inherited alone, and make everything anew."""
        _left_alone.append((self._line, self._projection))
        self._fresh()

    # Appending.

    def append(self, batch: Batch) -> Op:
        """Ask for a batch to be stored."""
        check_batch(batch)
        if batch.also is not None:
            raise UsageError("NATS has no tables; on_commit() needs SQLite or PostgreSQL")
        self._check_open()
        return Op(self, batch)

    def wait(self, op: Op) -> None:
        """Send it, and block until it is stored or refused."""
        op.gate = allocate_lock()
        op.gate.acquire()
        self._begin(op)
        op.gate.acquire()

    async def wait_in_loop(self, op: Op) -> None:
        """Send it, and wait in a task."""
        await asleep(op, self._begin)

    def _begin(self, op: Op) -> None:
        self._line.begin(partial(self._serve, op))

    async def _serve(self, op: Op) -> None:
        try:
            op.answer = await self._append(op.batch)
        except asyncio.CancelledError:
            op.error = StoreError(f"{self._where.shown}: the store is closed")
        except Exception as error:  # noqa: BLE001 - told to who asked
            op.error = error
        finally:
            release([op])

    async def _append(self, batch: Batch) -> Stored | Conflict:
        mine, ends = secrets.token_hex(16), time.monotonic() + GIVE_UP_S
        asked = {**batch.guards, **{write.entity: write.expect for write in batch.writes}}
        known: dict[str, At] = {}
        for entity, version in asked.items():
            found = await self._patiently(partial(self._stands, entity, version))
            if found.version != version:
                return Conflict(entity, await self._patiently(partial(self._head, entity)))
            known[entity] = found
        pause = 0.001
        while True:
            last = ""
            with suppress(Unanswered):
                answer = await self._send(batch, known, mine)
                if answer.seq:
                    return self._stored(batch, known, answer.seq)
                last = f"{answer.error}: {answer.text}"
                if answer.error not in LOOK_AGAIN:
                    raise refused(self._where, answer)
            with suppress(Unanswered):
                outcome = await self._look(batch, known, mine)
                if outcome is not None:
                    return outcome
            if time.monotonic() > ends:
                raise StoreError(
                    f"{self._where.shown}: no answer within {GIVE_UP_S:g} s{last and f' ({last})'}; "
                    "what was sent may still be stored, and must be read again"
                )
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - only spreads those who wait
            pause = min(2 * pause, 0.25)

    async def _stands(self, entity: str, version: int) -> At:
        """Return where an entity stands: as remembered if that fits, else as the leader says."""
        if version == 0 and entity not in self._known:
            return At()
        known = self._known.get(entity)
        if known is not None and known.version == version:
            return known
        message = await self._line.last(self._stream, self._subject(entity))
        return self._note(entity, message)

    def _note(self, entity: str, message: Message | None) -> At:
        """Remember where an entity stands by its last message."""
        if message is None:
            self._known.pop(entity, None)
            return At()
        kind, head, _ = frames.told(message)
        if head.entity != entity:
            raise StoreError(f"{head.entity!r} and {entity!r} have one subject, {message.subject}")
        found = At(0, message.seq) if kind == STONE else At(head.version, message.seq, head.hash)
        self._remember(entity, found)
        return found

    def _remember(self, entity: str, at: At) -> None:
        self._known[entity] = at
        self._known.move_to_end(entity)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    async def _send(self, batch: Batch, known: Mapping[str, At], mine: str) -> Answer:
        messages: list[tuple[str, bytes, dict[str, str]]] = []
        for entity in batch.guards:
            headers = {frames.EXPECT: str(known[entity].seq), frames.EXPECT_OF: self._subject(entity)}
            messages.append((self._guard, b"", {**headers, frames.APPEND: mine}))
        for write in batch.writes:
            at = known[write.entity]
            data, headers = frames.entry(write, at.hash, mine)
            messages.append((self._subject(write.entity), data, {**headers, frames.EXPECT: str(at.seq)}))
        return await self._publish(messages)

    async def _publish(self, messages: list[tuple[str, bytes, dict[str, str]]]) -> Answer:
        """Send messages as one."""
        together = secrets.token_hex(16)
        for number, (_, _, headers) in enumerate(messages, 1):
            headers[frames.STREAM] = self._stream
            if len(messages) > 1:
                headers |= {frames.BATCH: together, frames.NUMBER: str(number)}
        if len(messages) > 1:
            messages[-1][2][frames.COMMIT] = "1"
        try:
            return await self._line.publish(messages)
        except nats.errors.MaxPayloadError:
            largest = max(len(data) for _, data, _ in messages)
            raise UsageError(
                f"{largest:,} bytes are more than a message of this server may have; keep large results as "
                "artifacts, or raise max_payload in its configuration"
            ) from None

    def _stored(self, batch: Batch, known: Mapping[str, At], last: int) -> Stored:
        first = last - len(batch.writes) + 1
        return self._settled(batch, tuple(range(first, last + 1)))

    def _settled(self, batch: Batch, seqs: tuple[int, ...]) -> Stored:
        for write, seq in zip(batch.writes, seqs, strict=True):
            self._remember(write.entity, At(write.expect + 1, seq, write.hash))
            self._acked = max(self._acked, seq)
        return Stored(seqs)

    async def _look(self, batch: Batch, known: dict[str, At], mine: str) -> Stored | Conflict | None:
        """Find out how a try ended; None: it is not known yet, and may be sent again."""
        seqs: list[int] = []
        for write in batch.writes:
            seq, at = await self._after(write, known[write.entity], mine)
            if seq:
                seqs.append(seq)
            elif at is None:
                return Conflict(write.entity, await self._head(write.entity))
            else:
                known[write.entity] = at
        if seqs:
            if len(seqs) < len(batch.writes):
                raise Unanswered("a part of a batch is not to be seen yet")
            return self._settled(batch, tuple(seqs))
        for entity, version in batch.guards.items():
            known[entity] = self._note(entity, await self._line.last(self._stream, self._subject(entity)))
            if known[entity].version != version:
                return Conflict(entity, await self._head(entity))
        return None

    async def _after(self, write: Write, at: At, mine: str) -> tuple[int, At | None]:
        """Return the sequence of our own entry if it is there; else where the entity stands; None: moved."""
        subject, seq = self._subject(write.entity), at.seq
        while message := await self._line.next(self._stream, subject, seq + 1):
            kind, head, append = frames.told(message)
            seq = message.seq
            if append == mine:
                return seq, None
            if kind == STONE:
                at = At(0, seq)
            elif head.version != write.expect:
                _, olds = await self._kept(write.entity)
                ours = [old.seq for old in olds if old.append == mine]
                return (ours[0], None) if ours else (0, None)
            else:
                at = At(head.version, seq, head.hash)
        if at.version != write.expect:
            return 0, None
        if seq and not await self._line.next(self._stream, subject, seq):
            return 0, (At() if write.expect == 0 else None)  # it was there, and was purged
        return 0, at

    # Reading.

    def _subject(self, entity: str) -> str:
        return self._entities + frames.token(entity)

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Ask until there is an answer, for a while: reading changes nothing."""
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await ask()
            except Unanswered as error:
                if time.monotonic() > ends:
                    raise StoreError(f"{self._where.shown} does not answer ({error})") from error
            await asyncio.sleep(0.05)

    def _ask(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._check_open()
        return self._line.do(partial(self._patiently, ask))

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity, as the leader of the stream says."""
        found: Head | None = self._ask(partial(self._head, entity))
        return found

    async def _head(self, entity: str) -> Head | None:
        message = await self._line.last(self._stream, self._subject(entity))
        if self._note(entity, message).version == 0 or message is None:
            return None
        frame = frames.read(message)
        if frame.kind == HUSK:
            last = await self._line.at(self._stream, frame.head.seq)
            if last is not None:
                return frame.head._replace(body=frames.read(last).head.body)
        return frame.head

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""
        least = self._acked
        found: list[Head] = self._ask(lambda: self._projection.heads(query, least, self._head))
        return iter(found)

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order."""
        if entity is not None:
            chain: list[Entry] = self._ask(partial(self._chain, entity))
            return (entry for entry in chain if entry.version > after)
        self._check_open()
        return self._log(after)

    async def _chain(self, entity: str) -> list[Entry]:
        """Return all entries of one entity."""
        subject = self._subject(entity)
        last = await self._line.last(self._stream, subject)
        _, olds = await self._kept(entity)
        found = {old.version: frames.without_body(entity, old) for old in olds}
        seq = 0
        while last is not None and seq < last.seq:
            page = await self._line.page(self._stream, subject, seq + 1)
            if not page:
                raise Unanswered("a server is behind")
            for message in page:
                seq = message.seq
                frame = frames.read(message)
                if frame.kind == STONE:
                    found.clear()
                elif frame.entry is not None:
                    found.setdefault(frame.entry.version, frame.entry)
        return [found[version] for version in sorted(found)] if last is not None else []

    def _log(self, after: int) -> Iterator[Entry]:
        """Return all entries, those whose messages were purged in their places."""
        last, waiting, stones = self._ask(self._prospect)
        waiting = [entry for entry in waiting if entry.seq > after]
        bare = {entry.seq for entry in waiting}
        seq, place = after, 0
        while seq < last:
            page: list[Message] = self._ask(
                partial(self._line.page, self._stream, f"{self._entities}*", seq + 1)
            )
            for message in page:
                while place < len(waiting) and waiting[place].seq < message.seq:
                    yield waiting[place]
                    place += 1
                frame = frames.read(message)
                dropped = message.seq < stones.get(message.subject, (0, 0.0))[0]
                if frame.entry is not None and message.seq not in bare and not dropped:
                    yield frame.entry
            if not page:
                break
            seq = page[-1].seq
        yield from waiting[place:]

    async def _prospect(self) -> tuple[int, list[Entry], dict[str, tuple[int, float]]]:
        """Return the last sequence, the entries without bodies in their order, and what was dropped."""
        info = await self._info()
        await self._projection.catch_up(self._acked)
        found: list[Entry] = []
        seq = 0
        while page := await self._line.page(self._stream, f"{self._olds}*", seq + 1):
            newest = {message.subject: message for message in page}
            for message in newest.values():
                entity, olds = frames.read_olds(message)
                found += [frames.without_body(entity, old) for old in olds]
            seq = page[-1].seq
        by_seq = {entry.seq: entry for entry in found}
        return info["last_seq"], [by_seq[seq] for seq in sorted(by_seq)], await self._projection.stones()

    async def _info(self) -> dict[str, Any]:
        said = await self._line.api(f"STREAM.INFO.{self._stream}")
        if "error" in said:
            raise Unanswered(str(said["error"].get("description")))
        self._clock = (time.monotonic(), _seconds(said["ts"]))
        state: dict[str, Any] = said["state"]
        return state

    def now(self) -> float:
        """Return the server's time, reckoned with our own clock between two looks; it never goes back."""
        asked, then = self._clock
        if time.monotonic() - asked > CLOCK_S:
            self._ask(self._info)
            asked, then = self._clock
        self._latest = max(self._latest, then + time.monotonic() - asked)
        return self._latest

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown; it is looked for."""
        ends = time.monotonic() + timeout
        while True:
            last: int = self._ask(self._info)["last_seq"]
            left = ends - time.monotonic()
            if last > after or left <= 0:
                return last
            time.sleep(min(LOOK_S, left))

    # Forgetting and mending.

    async def _kept(self, entity: str) -> tuple[int, tuple[frames.Old, ...]]:
        """Return what is left of an entity's purged entries, and the sequence of the message that says so."""
        message = await self._line.last(self._stream, self._olds + frames.token(entity))
        return (message.seq, frames.read_olds(message)[1]) if message is not None else (0, ())

    def prune(self, before: Mapping[str, int]) -> None:
        """Forget bodies; digests stay. Of up to 400 entities, all or none."""
        names = list(before)
        for first in range(0, len(names), MOST):
            group = {name: before[name] for name in names[first : first + MOST]}
            self._ask(partial(self._prune, group))

    async def _prune(self, before: Mapping[str, int]) -> None:
        """Keep what is left elsewhere, then purge the messages; done again, it goes on where it stopped."""
        while True:
            messages: list[tuple[str, bytes, dict[str, str]]] = []
            purges: list[tuple[str, int]] = []
            mine = secrets.token_hex(16)
            for entity, version in before.items():
                await self._forget(entity, version, mine, messages, purges)
            if messages:
                answer = await self._publish(messages)
                if answer.error in LOOK_AGAIN and not answer.seq:
                    await asyncio.sleep(0.01)
                    continue  # somebody was quicker: look anew
                if not answer.seq:
                    raise refused(self._where, answer)
                self._known.clear()
            break
        for subject, seq in purges:
            await self._purge(subject, seq=seq)
        for entity in before:
            await self._purge(self._olds + frames.token(entity), keep=1)

    async def _forget(
        self,
        entity: str,
        version: int,
        mine: str,
        messages: list[tuple[str, bytes, dict[str, str]]],
        purges: list[tuple[str, int]],
    ) -> None:
        """Add what must be written and purged to forget an entity's bodies below a version."""
        subject = self._subject(entity)
        last = await self._line.last(self._stream, subject)
        at = self._note(entity, last)
        if last is None or at.version == 0:
            return
        seq, olds = await self._kept(entity)
        chain = {entry.version: entry for entry in await self._chain(entity)}
        marks = await self._marks(subject, last.seq)
        kept = {old.version: old for old in olds}
        for number, entry in chain.items():
            if number < version and number not in kept:
                kept[number] = frames.as_old(entry, marks.get(entry.seq, ""))
        if not kept:
            return
        if len(kept) > len(olds):
            data = frames.olds(entity, [kept[number] for number in sorted(kept)])
            where = self._olds + frames.token(entity)
            messages.append((where, data, {frames.EXPECT: str(seq), frames.APPEND: mine}))
        remaining = [entry.seq for number, entry in chain.items() if number not in kept]
        kind, head, _ = frames.told(last)
        if not remaining and kind == ENTRY:
            headers = frames.headers(head, HUSK, mine)
            messages.append((subject, b"", {**headers, frames.EXPECT: str(last.seq)}))
            purges.append((subject, last.seq + 1))
        else:
            purges.append((subject, min([*remaining, last.seq])))

    async def _marks(self, subject: str, last: int) -> dict[int, str]:
        """Return by which append each message of a subject was written."""
        found: dict[int, str] = {}
        seq = 0
        while seq < last and (page := await self._line.page(self._stream, subject, seq + 1)):
            found |= {message.seq: message.headers.get(frames.APPEND, "") for message in page}
            seq = page[-1].seq
        return found

    async def _purge(self, subject: str, **how: int) -> None:
        said = await self._line.api(f"STREAM.PURGE.{self._stream}", filter=subject, **how)
        if "error" in said:
            raise StoreError(f"{self._where.shown}: {said['error'].get('description')}")

    def drop(self, at: Mapping[str, int]) -> int:
        """Remove entities that are at these versions: a stone is put, then everything before it is purged."""
        return sum(self._ask(partial(self._drop, entity, version)) for entity, version in at.items())

    async def _drop(self, entity: str, version: int) -> int:
        subject = self._subject(entity)
        last = await self._line.last(self._stream, subject)
        if last is None or self._note(entity, last).version != version or not version:
            return 0
        head = Head(entity, 0, NOWHERE, b"", frames.told(last)[1].by, 0)
        headers = {**frames.headers(head, STONE, secrets.token_hex(16)), frames.EXPECT: str(last.seq)}
        answer = await self._publish([(subject, b"", headers)])
        if not answer.seq:
            return 0  # it has moved on
        self._remember(entity, At(0, answer.seq))
        self._acked = max(self._acked, answer.seq)
        await self._purge(subject, seq=answer.seq)
        await self._purge(self._olds + frames.token(entity))
        return 1

    def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there; up to 400 at once, all or none."""
        done = 0
        for first in range(0, len(heads), MOST):
            done += self._ask(partial(self._mend, heads[first : first + MOST], upto))
        return done

    async def _mend(self, heads: Sequence[Head], upto: int) -> int:
        mine = secrets.token_hex(16)
        messages: list[tuple[str, bytes, dict[str, str]]] = []
        for head in heads:
            subject = self._subject(head.entity)
            last = await self._line.last(self._stream, subject)
            seq = 0 if last is None else last.seq
            if last is not None and frames.told(last)[1].seq > upto:
                continue
            headers = frames.headers(head, HUSK, mine)
            messages.append((subject, b"", {**headers, frames.EXPECT: str(seq)}))
        if not messages:
            return 0
        answer = await self._publish(messages)
        if not answer.seq:
            raise refused(self._where, answer)
        self._known.clear()
        self._acked = max(self._acked, answer.seq)
        return len(messages)

    # The rest.

    def enter(self, worker: str) -> Present:
        """Say that a worker is here, which nobody hears: its lease tells."""
        return Present()

    def gone(self, worker: str) -> bool:
        """Return False: a connection that ended is no proof."""
        return False

    def facts(self) -> Facts:
        """Say which server writes, and what survives what."""
        return self._server.facts(self._where.shown)

    def house(self) -> NatsHouse:
        """Return what keeps house here."""
        return NatsHouse(self)

    def info(self) -> dict[str, Any]:
        """Return the state of the stream, as its leader tells it."""
        state: dict[str, Any] = self._ask(self._info)
        return state

    def tidy(self) -> None:
        """Purge stones that everybody has seen by now, and what guards left behind."""
        self._ask(self._tidy)

    async def _tidy(self) -> None:
        await self._projection.catch_up(self._acked)
        await self._purge(self._guard)
        for subject, (at, seen) in (await self._projection.stones()).items():
            old = time.time() - seen > STONES_S
            await self._purge(subject, seq=at + 1 if old else at)

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
        if not self._closed:
            self._closed = True
            self._line.close()
            _open_stores.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where.shown}: the store is closed")


class NatsHouse:
    """The house of a store in NATS, most of which is the server's own affair."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store

    def held(self) -> str:
        """Return nothing: a restored stream cannot be told from the one it was made of."""
        return ""

    def acknowledge(self) -> None:
        """Do nothing: nothing is held."""

    def weights(self) -> dict[str, Weight]:
        """Count everything, by reading all of it."""
        found: dict[str, Weight] = {}
        entities: set[str] = set()
        for entry in self._store.entries():
            kind = entry.entity.partition("/")[0]
            so_far = found.get(kind, Weight())
            size = len(entry.header) + len(entry.body or b"")
            new = entry.entity not in entities
            entities.add(entry.entity)
            found[kind] = Weight(so_far.entities + new, so_far.entries + 1, so_far.bytes + size)
        return found

    def room(self) -> Room:
        """Return the size of the stream; what the server's disk has left it does not say."""
        return Room(int(self._store.info()["bytes"]))

    def spare(self) -> int:
        """Return 0: only the server knows."""
        return 0

    def tidy(self) -> str:
        """Purge what nobody needs any more."""
        self._store.tidy()
        return ""

    def backup(self, to: Path, check: Checked, progress: Callable[[int, int], object]) -> None:
        """Refuse, and say what does it."""
        raise UsageError(
            "a store in NATS is backed up by the server's own tools: nats stream backup; or copied into "
            "another store: oncemore copy"
        )


def _seconds(text: str) -> float:
    """Read the time in an answer of the server."""
    from datetime import datetime

    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")


_open_stores: weakref.WeakSet[NatsStore] = weakref.WeakSet()
_left_alone: list[object] = []


def _after_fork() -> None:
    """In the child: what was inherited is neither used nor closed, and everything is made anew."""
    for store in list(_open_stores):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
