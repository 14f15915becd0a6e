"""Forgetting and mending in a log in NATS.

A server purges messages by their subject, up to a sequence; it changes none. So what must stay is written
first, and what must go is purged after: whoever dies between the two leaves work that the next call of the
same does (`prune`, `drop`), or whoever tidies up.

    prune   what is left of the entries goes to another subject; if nothing of the entity would stay, a husk
            with its head comes first, in the same atomic batch
    drop    a stone is put on top, which expects to be on top of what was seen
    mend    a husk with the head as it should be
    tidy    stones that everybody has seen by now, what they left, and what guards left
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from oncemore.log.nats import messages as frames
from oncemore.log.nats.append import AGAIN, clear, publish, purge
from oncemore.log.nats.connection import Unanswered
from oncemore.log.nats.messages import ENTRY, HUSK, STONE
from oncemore.log.nats.server_check import refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncemore.log.nats.connection import Message
    from oncemore.log.nats.messages import Sent
    from oncemore.log.nats.queries import Projection
    from oncemore.log.nats.reader import Log
    from oncemore.log.store import Head

MOST = 300  # entities that are pruned or mended together
PATIENCE_S = 30.0  # how long others may be quicker
MARKS = 1000  # marks that a stone carries: nobody waits for the answer to what so many built upon
STONES_S = 3600.0  # how long a stone stays: longer than any projection goes without looking


class Forgetter:
    """Prunes, drops and mends; used in the line's loop only."""

    def __init__(self, log: Log, projection: Projection) -> None:
        self._log, self._projection = log, projection

    # Pruning.

    async def prune(self, before: Mapping[str, int]) -> None:
        """Forget bodies below a version: write what stays, then purge; done again, it goes on."""
        log, ends = self._log, time.monotonic() + PATIENCE_S
        while True:
            sent: list[Sent] = []
            purges: list[tuple[str, int]] = []
            for entity, version in before.items():
                await self._plan(entity, version, sent, purges)
            if not sent or await self._write(sent, ends):
                break
        for subject, seq in purges:
            await log.patiently(partial(purge, log, subject, seq))
        if sent:
            log.forget()

    async def _write(self, sent: list[Sent], ends: float) -> bool:
        """Write messages as one; False: somebody was quicker, look anew."""
        answer = await publish(self._log, sent)
        if answer.seq:
            self._log.acked = max(self._log.acked, answer.seq)
            return True
        if answer.error not in AGAIN or time.monotonic() > ends:
            raise refused(self._log.line.where, answer)
        await asyncio.sleep(0.01)
        return False

    async def _plan(self, entity: str, version: int, sent: list[Sent], purges: list[tuple[str, int]]) -> None:
        """Add what must be written and purged to forget an entity's bodies below a version."""
        log = self._log
        chain = await log.chain(entity)
        if chain is None:
            return
        where, mine = log.where, secrets.token_hex(16)
        subject, token = where.entity(entity), frames.token(entity)
        goes = [
            frames.as_old(frame.entry, frame.append)
            for number, frame in sorted(chain.frames.items())
            if frame.entry is not None and number < version and number not in chain.olds
        ]
        for number, content in enumerate(frames.olds(entity, goes)):
            given = {frames.APPEND: mine, **({frames.EXPECT: str(chain.olds_at)} if number == 0 else {})}
            sent.append((where.olds + token, content, given))
        gone = chain.olds.keys() | {old.version for old in goes}
        if not gone:
            return
        stays = [frame for number, frame in chain.frames.items() if number not in gone]
        upto = min([*(frame.at for frame in stays), chain.last])
        last = await log.last(entity)
        if last is None or last.seq != chain.last:
            raise Unanswered("it has moved on")  # and is looked at anew
        kind, head, _ = frames.told(last)
        if not stays and kind == ENTRY:
            sent.append((subject, b"", {**frames.headers(head, HUSK, mine), frames.EXPECT: str(last.seq)}))
            upto = last.seq + 1
        purges.append((subject, upto))
        purges.append((where.parts + token, min([*(frame.first or frame.at for frame in stays), upto])))

    # Dropping.

    async def drop(self, entity: str, version: int, mine: str) -> int:
        """Remove an entity that is at a version; `mine` marks the stone, so that it is known again."""
        log, ends = self._log, time.monotonic() + PATIENCE_S
        while True:
            last = await log.last(entity)
            at = log.note(entity, last)
            if last is None or (at.version != version and at.version):
                return 0
            kind, _, append = frames.told(last)
            if kind == STONE:  # ours, whose answer was lost; or somebody's who may not have come further
                await clear(log, entity, last.seq)
                return int(append == mine)
            sent = await self._stone(entity, last, mine)
            if sent is not None:
                with suppress(Unanswered):
                    await self._write([sent], ends)
            elif time.monotonic() > ends:
                return 0  # it is in use

    async def _stone(self, entity: str, last: Message, mine: str) -> Sent | None:
        """Return the message that says that an entity is no more; None: it has moved on."""
        log = self._log
        chain = await log.chain(entity)
        if chain is None or chain.last != last.seq:
            return None
        gone = [(frame.at, frame.append) for frame in chain.frames.values()]
        gone += [(old.seq, old.append) for old in chain.olds.values()]
        data, headers = frames.stone(entity, frames.told(last)[1].by.kind, sorted(gone)[-MARKS:], mine)
        return last.subject, data, {**headers, frames.EXPECT: str(last.seq)}

    # Mending.

    async def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there, all or none, but for those that have moved on."""
        log, ends = self._log, time.monotonic() + PATIENCE_S
        while True:
            mine = secrets.token_hex(16)
            sent: list[Sent] = []
            for head in heads:
                last = await log.last(head.entity)
                if last is not None and frames.told(last)[1].seq > upto:
                    continue
                given = {
                    **frames.headers(head, HUSK, mine),
                    frames.EXPECT: str(0 if last is None else last.seq),
                }
                sent.append((log.where.entity(head.entity), b"", given))
            if not sent or await self._write(sent, ends):
                log.forget()
                return len(sent)

    # Tidying up.

    async def tidy(self, now: float) -> None:
        """Purge stones that everybody has seen by now with what they left, and what guards left."""
        log, where = self._log, self._log.where
        info = await log.info()
        await self._projection.catch_up(info["last_seq"])
        await purge(log, where.guard, info["last_seq"] + 1)
        for subject, (at, stored) in self._projection.stones().items():
            token = subject.rpartition(".")[2]
            for left in (where.parts, where.olds):
                await purge(log, left + token, at)
            await purge(log, subject, at + 1 if now - stored > STONES_S else at)
