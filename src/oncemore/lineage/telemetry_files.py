"""The telemetry files of a release: `focus-`, `patterns-` and `energy-telemetry.json`.

focus-telemetry.json     `records`: one per attempt (schema `pipelines-retries-rules-v1`); `operations`: one
                         compliance record per finished run; of every run but those of the retry loop
patterns-telemetry.json  `records`: one per transition (schema `retry-loop-v1`) of the runs of the retry loop,
                         which are those under a policy of version `retry-loop-v11` or later
energy-telemetry.json    `energy` and `carbon`: one record each per attempt of every run (schemas `energy-v2`
                         and `carbon-v2`), with the method, the intensity and its source

Each record has an id that follows from its run and its place in it. A file is merged by these ids: exporting
twice, or from two stores into one release, leaves every record once. Totals are computed from the records.
"""

from __future__ import annotations

import re

from oncemore.lineage.history import add_figures, derive_id, missing_reason
from oncemore.telemetry.energy import to_grams, to_watt_hours
from oncemore.telemetry.records import build_carbon_record, build_energy_record, build_retry_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from oncemore.lineage.history import AttemptHistory, RunHistory

    Record = dict[str, Any]

FOCUS, PATTERNS, ENERGY = "focus-telemetry.json", "patterns-telemetry.json", "energy-telemetry.json"
#: The schemas of the files, beside those of their records in `telemetry/schemas`.
SCHEMAS = {FOCUS: "focus-telemetry-v1", PATTERNS: "patterns-telemetry-v1", ENERGY: "energy-telemetry-v1"}
#: The lists of records in each file.
SECTIONS = {FOCUS: ("records", "operations"), PATTERNS: ("records",), ENERGY: ("energy", "carbon")}
#: The first version of the pattern whose records are those of the loop.
FIRST_LOOP_VERSION = 11
_VERSION = re.compile(r"retry-loop-v(\d+)")
_RELEASE = re.compile(r"[\w.+-]{1,100}", re.ASCII)
#: The ten fields of a transition, as the loop's document names them, and what the transition is.
LOOP_FIELDS = (
    *("at", "kind", "state", "reason", "run_id", "node_id", "attempt", "input_hash", "seed", "cfg_hash"),
    *("idempotency_key", "checkpoint_ref", "telemetry_snapshot", "decision_proof"),
)
#: The figures of a compliance record: their unit in the log, and the conversion.
FIGURES: dict[str, tuple[str, Callable[[float], float]]] = {
    "energy_wh": ("energy_kWh", to_watt_hours),
    "co2_g": ("carbon_kgCO2e", to_grams),
}


def is_release_name(release: str) -> bool:
    """Return whether a text can be the folder of a release: one plain segment of a path."""
    return bool(_RELEASE.fullmatch(release)) and release.strip(".") != ""


def is_loop_run(history: RunHistory) -> bool:
    """Return whether a run belongs to the retry loop, by the version of its policy."""
    version = history.run.policy.partition("@")[2]
    match = _VERSION.match(version)
    return match is not None and int(match[1]) >= FIRST_LOOP_VERSION


def telemetry_records(history: RunHistory, release: str) -> Iterator[tuple[str, str, str, Record]]:
    """Yield file, section, id and record of each record that the files of a release have of a run."""
    # An attempt that still runs has no outcome yet; the next export has it.
    ended = [
        (position, attempt.end_record)
        for position, attempt in enumerate(history.attempts, 1)
        if attempt.end_record is not None
    ]
    for position, end in ended:
        own = _record_id("attempt", history, position)
        yield ENERGY, "energy", own, {"record_id": own, **build_energy_record(end)}
        yield ENERGY, "carbon", own, {"record_id": own, **build_carbon_record(end)}
    if is_loop_run(history):
        for position, record in enumerate(history.records):
            own = _record_id("transition", history, position)
            yield PATTERNS, "records", own, {"record_id": own, **{name: record[name] for name in LOOP_FIELDS}}
        return
    for position, end in ended:
        own = _record_id("attempt", history, position)
        identity = {"record_id": own, "run_id": history.run.run_id, "is_retry": position > 1}
        fields = build_retry_record(end, pipeline_id(history), first=history.attempts[0].number)
        yield FOCUS, "records", own, {**identity, **fields}
    if history.ended is not None and history.attempts:
        own = _record_id("operation", history, 0)
        yield FOCUS, "operations", own, {"record_id": own, **build_compliance_record(history, release)}


def _record_id(kind: str, history: RunHistory, position: int) -> str:
    # By run and not by work: two runs of one key are two records.
    return derive_id(kind, run=history.run.run_id, position=position).rpartition(":")[2]


def pipeline_id(history: RunHistory) -> str:
    """Return the pipeline of a run; a run that was recorded without one is a pipeline of its own."""
    return history.pipeline or history.run.step


def error_class(attempt: AttemptHistory) -> str | None:
    """Return the class of an attempt's error: its code, or its type; None without an error."""
    if attempt.outcome not in ("SOFT_FAIL", "HARD_FAIL"):
        return None
    error = attempt.error or {}
    return str(error.get("code") or error.get("type") or attempt.reason or "UNKNOWN")


def build_compliance_record(history: RunHistory, release: str) -> Record:
    """Return the compliance record of a run that is over; its energy and carbon are those of all attempts."""
    figures: dict[str, float | None] = {}
    unavailable: dict[str, str] = {}
    for name, (source, convert) in FIGURES.items():
        total = add_figures(each.telemetry.get(source) for each in history.attempts)
        figures[name] = None if total is None else convert(total)
        if total is None:
            reasons = (missing_reason(each.telemetry, source) for each in history.attempts)
            unavailable[name] = next(reason for reason in reasons if reason)
    return {
        "run_id": history.run.run_id,
        "pipeline_id": pipeline_id(history),
        "stage": history.run.step,
        "attempts": len(history.attempts),
        "retry_policy": history.run.policy.partition("@")[0],
        "errors": [error for each in history.attempts if (error := error_class(each)) is not None],
        "final_status": "success" if history.run.state == "COMPLETE" else "failure",
        "circuit_open": history.attempts[-1].circuit_open,
        **figures,
        "unavailable": unavailable,
        "telemetry_ref": f"releases/{release}/{FOCUS}",
    }


def compute_totals(file: str, *sections: Iterable[Record]) -> Record:
    """Return the totals of a file from its sections; a sum is null if one of its figures is missing."""
    return _TOTALS[file](*sections)


class _Sum:
    """A sum that is None as soon as one figure is missing; it counts the missing ones."""

    def __init__(self) -> None:
        self.total, self.missing = 0.0, 0

    def add(self, figure: float | None) -> None:
        self.total += figure or 0.0
        self.missing += figure is None

    @property
    def value(self) -> float | None:
        # Rounded, because the order of the records must not show in the last digits.
        return None if self.missing else round(self.total, 9)


def _total_focus(records: Iterable[Record], operations: Iterable[Record]) -> Record:
    sums = {name: _Sum() for name in ("energy_wh", "co2_g", "retry_energy_wh", "retry_co2_g")}
    counts = {"attempts": 0, "retries": 0, "failed_attempts": 0, "delay_ms": 0, "unmeasured_attempts": 0}
    for record in records:
        counts["attempts"] += 1
        counts["retries"] += record["is_retry"]
        counts["failed_attempts"] += record["outcome"] == "failure"
        counts["delay_ms"] += record["delay_ms"]
        counts["unmeasured_attempts"] += record["energy_wh"] is None
        # The figures of a record are those that retrying has caused.
        sums["retry_energy_wh"].add(record["energy_wh"])
        sums["retry_co2_g"].add(record["co2_g"])
    ended = {"operations": 0, "succeeded": 0}
    for operation in operations:
        ended["operations"] += 1
        ended["succeeded"] += operation["final_status"] == "success"
        sums["energy_wh"].add(operation["energy_wh"])
        sums["co2_g"].add(operation["co2_g"])
    return {**ended, **counts, **{name: one.value for name, one in sums.items()}}


def _total_patterns(records: Iterable[Record]) -> Record:
    sums = {name: _Sum() for name in ("energy_kWh", "carbon_kgCO2e", "cost_usd")}
    counts = {"records": 0, "attempts": 0, "completed": 0, "failed": 0, "unmeasured_attempts": 0}
    for record in records:
        counts["records"] += 1
        counts["attempts"] += record["kind"] == "INTENT"
        counts["completed"] += record["kind"] == "TRANSITION" and record["state"] == "COMPLETE"
        counts["failed"] += record["kind"] == "TRANSITION" and record["state"] == "HARD_FAIL"
        # The end of an attempt is one transition; its other records repeat the same snapshot.
        if record["kind"] == "TRANSITION" and record["state"] in ("COMPLETE", "SOFT_FAIL", "HARD_FAIL"):
            snapshot = record["telemetry_snapshot"]
            counts["unmeasured_attempts"] += snapshot["energy_kWh"] is None
            for name, one in sums.items():
                one.add(snapshot[name])
    return {**counts, **{name: one.value for name, one in sums.items()}}


def _total_energy(energy: Iterable[Record], carbon: Iterable[Record]) -> Record:
    sums = {name: _Sum() for name in ("energy_kWh", "cost_usd", "carbon_kgCO2e")}
    attempts = 0
    for record in energy:
        attempts += 1
        sums["energy_kWh"].add(record["energy_kWh"])
        sums["cost_usd"].add(record["cost_usd"])
    for record in carbon:
        sums["carbon_kgCO2e"].add(record["carbon_kgCO2e"])
    unmeasured = sums["energy_kWh"].missing
    totals = {name: one.value for name, one in sums.items()}
    return {"attempts": attempts, "unmeasured_attempts": unmeasured, **totals}


_TOTALS: dict[str, Callable[..., Record]] = {
    FOCUS: _total_focus,
    PATTERNS: _total_patterns,
    ENERGY: _total_energy,
}
