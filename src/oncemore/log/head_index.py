"""What heads are listed by: apart from writing them, because who only reads a log needs no more than this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore._values import make
from oncemore.control.model import Approval, Control
from oncemore.limits.cooldown_rules import Resource
from oncemore.log.record import (
    Chore,
    Circuit,
    Kept,
    Mapped,
    Outgoing,
    Quota,
    RecordedPolicy,
    Run,
    StoreSecret,
    due,
    unsent,
)
from oncemore.log.store import Index

if TYPE_CHECKING:
    from oncemore.log.record import Entity

#: How a run that waits for a person is listed, whatever its state: they are few among many that wait.
HELD = "HELD"


def index_of(state: Entity) -> Index:
    """Return what a head is looked up by; a worker's is its own business (`steps.lease`)."""
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
    if type(state) is Resource:
        due_at = state.next_eligible_attempt_at if state.state == "COOLING" else None
        return Index("resource", state.state, due_at, state.step)
    if type(state) is Circuit:
        return Index("breaker", state.state, None, state.name, state.worker)
    if type(state) is Quota:
        return Index("quota", state.state, None, state.name)
    if type(state) is Control:
        return Index("control", state.state)
    if type(state) is Approval:
        return Index("approval", state.state, None, state.step)
    if type(state) is StoreSecret:
        return Index("secret", state.state)
    if type(state) is RecordedPolicy:
        return Index("policy", state.state, None, state.name)
    assert type(state) is Kept
    # Also by its time, so that listing artifacts reads nothing else.
    return Index("artifact", state.state, state.created, state.step)
