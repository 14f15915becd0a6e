"""Forge logs: all hash links verify, but a header or a body was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.json import decode, encode

from oncemore.log.entry_codec import hash_entry
from oncemore.log.memory import MemoryStore
from oncemore.log.record import NOWHERE
from oncemore.log.store import Batch, EntryWrite, HeadIndex, Stored
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import Store

    Change = Callable[[dict[str, Any], dict[str, Any]], None]


def forge_store(store: Store, entity: str, change: Change) -> MemoryStore:
    """Copy an entity's entries into a new store with changed headers and bodies and correct links."""
    copy, prev = MemoryStore(), NOWHERE
    head = store.load_head(entity)
    assert head is not None
    for entry in store.read_entries(entity):
        header, body = decode(entry.header), decode(entry.body or b"{}")
        change(header, body)
        written = encode(header), encode(body)
        prev = hash_entry(prev, written[0], hash_bytes(written[1]))
        write = EntryWrite(entity, entry.version - 1, *written, prev, head.head, HeadIndex("run"))
        assert isinstance(copy.append(Batch((write,))).wait(), Stored)
    return copy


def entity_of(store: Store, step: str) -> str:
    """Return the entity of a step's newest run."""
    from oncemore.log.store import HeadQuery

    return next(iter(store.list_heads(HeadQuery("run", step=step, newest_first=True)))).entity
