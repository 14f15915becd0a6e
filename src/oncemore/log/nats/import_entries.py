"""Import of another log's entries into a log in NATS, as one atomic batch in their order.

The first entry of each entity expects the position that the entity has; the ones after it follow in the same
batch, so that no other writer can come in between. An entry whose body was pruned is stored without one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.nats import messages
from oncemore.log.nats.append import RETRYABLE, clear_entity, publish_batch
from oncemore.log.nats.messages import EntryToPublish
from oncemore.log.nats.replies import NoServerReply
from oncemore.log.nats.server_check import publish_refused
from oncemore.log.store import check_next

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.log.nats.messages import OutgoingMessage
    from oncemore.log.nats.reader import EntityPosition, NatsLog
    from oncemore.log.store import Entry, Head

GIVE_UP_S = 30.0


async def import_entries(log: NatsLog, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
    """Import entries, all or none; a lost acknowledgement is resolved by the id of the append."""
    append_id, deadline = secrets.token_hex(16), time.monotonic() + GIVE_UP_S
    while True:
        with suppress(NoServerReply):
            positions = await _load_positions(log, entries, append_id)
            if positions is None or not entries:
                break
            check_next(entries, heads, {name: (at.version, at.hash) for name, at in positions.items()})
            reply = await publish_batch(log, _build_messages(log, entries, heads, positions, append_id))
            if reply.seq:
                break
            if reply.error not in RETRYABLE:
                raise publish_refused(log.connection.address, reply)
        if time.monotonic() > deadline:
            raise StoreError(
                f"{log.connection.address.shown}: no answer within {GIVE_UP_S:g} s; whether the entries were "
                "imported is not known: read the log again"
            )
        await asyncio.sleep(0.05)
    log.clear_cache()


async def _load_positions(
    log: NatsLog, entries: Sequence[Entry], append_id: str
) -> dict[str, EntityPosition] | None:
    """Return the positions of the entities; None if this import is stored already."""
    positions: dict[str, EntityPosition] = {}
    for entity in dict.fromkeys(entry.entity for entry in entries):
        last = await log.load_last_message(entity)
        # The batch is atomic: if the id is on one entity, all entries are stored.
        if last is not None and messages.parse_headers(last)[2] == append_id:
            return None
        position = positions[entity] = log.remember_message(entity, last)
        # A new entity under a dropped name: leftovers of the old one must not reappear with it.
        if position.version == 0 and position.seq:
            await clear_entity(log, entity, position.seq)
    return positions


def _build_messages(
    log: NatsLog,
    entries: Sequence[Entry],
    heads: Sequence[Head],
    positions: dict[str, EntityPosition],
    append_id: str,
) -> list[OutgoingMessage]:
    """Return the messages of the import.

    No reader sees the head between two entries of an entity, so all of them carry the last state.
    """
    last_heads = {head.entity: head for head in heads}
    expected: dict[str, int | None] = {name: position.seq for name, position in positions.items()}
    outgoing: list[EntryToPublish] = []
    for entry in entries:
        head = last_heads[entry.entity]._replace(version=entry.version, hash=entry.hash)
        # The server checks the first entry of each entity; later ones follow it in the same batch.
        expected_seq, expected[entry.entity] = expected[entry.entity], None
        outgoing.append(
            EntryToPublish(head, entry.header, entry.prev, entry.body, expected_seq, entry.body_digest)
        )
    return messages.add_entry_messages(outgoing, append_id, log.subjects, log.connection.max_payload, [])
