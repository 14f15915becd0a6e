"""Taking over entries of another log into one in NATS: one atomic batch, in their order.

The first entry of each entity expects what stands there; those after it follow in the same batch, so that
nobody can come in between. An entry whose body was pruned over there comes as a frame without one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.nats import messages as frames
from oncemore.log.nats.append import AGAIN, clear, publish
from oncemore.log.nats.connection import Unanswered
from oncemore.log.nats.messages import Put
from oncemore.log.nats.server_check import refused
from oncemore.log.store import check_next

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.log.nats.messages import Sent
    from oncemore.log.nats.reader import At, Log
    from oncemore.log.store import Entry, Head

PATIENCE_S = 30.0


async def adopt(log: Log, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
    """Take over entries, all or none; a lost answer is found by its mark."""
    mine, ends = secrets.token_hex(16), time.monotonic() + PATIENCE_S
    while True:
        with suppress(Unanswered):
            known = await _standing(log, entries, mine)
            if known is None or not entries:
                break
            check_next(entries, heads, {name: (at.version, at.hash) for name, at in known.items()})
            answer = await publish(log, _messages(log, entries, heads, known, mine))
            if answer.seq:
                log.acked = max(log.acked, answer.seq)
                break
            if answer.error not in AGAIN:
                raise refused(log.line.where, answer)
        if time.monotonic() > ends:
            raise StoreError(
                f"{log.line.where.shown}: no answer within {PATIENCE_S:g} s; whether the entries were taken "
                "over is not known, and must be read again"
            )
        await asyncio.sleep(0.05)
    log.forget()


async def _standing(log: Log, entries: Sequence[Entry], mine: str) -> dict[str, At] | None:
    """Return where the entities stand; None: all of it is there already."""
    known: dict[str, At] = {}
    for entity in dict.fromkeys(entry.entity for entry in entries):
        last = await log.last(entity)
        if last is not None and frames.told(last)[2] == mine:
            return None
        at = known[entity] = log.note(entity, last)
        if at.version == 0 and at.seq:  # made anew: what is left of the former must not come back with it
            await clear(log, entity, at.seq)
    return known


def _messages(
    log: Log, entries: Sequence[Entry], heads: Sequence[Head], known: dict[str, At], mine: str
) -> list[Sent]:
    """Return the batch; between an entity's entries nobody sees its head, so all carry the last one."""
    final = {head.entity: head for head in heads}
    first: dict[str, int | None] = {name: at.seq for name, at in known.items()}
    puts: list[Put] = []
    for entry in entries:
        head = final[entry.entity]._replace(version=entry.version, hash=entry.hash)
        expect, first[entry.entity] = first[entry.entity], None
        puts.append(Put(head, entry.header, entry.prev, entry.body, expect, entry.body_digest))
    return frames.put(puts, mine, log.where, log.line.largest, [])
