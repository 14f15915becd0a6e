"""The history of one run as a value: the input of all exporters of this folder.

The values hold the content of the log and nothing else. A figure that was not measured is None, with the
reason beside it.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.lineage.ids import URN_PREFIX, entity_id
from oncemore.policy.canonical_json import canonical_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from oncemore.lineage.ids import RunLineage
    from oncemore.log.record import RunRecord

NOT_MEASURED = "not measured"
PARTITION = ("date", "site", "h3")


class AttemptHistory(Value):
    """One attempt of a run, from its entries in the log.

    number        the number of the attempt, counted over all runs of its key
    ended         None while it runs, or after its worker was lost
    outcome       the state that its end left the run in; RUNNING if it has not ended
    error         the recorded error, without its cause
    delay_s       the decided wait before the next attempt; None after the last one
    retryable     whether the failure may be tried again; None without a failure
    circuit_open  whether the breaker of its provider was open at its end
    telemetry     the measured values of the attempt (`telemetry_snapshot`)
    end_record    the exported record of its end; None if it has not ended or cannot be read
    """

    number: int
    began: float
    ended: float | None = None
    outcome: str = "RUNNING"
    reason: str = ""
    error: dict[str, Any] | None = None
    delay_s: float | None = None
    retryable: bool | None = None
    circuit_open: bool = False
    telemetry: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    end_record: dict[str, Any] | None = None


class ParentRun(Value):
    """The run whose function called this one, as far as the log knows it."""

    step: str
    key: str
    cfg_hash: str
    run_number: int


class RunHistory(Value):
    """One run of a key.

    run        the record after the run's last entry
    started    the time of its first attempt; None before that
    ended      the time of its last entry if the run is over; None while it is open
    changed    the time of its last entry
    attempts   its attempts, oldest first
    used       its inputs, as COMMIT or the last failed attempt stored them (`steps.inputs`)
    artifacts  the artifacts that COMMIT stored: digest, size, name, media type, partition
    result     the digest of its result; empty if it has none
    lineage    the ids of its inputs and outputs; None unless the run is complete and readable
    records    the records of its transitions (`export_records`)
    sealed     the reason why its bodies cannot be read; empty if they can
    is_latest  whether no later run of the key has the same configuration: both would be the same activity
    """

    key: str
    run: RunRecord
    changed: float
    pipeline: str = ""
    parent: ParentRun | None = None
    started: float | None = None
    ended: float | None = None
    attempts: tuple[AttemptHistory, ...] = ()
    used: tuple[dict[str, Any], ...] = ()
    artifacts: tuple[dict[str, Any], ...] = ()
    result: str = ""
    lineage: RunLineage | None = None
    records: tuple[dict[str, Any], ...] = ()
    sealed: str = ""
    is_latest: bool = True


class MeasuredSums(Value):
    """The energy and carbon of attempts; a sum is None if an attempt has no figure.

    retry_energy_kWh, retry_carbon_kgCO2e  the part of all attempts after the first one
    """

    energy_kWh: float | None  # noqa: N815 - the names and units of the exported fields
    carbon_kgCO2e: float | None  # noqa: N815
    retry_energy_kWh: float | None  # noqa: N815
    retry_carbon_kgCO2e: float | None  # noqa: N815
    reason: str = ""


def activity_id(step: str, key: str, cfg_hash: str) -> str:
    """Return the id of work, from its step, key and configuration."""
    return f"{URN_PREFIX}:activity:{canonical_digest({'step': step, 'key': key, 'cfg': cfg_hash})[:32]}"


def history_activity(history: RunHistory) -> str:
    """Return the id of the work of a run; a run that is not complete has it too."""
    return activity_id(history.run.step, history.key, history.run.cfg_hash)


def derive_id(kind: str, **parts: Any) -> str:
    """Return an id of a kind from other ids: equal parts give equal ids, in every store and run."""
    return f"{URN_PREFIX}:{kind}:{canonical_digest(parts)[:32]}"


def list_used(history: RunHistory) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entity id and the facts of each input; the arguments as a whole are the last one."""
    seen = set()
    for edge in history.used:
        # Equal bytes under two names are one entity.
        if edge["digest"] not in seen:
            seen.add(edge["digest"])
            yield entity_id(edge["digest"]), edge
    digest = history.run.input_hash
    if digest and digest not in seen:
        yield entity_id(digest), {"kind": "arguments", "name": "arguments", "digest": digest}


def list_generated(history: RunHistory) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entity id and the facts of each output: the artifacts, and the result."""
    seen = set()
    for artifact in history.artifacts:
        if artifact["digest"] not in seen:
            seen.add(artifact["digest"])
            yield entity_id(artifact["digest"]), {"kind": "artifact", **artifact}
    # A large result is stored as an artifact, and may be among them.
    if history.result and history.result not in seen:
        yield entity_id(history.result), {"kind": "result", "name": "result", "digest": history.result}


def sum_measured(attempts: Iterable[AttemptHistory]) -> MeasuredSums:
    """Return the energy and carbon of attempts, and the part of the attempts after the first."""
    energies, carbons, reason = [], [], ""
    for attempt in attempts:
        energies.append(attempt.telemetry.get("energy_kWh"))
        carbons.append(attempt.telemetry.get("carbon_kgCO2e"))
        reason = reason or missing_reason(attempt.telemetry, "energy_kWh")
        reason = reason or missing_reason(attempt.telemetry, "carbon_kgCO2e")
    return MeasuredSums(
        energy_kWh=add_figures(energies),
        carbon_kgCO2e=add_figures(carbons),
        retry_energy_kWh=add_figures(energies[1:]),
        retry_carbon_kgCO2e=add_figures(carbons[1:]),
        reason=reason,
    )


def add_figures(figures: Iterable[float | None]) -> float | None:
    """Return the sum of figures; None if one of them is missing, because the sum would be too small."""
    total = 0.0
    for figure in figures:
        if figure is None:
            return None
        total += figure
    return total


def missing_reason(telemetry: dict[str, Any], field: str) -> str:
    """Return the reason of a missing value; empty if the value is there."""
    if telemetry.get(field) is not None:
        return ""
    unavailable = telemetry.get("unavailable") or {}
    return str(unavailable.get(field) or NOT_MEASURED)
