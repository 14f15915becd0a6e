"""The index columns of a head, computed from its record.

Separate from `log.head_access`, because read-only commands need this module and nothing of the write path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore._values import make
from oncemore.control.model import Approval, SwitchBoard
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.log.record import (
    ArtifactRecord,
    BreakerRecord,
    EventRecord,
    JobRecord,
    MaintenanceRecord,
    QuotaRecord,
    RecordedPolicy,
    RunRecord,
    StoreSecret,
)
from oncemore.log.store import HeadIndex

if TYPE_CHECKING:
    from oncemore.log.record import Entity

#: Index state of a run that waits for an operator, in any state of the run: held runs are few among many
#: waiting ones, and a query for them must not read all.
HELD = "HELD"


def run_due_at(run: RunRecord) -> float | None:
    """Return the earliest time of the next attempt; None for a run that has ended, is held, or is running.

    A running run has no due time: if it is lost, it is found through its worker, whose lease ends.
    """
    if run.state in ("PENDING", "SOFT_FAIL") and not run.held_for:
        return run.not_before
    return None


def event_due_at(event: EventRecord) -> float | None:
    """Return the time at which an event may be sent, or None for one that needs no delivery.

    An event in SENDING has a due time too: the relay that sends it may have died.
    """
    if event.state in ("PENDING", "SENDING"):
        # Without a retry time the creation time, so that the oldest events come first.
        return event.not_before or event.created_at
    return None


def build_index(state: Entity) -> HeadIndex:
    """Return the index columns of a record; those of a worker are built in `steps.lease`."""
    if type(state) is RunRecord:
        # `make` and the exact type: every append passes here, most of them with a run.
        status = HELD if state.held_for else state.state
        return make(HeadIndex, ("run", status, run_due_at(state), state.step, state.worker, state.dataset))
    if type(state) is EventRecord:
        return HeadIndex("event", state.state, event_due_at(state), state.topic, state.worker)
    if type(state) is MaintenanceRecord:
        return HeadIndex("maintenance", state.state, None, state.task, state.worker)
    if type(state) is JobRecord:
        due_at = state.created_at if state.state == "RUNNING" else None
        return HeadIndex("job", state.state, due_at, state.step, state.worker)
    if type(state) is ResourceRecord:
        due_at = state.next_eligible_attempt_at if state.state == "COOLING" else None
        return HeadIndex("resource", state.state, due_at, state.step)
    if type(state) is BreakerRecord:
        return HeadIndex("breaker", state.state, None, state.name, state.probe_worker)
    if type(state) is QuotaRecord:
        return HeadIndex("quota", state.state, None, state.name)
    if type(state) is SwitchBoard:
        return HeadIndex("control", state.state)
    if type(state) is Approval:
        return HeadIndex("approval", state.state, None, state.step)
    if type(state) is StoreSecret:
        return HeadIndex("secret", state.state)
    if type(state) is RecordedPolicy:
        return HeadIndex("policy", state.state, None, state.name)
    assert type(state) is ArtifactRecord
    # The due column holds the creation time, so that listing artifacts by time reads no bodies.
    return HeadIndex("artifact", state.state, state.created_at, state.step)
