"""Building the writes of a batch, and loading heads: the steps between records and the bytes of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._ids import new_nonce
from oncemore._values import make
from oncemore.log.entry_codec import decode_body, decode_head, encode_entry
from oncemore.log.head_index import build_index
from oncemore.log.interrupt_shield import InterruptShield
from oncemore.log.record import NOWHERE, RecordChange, RunRecord
from oncemore.log.store import Batch, Conflict, EntryWrite, Stored
from oncemore.steps.ops import AppendChange, LoadedHead

if TYPE_CHECKING:
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Store

    Answered = Stored | Conflict

CHECKPOINT: tuple[Any, ...] = ("CHECKPOINT",)
EVENT: tuple[Any, ...] = ("EVENT",)
ARTIFACT: tuple[Any, ...] = ("ARTIFACT",)


def build_write(
    entity: str, version: int, prev: bytes, change: RecordChange, now: float, cipher: BodyCipher | None = None
) -> EntryWrite:
    """Return the write of an entity's next entry, encoded and indexed."""
    header, body, own_hash, head = encode_entry(
        change, entity, version + 1, prev, at=now, nonce=new_nonce(), cipher=cipher
    )
    # `make` costs a third of the constructor, and every append passes here.
    return make(EntryWrite, (entity, version, header, body, own_hash, head, build_index(change.after)))


def build_event_write(emitted: Any, now: float, cipher: BodyCipher | None = None) -> EntryWrite:
    """Return the write of an event's first entry, from the pair of its record and its payload."""
    event, payload = emitted
    change = RecordChange(EVENT, None, event, {"payload": payload})
    return build_write(f"event/{event.event_id}", 0, NOWHERE, change, now, cipher)


def was_notified_already(op: AppendChange, batch: Batch, answer: Answered) -> bool:
    """Whether a batch was refused because another worker has just written a notification in it.

    The caller tries again without that notification, at most twice for each sink: a notification that exists
    is not written again.
    """
    if type(answer) is not Conflict or len(batch.writes) == 1 + len(op.events) + len(op.also):
        return False
    # The writes of a batch are the change itself, then `op.also`, then events and notifications.
    return answer.entity in {write.entity for write in batch.writes[1 + len(op.also) :]}


def load_head(
    store: Store, entity: str, cipher: BodyCipher | None = None, kind: type[Any] = RunRecord
) -> LoadedHead:
    """Return the decoded head of an entity, with the body of its last entry."""
    # An interrupted read must not leave a lock of the store locked; some stores shield it themselves.
    if getattr(store, "shields_reads", False):
        head = store.load_head(entity)
    else:
        with InterruptShield():
            head = store.load_head(entity)
    if head is None:
        return LoadedHead(entity, 0, NOWHERE, None)
    _, version, own_hash, state, _, _, data = head
    body = None if data is None else decode_body(data, cipher, entity, version)
    return make(LoadedHead, (entity, version, own_hash, decode_head(state, kind), body))
