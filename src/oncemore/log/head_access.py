"""Entries on their way into a store and heads on their way out of it: bytes, and what they are listed by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._ids import nonce
from oncemore._values import make
from oncemore.log.entry_codec import body_of, head_of, written
from oncemore.log.head_index import index_of
from oncemore.log.interrupt_shield import Shield
from oncemore.log.record import NOWHERE, Change, Run
from oncemore.log.store import Batch, Conflict, Stored, Write
from oncemore.steps.ops import (
    Save,
    Seen,
)

if TYPE_CHECKING:
    from oncemore.log.encryption import Seal
    from oncemore.log.store import Store

    Answered = Stored | Conflict

CHECKPOINT: tuple[Any, ...] = ("CHECKPOINT",)
EVENT: tuple[Any, ...] = ("EVENT",)
ARTIFACT: tuple[Any, ...] = ("ARTIFACT",)


def write_of(
    entity: str, version: int, prev: bytes, change: Change, now: float, seal: Seal | None = None
) -> Write:
    """Return the bytes of an entity's next entry, ready to be appended."""
    header, body, own, head = written(change, entity, version + 1, prev, now, nonce(), seal)
    return make(Write, (entity, version, header, body, own, head, index_of(change.after)))


def notice_write(given: Any, now: float, seal: Seal | None = None) -> Write:
    """Return the bytes of an event's first entry."""
    event, payload = given
    change = Change(EVENT, None, event, {"payload": payload})
    return write_of(f"event/{event.event_id}", 0, NOWHERE, change, now, seal)


def told_already(op: Save, batch: Batch, answer: Answered) -> bool:
    """Whether a batch was refused for a notice in it that somebody else has just written: try without it.

    At most twice for each sink: a notice that is there is not written again.
    """
    if type(answer) is not Conflict or len(batch.writes) == 1 + len(op.events) + len(op.also):
        return False
    return answer.entity in {write.entity for write in batch.writes[1 + len(op.also) :]}


def seen_in(store: Store, entity: str, seal: Seal | None = None, kind: type[Any] = Run) -> Seen:
    """Return an entity as it is in a store, with the body of its last entry."""
    if getattr(store, "calm", False):
        head = store.head(entity)
    else:
        with Shield():
            head = store.head(entity)
    if head is None:
        return Seen(entity, 0, NOWHERE, None)
    _, version, own, state, _, _, data = head
    body = None if data is None else body_of(data, seal, entity, version)
    return make(Seen, (entity, version, own, head_of(state, kind), body))
