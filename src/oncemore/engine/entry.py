"""Entries on their way into a store and heads on their way out of it: bytes, and what they are listed by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.codec.wire import body_of, head_of, written
from oncemore.core.record import (
    NOWHERE,
    Change,
    Chore,
    Circuit,
    Kept,
    Mapped,
    Outgoing,
    Quota,
    Run,
    Worker,
    due,
    unsent,
)
from oncemore.core.value import make
from oncemore.engine import artifacts
from oncemore.engine.ids import nonce
from oncemore.engine.lease import Shield
from oncemore.engine.ops import (
    Save,
    Seen,
)
from oncemore.store.base import Batch, Conflict, Index, Stored, Write

if TYPE_CHECKING:
    from oncemore.codec.seal import Seal
    from oncemore.store.base import Store

    Answered = Stored | Conflict

CHECKPOINT: tuple[Any, ...] = ("CHECKPOINT",)
EVENT: tuple[Any, ...] = ("EVENT",)
ARTIFACT: tuple[Any, ...] = ("ARTIFACT",)
#: How a run that waits for a person is listed, whatever its state: they are few among many that wait.
HELD = "HELD"


def index_of(state: Run | Worker | Outgoing | Kept | Chore | Mapped | Circuit | Quota) -> Index:
    """Return what a head is looked up by; a worker's is its own business (`engine.lease`)."""
    if type(state) is Run:
        listed = HELD if state.held_for else state.state
        return make(Index, ("run", listed, due(state), state.step, state.worker, state.dataset))
    if type(state) is Outgoing:
        return Index("event", state.state, unsent(state), state.topic, state.worker)
    if type(state) is Chore:
        return Index("chore", state.state, None, state.what, state.worker)
    if type(state) is Mapped:
        due_at = state.created if state.state == "RUNNING" else None
        return Index("job", state.state, due_at, state.step, state.worker)
    if type(state) is Circuit:
        return Index("breaker", state.state, None, state.name, state.worker)
    if type(state) is Quota:
        return Index("quota", state.state, None, state.name)
    assert type(state) is Kept
    return artifacts.index_of(state)


def write_of(
    entity: str, version: int, prev: bytes, change: Change, now: float, seal: Seal | None = None
) -> Write:
    """Return the bytes of an entity's next entry, ready to be appended."""
    made = written(change, entity, version + 1, prev, now, nonce(), seal)
    return make(Write, (entity, version, *made, index_of(change.after)))


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
    return answer.entity in {write.entity for write in batch.writes[1:]}


def seen_in(store: Store, entity: str, seal: Seal | None = None, kind: type[Any] = Run) -> Seen:
    """Return an entity as it is in a store, with the body of its last entry."""
    with Shield():
        head = store.head(entity)
    if head is None:
        return Seen(entity, 0, NOWHERE, None)
    body = None if head.body is None else body_of(head.body, seal)
    return Seen(entity, head.version, head.hash, head_of(head.head, kind), body)
