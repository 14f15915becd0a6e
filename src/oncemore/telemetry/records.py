"""Telemetry records of attempts: retry, energy and carbon records, and the schemas that they keep.

All are made from exported records (`steps.history.export_records`), so that they can be made again from the
log at any time with the same content. The schemas ship with the package, under the names that the KFM
documents give them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.telemetry.energy import NO_ATTEMPT, build_snapshot, to_grams, to_watt_hours

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: The schemas of telemetry records (TELEM-11).
SCHEMAS = ("pipelines-retries-rules-v1", "retry-loop-v1", "energy-v2", "carbon-v2")


def load_schema(name: str) -> dict[str, Any]:
    """Return one of the shipped JSON Schemas."""
    if name not in SCHEMAS:
        raise ValueError(f"there is no schema {name!r}; there are {', '.join(SCHEMAS)}")
    text = (Path(__file__).parent / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def list_attempt_ends(records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the record that ends each attempt, once per attempt."""
    return (record for record in records if is_attempt_end(record))


def is_attempt_end(record: Mapping[str, Any]) -> bool:
    """Return whether a record is the one that ends an attempt."""
    unavailable = record["telemetry_snapshot"]["unavailable"]
    return bool(record["kind"] == "TRANSITION" and unavailable.get("cpu_s") != NO_ATTEMPT)


def build_retry_record(record: Mapping[str, Any], pipeline_id: str, *, first: int = 1) -> dict[str, Any]:
    """Return the retry record of an attempt, with the ten fields of the KFM rules (TELEM-1).

    pipeline_id  the pipeline of the step
    first        the number of the first attempt of the run: its energy is not due to retrying
    """
    snapshot, proof = record["telemetry_snapshot"], record["decision_proof"] or {}
    failed = record["state"] != "COMPLETE"
    is_retry = record["attempt"] > first
    error = record["error"] or {}
    error = error.get("last") or error
    return {
        "pipeline_id": pipeline_id,
        "stage_name": record["node_id"],
        "attempt": record["attempt"] - first + 1,
        "delay_ms": round(float(proof.get("delay_s") or 0.0) * 1000),
        "error_class": (error.get("code") or error.get("type")) if failed else None,
        "retryable": proof.get("verdict") == "RETRYABLE",
        "outcome": "failure" if failed else "success",
        "circuit_open": snapshot["circuit_open"],
        "energy_wh": _retry_figure(snapshot["energy_kWh"], to_watt_hours, is_retry),
        "co2_g": _retry_figure(snapshot["carbon_kgCO2e"], to_grams, is_retry),
        "unavailable": _reasons(snapshot, {"energy_wh": "energy_kWh", "co2_g": "carbon_kgCO2e"}),
    }


def _retry_figure(value: float | None, convert: Any, is_retry: bool) -> float | None:
    """Return a figure as far as retrying has caused it: nothing in the first attempt."""
    return None if value is None else convert(value) if is_retry else 0.0


def _reasons(snapshot: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    reasons = snapshot["unavailable"]
    return {name: reasons[field] for name, field in names.items() if field in reasons}


def build_energy_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the energy record of an attempt, in both units."""
    snapshot = record["telemetry_snapshot"]
    energy = snapshot["energy_kWh"]
    return {
        **_identity(record),
        "energy_kWh": energy,
        "energy_wh": None if energy is None else to_watt_hours(energy),
        "duration_s": snapshot["duration_s"],
        "cpu_s": snapshot["cpu_s"],
        "cost_usd": snapshot["cost_usd"],
        "method": snapshot["method"],
        "unavailable": _reasons(
            snapshot, {name: name for name in ("energy_kWh", "duration_s", "cpu_s", "cost_usd")}
        ),
    }


def build_carbon_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the carbon record of an attempt, in both units, with the intensity and its source."""
    snapshot = record["telemetry_snapshot"]
    carbon = snapshot["carbon_kgCO2e"]
    return {
        **_identity(record),
        "carbon_kgCO2e": carbon,
        "co2_g": None if carbon is None else to_grams(carbon),
        "grid_intensity_g_per_kWh": snapshot["grid_intensity_g_per_kWh"],
        "grid_intensity_source": snapshot.get("grid_intensity_source"),
        "method": snapshot["method"],
        "unavailable": _reasons(
            snapshot, {name: name for name in ("carbon_kgCO2e", "grid_intensity_g_per_kWh")}
        ),
    }


def build_span_attributes(run_id: str, attempt: int, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an attempt's span at its end, under the names of the KFM loop (LIN-4)."""
    snapshot = build_snapshot(body, ends_attempt=True)
    figures = {name: snapshot[name] for name in ("energy_kWh", "carbon_kgCO2e", "cost_usd")}
    known = {name: value for name, value in figures.items() if value is not None}
    return {"run_id": run_id, "attempt": attempt, "idempotency_key": key, **known}


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run_id", "node_id", "attempt", "idempotency_key", "at")
    return {name: record[name] for name in names}
