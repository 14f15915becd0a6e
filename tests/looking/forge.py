"""Logs that were changed by somebody who knows how: every link fits, and something else does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.json import decode, encode

from oncemore.log.entry_codec import linked
from oncemore.log.memory import MemoryStore
from oncemore.log.record import NOWHERE
from oncemore.log.store import Batch, Index, Stored, Write
from oncemore.policy.canonical_json import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import Store

    Change = Callable[[dict[str, Any], dict[str, Any]], None]


def forged(store: Store, entity: str, change: Change) -> MemoryStore:
    """Copy an entity's entries into a new store, each header and body changed, with links that fit."""
    copy, prev = MemoryStore(), NOWHERE
    head = store.head(entity)
    assert head is not None
    for entry in store.entries(entity):
        header, body = decode(entry.header), decode(entry.body or b"{}")
        change(header, body)
        written = encode(header), encode(body)
        prev = linked(prev, written[0], fingerprint(written[1]))
        write = Write(entity, entry.version - 1, *written, prev, head.head, Index("run"))
        assert isinstance(copy.append(Batch((write,))).wait(), Stored)
    return copy


def entity_of(store: Store, step: str) -> str:
    """Return the entity of a step's newest run."""
    from oncemore.log.store import Query

    return next(iter(store.heads(Query("run", step=step, newest=True)))).entity
