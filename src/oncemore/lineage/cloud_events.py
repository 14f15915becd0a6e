"""Transitions of runs as CloudEvents 1.0, one JSON document each.

The id follows from the run, the position and the name of the transition: an event that is exported again is a
repetition that a consumer can recognise by `source` and `id`. The key of the run is not exported (IDEM-15):
`subject` is the id of the work, which is computed from it.
"""

from __future__ import annotations

from oncemore.lineage.history import derive_id, history_activity
from oncemore.lineage.prov import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.lineage.history import RunHistory

SPEC_VERSION = "1.0"
TYPE_PREFIX = "oncemore.run."
#: Fields of a record that are not sent: the key is internal, and the sequence number differs by store.
WITHHELD = ("idempotency_key", "checkpoint_ref", "seq")


def cloud_events(
    history: RunHistory, *, source: str, conforms_to: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """Yield one event for each recorded transition of a run."""
    activity = history_activity(history)
    for position, record in enumerate(history.records):
        name = record["state"] if record["kind"] == "TRANSITION" else record["kind"]
        identity = {"run": history.run.run_id, "position": position, "name": name}
        data = {field: value for field, value in record.items() if field not in WITHHELD}
        if conforms_to:
            data["conforms_to"] = list(conforms_to)
        attributes = {
            "specversion": SPEC_VERSION,
            "id": derive_id("event", **identity).rpartition(":")[2],
            "source": source,
            "type": f"{TYPE_PREFIX}{name.lower()}.v1",
            "subject": activity,
            "time": format_instant(record["at"]),
            "datacontenttype": "application/json",
            "correlationid": record["correlation_id"],
        }
        # An attribute of a CloudEvent is never empty: left out if there is no value.
        yield {**{key: value for key, value in attributes.items() if value}, "data": data}
