"""Lineage as run events of OpenLineage 2-0-2: the history of a run, in order.

The id of a run in OpenLineage is a UUID computed from the work and the number of its run. A run that is made
again in another store has the same id; a further run of the same key has another one, because OpenLineage
allows no event after the last one of a run. The key itself is not exported.
"""

from __future__ import annotations

from uuid import UUID

from oncemore.lineage.history import (
    PARTITION,
    activity_id,
    derive_id,
    history_activity,
    list_generated,
    list_used,
    sum_measured,
)
from oncemore.lineage.prov import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.lineage.history import AttemptHistory, RunHistory

    Event = dict[str, Any]

SCHEMA_URL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
PARENT_SCHEMA = f"{_FACETS}/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet"
ERROR_SCHEMA = f"{_FACETS}/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
VERSION_SCHEMA = f"{_FACETS}/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
JOB_TYPE_SCHEMA = f"{_FACETS}/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"
#: The schema of our own facets: any facet may have further fields.
OWN_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunFacet"
#: The last event of a run by its state.
LAST_EVENTS = {"COMPLETE": "COMPLETE", "HARD_FAIL": "FAIL"}
CANCELLED = "cancelled"


def run_uuid(activity: str, run_number: int) -> str:
    """Return the id of a run in OpenLineage: a UUID of version 8 from the work and the run's number."""
    digits = derive_id("run", of=activity, run=run_number).rpartition(":")[2]
    bits = int(digits, 16)
    # Version and variant, as RFC 9562 places them.
    bits = bits & ~(0xF << 76) | (8 << 76)
    bits = bits & ~(0x3 << 62) | (0x2 << 62)
    return str(UUID(int=bits))


def event_id(event: Event) -> str:
    """Return the id of an event: a receiver can drop a repetition by it."""
    parts = {"run": event["run"]["runId"], "type": event["eventType"], "time": event["eventTime"]}
    return derive_id("openlineage", **parts).rpartition(":")[2]


def run_events(
    history: RunHistory, *, producer: str, namespace: str, conforms_to: tuple[str, ...] = ()
) -> Iterator[Event]:
    """Yield the events of a run: its start, each failed attempt, and its end."""
    # A run that waits for its first attempt has no START yet.
    if history.started is None:
        return
    base = _Base(history, producer, namespace, conforms_to)
    yield base.build("START", history.started)
    failed = [attempt for attempt in history.attempts if attempt.outcome in ("SOFT_FAIL", "HARD_FAIL")]
    last = LAST_EVENTS.get(history.run.state, "")
    for attempt in failed:
        # The last failure of a failed run is its last event.
        if attempt.outcome == "SOFT_FAIL" and attempt.ended is not None:
            yield base.build("RUNNING", attempt.ended, attempt)
    if last and history.ended is not None:
        kind = "ABORT" if history.run.reason == CANCELLED else last
        final = failed[-1] if failed and last == "FAIL" else None
        yield base.build(kind, history.ended, final, is_last=True)


class _Base:
    """Builds the events of one run."""

    def __init__(
        self, history: RunHistory, producer: str, namespace: str, conforms_to: tuple[str, ...]
    ) -> None:
        self.history, self.producer, self.namespace = history, producer, namespace
        self.conforms_to = conforms_to
        self.run_id = run_uuid(history_activity(history), history.run.run_number)

    def build(
        self, kind: str, at: float, attempt: AttemptHistory | None = None, *, is_last: bool = False
    ) -> Event:
        """Return one event."""
        # Before the end only the arguments are known: an event must be the same in every export.
        inputs = [edge for edge in list_used(self.history) if is_last or edge[1]["kind"] == "arguments"]
        outputs = list_generated(self.history) if kind == "COMPLETE" else ()
        return {
            "eventTime": format_instant(at),
            "eventType": kind,
            "producer": self.producer,
            "schemaURL": SCHEMA_URL,
            "run": {"runId": self.run_id, "facets": self._run_facets(attempt, is_last)},
            "job": {
                "namespace": self.namespace,
                "name": self.history.run.step,
                "facets": {
                    "jobType": self._facet(
                        JOB_TYPE_SCHEMA, processingType="BATCH", integration="ONCEMORE", jobType="STEP"
                    )
                },
            },
            "inputs": [self._dataset(*edge) for edge in inputs],
            "outputs": [self._dataset(*edge) for edge in outputs],
        }

    def _facet(self, schema: str, **fields: Any) -> dict[str, Any]:
        return {"_producer": self.producer, "_schemaURL": schema, **fields}

    def _run_facets(self, attempt: AttemptHistory | None, is_last: bool) -> dict[str, Any]:
        history, run = self.history, self.history.run
        own: dict[str, Any] = {"runId": run.run_id, "runNumber": run.run_number}
        if is_last:
            sums = sum_measured(history.attempts)
            own |= {
                "state": run.state,
                "attempts": len(history.attempts),
                "energy_kWh": sums.energy_kWh,
                "carbon_kgCO2e": sums.carbon_kgCO2e,
            }
        if self.conforms_to:
            own["conformsTo"] = list(self.conforms_to)
        facets = {"oncemore_run": self._facet(OWN_SCHEMA, **own)}
        if attempt is not None:
            facets["oncemore_attempt"] = self._facet(OWN_SCHEMA, **_attempt_facts(history, attempt))
            error = attempt.error or {}
            message = f"{error.get('type', 'error')}: {error.get('message', attempt.reason)}"
            facets["errorMessage"] = self._facet(ERROR_SCHEMA, message=message, programmingLanguage="python")
        if (parent := history.parent) is not None:
            parent_run = run_uuid(activity_id(parent.step, parent.key, parent.cfg_hash), parent.run_number)
            facets["parent"] = self._facet(
                PARENT_SCHEMA,
                run={"runId": parent_run},
                job={"namespace": self.namespace, "name": parent.step},
            )
        return facets

    def _dataset(self, entity: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Return a dataset: an artifact by its name and partition, any other content by its digest."""
        name = entity.rpartition(":")[2]
        if facts["kind"] in ("artifact", "content"):
            parts = [f"{part}={facts[part]}" for part in PARTITION if facts.get(part)]
            name = "/".join([facts["name"], *parts])
        version = self._facet(VERSION_SCHEMA, datasetVersion=f"sha256:{facts['digest']}")
        return {"namespace": self.namespace, "name": name, "facets": {"version": version}}


def _attempt_facts(history: RunHistory, attempt: AttemptHistory) -> dict[str, Any]:
    return {
        # Counted within the run: the number over all runs of the key depends on the store.
        "attempt": history.attempts.index(attempt) + 1,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "retryable": attempt.retryable,
        "delay_s": attempt.delay_s,
    }
