"""The telemetry files of a release: `focus-telemetry.json` and `patterns-telemetry.json`.

focus-telemetry.json     one record per attempt, and one compliance record per run, of every run but those of
                         the retry loop; schema `pipelines-retries-rules-v1`
patterns-telemetry.json  one record per transition of the runs of the retry loop (policies of version
                         `retry-loop-v11` and later); schema `retry-loop-v1`

Each record has an id that follows from its run and its place in it. A file is merged by these ids: exporting
twice, or from two stores into one release, leaves every record once. Totals are computed from the records.
"""

from __future__ import annotations

import re

from oncemore.lineage.history import add_figures, derive_id, missing_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from oncemore.lineage.history import AttemptHistory, RunHistory

    Record = dict[str, Any]

FOCUS, PATTERNS = "focus-telemetry.json", "patterns-telemetry.json"
SCHEMAS = {FOCUS: "pipelines-retries-rules-v1", PATTERNS: "retry-loop-v1"}
#: The first version of the pattern whose records are those of the loop.
FIRST_LOOP_VERSION = 11
_VERSION = re.compile(r"retry-loop-v(\d+)")
_RELEASE = re.compile(r"[\w.+-]{1,100}", re.ASCII)
#: The ten fields of a transition, as the loop's document names them, and what identifies the record.
LOOP_FIELDS = (
    *("run_id", "node_id", "attempt", "input_hash", "seed", "cfg_hash", "idempotency_key"),
    *("checkpoint_ref", "telemetry_snapshot", "decision_proof"),
)
#: The measured values that every snapshot has; null comes with a reason.
MEASURED = ("energy_kWh", "carbon_kgCO2e", "cost_usd", "duration_s", "queue_depth")


def is_release_name(release: str) -> bool:
    """Return whether a text can be the folder of a release: one plain segment of a path."""
    return bool(_RELEASE.fullmatch(release)) and release.strip(".") != ""


def is_loop_run(history: RunHistory) -> bool:
    """Return whether a run belongs to the retry loop, by the version of its policy."""
    version = history.run.policy.partition("@")[2]
    match = _VERSION.match(version)
    return match is not None and int(match[1]) >= FIRST_LOOP_VERSION


def telemetry_records(history: RunHistory, release: str) -> Iterator[tuple[str, str, str, Record]]:
    """Yield file, section, id and record of everything that the files of a release say about a run."""
    if is_loop_run(history):
        for position, record in enumerate(history.records):
            own = _record_id("transition", history, position)
            yield PATTERNS, "records", own, {"record_id": own, **_build_loop_record(record)}
        return
    for position, attempt in enumerate(history.attempts, 1):
        # An attempt that still runs has no outcome yet; the next export has it.
        if attempt.ended is not None:
            own = _record_id("attempt", history, position)
            yield (
                FOCUS,
                "records",
                own,
                {"record_id": own, **_build_attempt_record(history, attempt, position)},
            )
    if history.ended is not None and history.attempts:
        own = _record_id("operation", history, 0)
        yield FOCUS, "operations", own, {"record_id": own, **build_compliance_record(history, release)}


def _record_id(kind: str, history: RunHistory, position: int) -> str:
    return derive_id(kind, run=history.run.run_id, position=position).rpartition(":")[2]


def _build_attempt_record(history: RunHistory, attempt: AttemptHistory, position: int) -> Record:
    """Return the record of one attempt, with the ten fields of the rules."""
    energy, carbon = (attempt.telemetry.get(name) for name in ("energy_kWh", "carbon_kgCO2e"))
    unavailable = {
        field: reason
        for field, source in (("energy_wh", "energy_kWh"), ("co2_g", "carbon_kgCO2e"))
        if (reason := missing_reason(attempt.telemetry, source))
    }
    return {
        "run_id": history.run.run_id,
        "pipeline_id": history.pipeline or None,
        "stage_name": history.run.step,
        "attempt": position,
        "delay_ms": 0 if attempt.delay_s is None else round(attempt.delay_s * 1000),
        "error_class": error_class(attempt),
        "retryable": bool(attempt.retryable),
        "outcome": "success" if attempt.outcome in ("COMPLETE", "PENDING") else "failure",
        "circuit_open": attempt.circuit_open,
        "energy_wh": to_thousandths(energy),
        "co2_g": to_thousandths(carbon),
        # The first attempt would have been made without retries; the others are caused by them.
        "is_retry": position > 1,
        "unavailable": unavailable,
    }


def error_class(attempt: AttemptHistory) -> str | None:
    """Return the class of an attempt's error: its code, or its type; None without an error."""
    error = attempt.error or {}
    if attempt.outcome in ("COMPLETE", "PENDING"):
        return None
    return str(error.get("code") or error.get("type") or attempt.reason or "UNKNOWN")


def to_thousandths(figure: float | None) -> float | None:
    """Return kWh as Wh, or kg as g; exactly what the other form says, without a rounding error."""
    return None if figure is None else float(f"{figure * 1000:.15g}")


def build_compliance_record(history: RunHistory, release: str) -> Record:
    """Return the compliance record of a run that is over."""
    energy = add_figures(to_thousandths(each.telemetry.get("energy_kWh")) for each in history.attempts)
    carbon = add_figures(to_thousandths(each.telemetry.get("carbon_kgCO2e")) for each in history.attempts)
    unavailable = {}
    for field, figure, source in (("energy_wh", energy, "energy_kWh"), ("co2_g", carbon, "carbon_kgCO2e")):
        if figure is None:
            reasons = (missing_reason(each.telemetry, source) for each in history.attempts)
            unavailable[field] = next(reason for reason in reasons if reason)
    return {
        "run_id": history.run.run_id,
        "pipeline_id": history.pipeline or None,
        "stage": history.run.step,
        "attempts": len(history.attempts),
        "retry_policy": history.run.policy.partition("@")[0],
        "errors": [error for each in history.attempts if (error := error_class(each)) is not None],
        "final_status": "success" if history.run.state == "COMPLETE" else "failure",
        "circuit_open": history.attempts[-1].circuit_open,
        "energy_wh": energy,
        "co2_g": carbon,
        "unavailable": unavailable,
        "telemetry_ref": f"releases/{release}/{FOCUS}",
    }


def _build_loop_record(record: Record) -> Record:
    """Return the record of a transition, with the ten fields of the loop."""
    snapshot = dict(record["telemetry_snapshot"])
    missing = {field: reason for field in MEASURED if (reason := missing_reason(snapshot, field))}
    snapshot = {**dict.fromkeys(MEASURED), **snapshot, "unavailable": missing}
    fields = {field: record[field] for field in LOOP_FIELDS}
    return {
        **{name: record[name] for name in ("at", "kind", "state", "reason")},
        **fields,
        "telemetry_snapshot": snapshot,
    }


def compute_totals(file: str, records: Iterable[Record], operations: Iterable[Record]) -> Record:
    """Return the totals of a file from its records; a sum is null if one of its figures is missing."""
    return _total_focus(records, operations) if file == FOCUS else _total_patterns(records)


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
        for name in ("energy_wh", "co2_g"):
            sums[name].add(record[name])
            if record["is_retry"]:
                sums[f"retry_{name}"].add(record[name])
    ended = {"operations": 0, "succeeded": 0}
    for operation in operations:
        ended["operations"] += 1
        ended["succeeded"] += operation["final_status"] == "success"
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
