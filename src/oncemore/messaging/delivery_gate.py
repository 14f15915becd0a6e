"""Asks the gate before an event is sent, and holds the event while its dataset does not permit it.

An event that was committed before its dataset was blocked, withdrawn or restricted is not sent after that
(GUA-8). The dataset is read with the switches, and its version is a guard of the claim of the event: if it
changes between the read and the claim, the store refuses the claim, and the gate is asked again.

    before the hold is stored   nothing was sent; the next pass asks the gate again
    after it is stored          the event stays PENDING with its reason; each pass asks, and writes nothing

There is no second decision of a person, as there is for a held run: the work was permitted when it was done,
and the release of the dataset lets its event go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.control.notifications import TOPIC_PREFIX as NOTIFICATION_PREFIX
from oncemore.events import DeliveryHeld
from oncemore.governance.dataset_model import GATE_HOLDS, GateRequest, find_gate_objection
from oncemore.log.record import RecordChange
from oncemore.steps.ops import AppendChange, NotifyListeners

if TYPE_CHECKING:
    from oncemore.governance.dataset_model import GateObjection
    from oncemore.log.record import EventRecord, LoadedHead
    from oncemore.steps.ops import Permission, Script


def is_notification(event: EventRecord) -> bool:
    """Return whether an event is a notification for operators, who need it while work is stopped."""
    return event.topic.startswith(NOTIFICATION_PREFIX)


def is_held_by_gate(event: EventRecord) -> bool:
    """Return whether the gate refused an event before, and the event says so."""
    return event.state == "PENDING" and event.reason in GATE_HOLDS.values()


def find_gated_dataset(event: EventRecord, dataset: str) -> str:
    """Return the dataset that the gate is asked about; empty for a notification, which carries no data."""
    # Events of earlier versions have no dataset of their own; that of the run is asked about.
    return "" if is_notification(event) else event.dataset or dataset


def find_delivery_objection(event: EventRecord, dataset: str, permission: Permission) -> GateObjection | None:
    """Return why the gate refuses to send an event; None if it permits it."""
    if not dataset:
        return None
    # The attempt that emitted it was permitted; only what has changed since then counts here.
    request = GateRequest(event.operation, masking=0, masked_before=0, governed=False)
    return find_gate_objection(dataset, permission.datasets[0], request)


def hold_event(head: LoadedHead, objection: GateObjection, permission: Permission) -> Script:
    """Record why an event is not sent, once; return False if the event or the dataset has changed."""
    event, reason = head.record, GATE_HOLDS[objection.code]
    if is_held_by_gate(event) and event.reason == reason:
        return True
    # A lost attempt of a dead relay ends here: the event is not sent again before the gate permits it.
    after = event._replace(state="PENDING", worker="", reason=reason)
    gate = {"dataset": objection.dataset, "care_label": objection.care_label, "text": objection.text}
    change = RecordChange(("PENDING", "ESCALATION"), event, after, {"gate": gate})
    saved = yield AppendChange(head, change, guards=permission.guards)
    if saved is None:
        return False
    yield NotifyListeners(DeliveryHeld(event.topic, event.event_id, objection.dataset, objection.text))
    return True
