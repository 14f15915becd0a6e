"""CloudEvents 1.0, read by the SDK of the project itself."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from oncemore.lineage.exports import ExportOptions, write_cloud_events

if TYPE_CHECKING:
    from oncemore.lineage.history import RunHistory


def export(histories: list[RunHistory], **options: Any) -> list[str]:
    file = io.StringIO()
    count = write_cloud_events(histories, file, ExportOptions(**options))
    lines = file.getvalue().splitlines()
    assert len(lines) == count
    return lines


def test_every_transition_is_an_event_that_the_sdk_accepts(histories: list[RunHistory]) -> None:
    lines = export(histories, namespace="survey", conforms_to=("KFM-PDC v11",))
    # The SDK validates the attributes when it builds the event.
    events = [JSONFormat().read(CloudEvent, line) for line in lines]
    assert len(events) == sum(len(history.records) for history in histories) > 20
    assert len({event.get_id() for event in events}) == len(events)
    assert {event.get_source() for event in events} == {"/survey"}
    types = {event.get_type() for event in events}
    assert {"oncemore.run.pending.v1", "oncemore.run.commit.v1", "oncemore.run.soft_fail.v1"} <= types
    assert all(event.get_time() is not None for event in events)
    data = events[0].get_data()
    assert isinstance(data, dict)
    assert data["conforms_to"] == ["KFM-PDC v11"]


def test_a_second_export_repeats_the_ids_and_no_event_has_the_key(histories: list[RunHistory]) -> None:
    lines = export(histories)
    assert lines == export(histories)
    for history in histories:
        assert not any(history.key in line for line in lines)
    assert not any("sk-secret" in line for line in lines)
    assert all("correlationid" in json.loads(line) for line in lines)
