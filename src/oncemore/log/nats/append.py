"""Appending to a log in NATS: one message or one atomic batch, and what a lost answer means.

**A lost answer** is found again by looking at the first frame after the one that was expected. It is ours (it
carries our mark), or somebody else's (then ours can never be stored any more), or it is not there; then
nobody knows yet: it may be on its way for as long as the servers have no quorum. So the same is sent again
under the same expectation, which cannot store it twice. Who gives up is told that nobody knows.

What was ours may have been forgotten or dropped meanwhile: marks outlive both (`nats_frames`).
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.log.nats import messages as frames
from oncemore.log.nats.batching import Crowd
from oncemore.log.nats.connection import Answer, Unanswered, answered
from oncemore.log.nats.guards import Looks, same
from oncemore.log.nats.messages import HUSK, STONE
from oncemore.log.nats.reader import At
from oncemore.log.nats.server_check import refused
from oncemore.log.store import Conflict, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.nats.messages import Sent
    from oncemore.log.nats.reader import Log
    from oncemore.log.store import Batch, Write

GIVE_UP_S = 30.0
EMPTIED_S = 5.0  # for how long a subject must be found empty to believe that an entity was dropped long ago
LONGEST_PAUSE_S = 0.25
SMALL = 20_000  # bytes of a body that goes together with others'

WRONG_SEQUENCE, IN_FLIGHT, ABANDONED, TOO_MANY, NO_ANSWER = 10071, 10164, 10176, 10210, 0
#: What a server says when the same may be sent again, once one has looked.
AGAIN = frozenset({WRONG_SEQUENCE, IN_FLIGHT, ABANDONED, TOO_MANY, NO_ANSWER})


class Emptied(Unanswered):
    """There is nothing any more on the subject of an entity that was there."""


class Try:
    """A batch that is being appended: its mark, what it expects of whom, and how long it may take.

    late  guards that are no part of it any more, and are looked at when it is stored (`nats_late`)
    """

    def __init__(self, batch: Batch) -> None:
        self.batch, self.mine = batch, secrets.token_hex(16)
        self.late: Mapping[str, At] = {}
        self.known: dict[str, At] = {}
        self.ends = time.monotonic() + GIVE_UP_S
        self.emptied = 0.0


class Appender:
    """Appends batches; used in the line's loop only."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._crowd = Crowd(log)
        self._looks = Looks(log)

    def at_once(self, batch: Batch, hear: Callable[[Try, Answer], object]) -> Try | None:
        """Send a batch whose entities are all known, which takes no task; None: it must be appended slowly.

        `hear` is told of the answer, which may be none, once; what it means is for `finish` to find out.
        """
        log, one = self._log, Try(batch)
        for entity, version in ((write.entity, write.expect) for write in batch.writes):
            at = log.known(entity, version)
            if at is None or (at.seq and not version):
                return None
            one.known[entity] = at
        for entity, version in batch.guards.items():
            at = log.known(entity, version)
            if at is None:
                return None
            one.known[entity] = at
        if batch.guards and batch.writes and all(len(w.body) < SMALL for w in batch.writes):
            if not log.line.stands:
                return None
            self._crowd.add(one, partial(hear, one))
            return one
        sent = frames.frames(batch, one.known, one.mine, log.where, log.line.largest)
        sent = frames.together(sent, log.where.stream, one.mine)

        def heard(message: Any, why: str) -> None:
            hear(one, Answer(text=why) if message is None else answered(message))

        return one if log.line.publish_now(sent, heard) else None

    def look(self, one: Try, seq: int, hear: Callable[[bool | None], object]) -> None:
        """Look whether what a stored try relied on is as it was; `hear` is told, with None: nobody knows."""
        self._looks.add(one, seq, hear)

    async def finish(self, one: Try, answer: Answer) -> Stored | Conflict:
        """Go on after the first answer to a try: its end is not known, or what it relied on has moved."""
        ended = await self._until_known(one, answer)
        return await self._late(one, ended) if one.late and isinstance(ended, Stored) else ended

    async def _late(self, one: Try, stored: Stored) -> Stored | Conflict:
        """Find out whether what a stored try relied on is as it was; it stands, whatever that is."""
        pause = 0.001
        while True:
            held: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
            self.look(one, stored.seqs[-1], held.set_result)
            if await held:
                return stored
            with suppress(Unanswered):
                for entity, relied in one.late.items():
                    if not same(self._log.note(entity, await self._log.last(entity)), relied):
                        return (await self._conflict(entity))._replace(stands=stored.seqs)
            if time.monotonic() > one.ends:
                raise StoreError(
                    f"{self._log.line.where.shown}: it is stored, but for {GIVE_UP_S:g} s nobody could tell "
                    "whether what it relies on had changed before; it must be taken back"
                )
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - as above
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def append(self, batch: Batch) -> Stored | Conflict:
        """Store a batch or find out why not; a `StoreError` says that neither is known."""
        log, one = self._log, Try(batch)
        for entity, version in batch.guards.items():
            one.known[entity] = await log.patiently(partial(log.stands, entity, version))
            if one.known[entity].version != version:
                return await self._conflict(entity)
        for write in batch.writes:
            at = one.known[write.entity] = await log.patiently(
                partial(log.stands, write.entity, write.expect)
            )
            if at.version != write.expect:
                return await self._conflict(write.entity)
        return await self._until_known(one)

    async def _until_known(self, one: Try, first: Answer | None = None) -> Stored | Conflict:
        pause, said = 0.001, ""
        while True:
            answer, first = first or Answer(), None
            if answer == Answer():
                with suppress(Unanswered):
                    answer = await self._send(one)
            if answer.seq:
                return self.stored(one.batch, answer.seq)
            if answer.error:
                said = f" ({answer.error}: {answer.text})"
            with suppress(Unanswered):
                outcome = await self._look(one)
                if outcome is not None:
                    return outcome
                if answer.error not in AGAIN:
                    raise refused(self._log.line.where, answer)
            if time.monotonic() > one.ends:
                raise StoreError(
                    f"{self._log.line.where.shown}: no answer within {GIVE_UP_S:g} s{said}; whether it is "
                    "stored is not known: it may still be, and must be read again"
                )
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - only spreads those who wait
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _send(self, one: Try) -> Answer:
        log = self._log
        for write in one.batch.writes:
            at = one.known[write.entity]
            if at.version == 0 and at.seq:  # made anew: what is left of the former must not come back with it
                await clear(log, write.entity, at.seq)
        sent = frames.frames(one.batch, one.known, one.mine, log.where, log.line.largest)
        return await publish(log, sent)

    def stored(self, batch: Batch, last: int) -> Stored:
        """Remember what is stored; the frames of a batch are its last messages, one after the other."""
        log = self._log
        seqs = tuple(range(last - len(batch.writes) + 1, last + 1))
        for write, seq in zip(batch.writes, seqs, strict=True):
            log.remember(write.entity, At(write.expect + 1, seq, write.hash))
        log.acked = max(log.acked, last)
        return Stored(seqs)

    async def _conflict(self, entity: str) -> Conflict:
        return Conflict(entity, await self._log.patiently(partial(self._log.head, entity)))

    async def _look(self, one: Try) -> Stored | Conflict | None:
        """Find out how a try ended; None: it is not known yet, and may be sent again."""
        found = await self._writes(one)
        if found is not None:
            return found
        log = self._log
        for entity, version in one.batch.guards.items():
            at = log.note(entity, await log.last(entity))
            if at.version == version:
                one.known[entity] = at
                continue
            # It moved after our writes were looked for: ours may have been stored in between.
            found = await self._writes(one)
            if found is None and log.note(entity, await log.last(entity)).seq >= at.seq:
                found = await self._conflict(entity)
            return found
        return None

    async def _writes(self, one: Try) -> Stored | Conflict | None:
        """Look for what was written; if one of a batch is there, all are, one after the other."""
        writes = one.batch.writes
        for number, write in enumerate(writes):
            seq, at = await self._after(one, write)
            if seq:
                return self.stored(one.batch, seq - number + len(writes) - 1)
            if at is None:
                return await self._conflict(write.entity)
            one.known[write.entity] = at
        return None

    async def _after(self, one: Try, write: Write) -> tuple[int, At | None]:
        """Return the sequence of our own entry if it was stored; else where the entity is; None: moved."""
        log, at = self._log, one.known[write.entity]
        subject, seq = log.where.entity(write.entity), at.seq
        while message := await log.line.next(log.where.stream, subject, seq + 1):
            kind, head, append = frames.told(message)
            seq = message.seq
            if append == one.mine:
                return seq, None
            if kind == STONE:
                ours = frames.gone_with(message).get(one.mine, 0)
                if ours:
                    return ours, None
                at = At(0, seq)
            elif kind == HUSK and (head.version, head.hash) == (at.version, at.hash):
                at = At(at.version, seq, at.hash)
            else:
                olds = (await log.olds(write.entity))[1]
                return next((old.seq for old in olds if old.append == one.mine), 0), None
        if at.version != write.expect:
            return 0, None
        if seq and not await log.line.next(log.where.stream, subject, seq):
            return 0, self._emptied(one, write)
        one.emptied = 0.0
        return 0, at

    def _emptied(self, one: Try, write: Write) -> At | None:
        """Say where an entity stands of which nothing is left.

        It was dropped long ago, or this leader is new and has not come so far: then it may still come to
        ours. So that is believed only after a while, unless it makes no difference.
        """
        if write.expect == 0:
            return At()
        now = time.monotonic()
        one.emptied = one.emptied or now
        if now - one.emptied < EMPTIED_S:
            raise Emptied
        return None


async def publish(log: Log, sent: list[Sent]) -> Answer:
    """Send messages as one."""
    return await log.line.publish(frames.together(sent, log.where.stream, secrets.token_hex(16)))


async def purge(log: Log, subject: str, upto: int) -> None:
    """Remove the messages of a subject that come before a sequence; done again, it changes nothing."""
    said = await log.line.api(f"STREAM.PURGE.{log.where.stream}", filter=subject, seq=upto)
    if "error" not in said:
        return
    error = said["error"]
    if error.get("code") == 503:
        raise Unanswered(str(error.get("description")))
    raise StoreError(f"{log.line.where.shown}: nothing can be purged: {error.get('description')}")


async def clear(log: Log, entity: str, stone: int) -> None:
    """Remove everything that comes before the stone of an entity."""
    token = frames.token(entity)
    for subject in (log.where.entities, log.where.parts, log.where.olds):
        await purge(log, subject + token, stone)
