"""Send events of OpenLineage to an HTTP receiver: each is retried, and sent once per id.

Every event is a call of a durable step in a log of its own, keyed by the receiver and the id of the event. A
second export skips the events that were delivered, and continues where an earlier one was interrupted. A
receiver that answers and loses its answer on the way gets the event twice, with the same `ce-id`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.lineage.exports import PRODUCER
from oncemore.lineage.open_lineage import event_id
from oncemore.messaging.message import EventMessage
from oncemore.messaging.sinks import WebhookSink
from oncemore.steps.decorator import step

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STEP_NAME = "oncemore.send_lineage"
TOPIC = "openlineage.run_event"


class DeliveryReport(Value):
    """The number of events that were sent now, and of those that the receiver had already."""

    sent: int
    present: int
    receiver: str


def send_events(
    events: Iterable[dict[str, Any]], receiver: str, log: Path, *, token: str = "", attempts: int = 5
) -> DeliveryReport:
    """Post events to a receiver in their order, once per id; stop at the first that cannot be delivered."""
    from oncemore import open_engine

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # The body is the event itself; its id is in a header field.
    sink = WebhookSink(receiver, headers=headers, form="cloudevents-binary", source=PRODUCER)
    counts = {"sent": 0, "seen": 0}

    @step(effect="idempotent", name=STEP_NAME, ignore=("event",), attempts=attempts)
    def send_event(receiver: str, identity: str, event: dict[str, Any]) -> None:
        sink(_make_message(identity, event))
        counts["sent"] += 1

    with open_engine.open(log) as engine:
        bound = send_event.bind(engine)
        for event in events:
            counts["seen"] += 1
            bound(receiver, event_id(event), event)
    return DeliveryReport(counts["sent"], counts["seen"] - counts["sent"], receiver)


def _make_message(identity: str, event: dict[str, Any]) -> EventMessage:
    from datetime import datetime

    return EventMessage(
        id=identity,
        topic=TOPIC,
        payload=event,
        correlation_id=event["run"]["runId"],
        tenant="",
        created=datetime.fromisoformat(event["eventTime"]).timestamp(),
        lane=event["run"]["runId"],
        sequence=0,
        attempt=1,
    )
