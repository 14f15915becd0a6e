"""Energy, carbon and cost of attempts: the formulas, the stored form, and the snapshot of an entry.

    energy_kWh    = cpu_s * core_watts / 3.6e6                        busy cores
                  + memory_gb * memory_watts_per_gb * duration_s / 3.6e6
                  + network_bytes / 1e9 * network_kwh_per_gb
                  + energy that the work reported itself
    carbon_kgCO2e = energy_kWh * grid_intensity_g_per_kWh / 1000
    cost_usd      = energy_kWh * energy_rate + duration_s / 3600 * compute_unit_cost

An entry stores the energy with its method and the signals of that moment. Carbon and cost follow from these
by multiplication, so they are computed when the entry is read: the figures cannot contradict their inputs.
A figure that cannot be computed is null, and `unavailable` has the reason.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

#: Joules per kWh, and seconds per hour.
JOULES_PER_KWH = 3.6e6
SECONDS_PER_HOUR = 3600.0
BYTES_PER_GB = 1e9

#: The ways to measure: an estimate from CPU time, the counters of the processor, or nothing.
CPU_TIME, RAPL, OFF = "cpu_time", "rapl", "off"
METHODS = (CPU_TIME, RAPL, OFF)
#: Added to the method of an attempt that reported energy of its own, such as that of a remote service.
REPORTED = "reported"


class EnergyModel(Value):
    """The settings of measuring.

    method               cpu_time: CPU seconds times `core_watts`; rapl: the counters of the processor, shared
                         by CPU time (Linux, where they are readable; otherwise cpu_time); off: no measuring
    core_watts           power of one busy core: 4 W, the value that CodeCarbon assumes for an unknown one
    memory_gb            memory that one attempt holds, where it is not measured: 0
    memory_watts_per_gb  power of memory: 0.392 W per GB (Cloud Carbon Footprint)
    network_kwh_per_gb   energy of transferred data: 0.001 kWh per GB (Cloud Carbon Footprint)
    rapl_path            the folder of the counters
    """

    method: str = CPU_TIME
    core_watts: float = 4.0
    memory_gb: float = 0.0
    memory_watts_per_gb: float = 0.392
    network_kwh_per_gb: float = 0.001
    rapl_path: str = "/sys/class/powercap"


DEFAULT_MODEL = EnergyModel()
#: The largest value of each number in the settings: more is a mistake in the unit.
_MOST = {
    "core_watts": 10_000.0,
    "memory_gb": 100_000.0,
    "memory_watts_per_gb": 1000.0,
    "network_kwh_per_gb": 1000.0,
}


def parse_model(setting: Any, where: str = "energy") -> EnergyModel:
    """Return the model of a setting: a method, or a table of the fields of `EnergyModel`."""
    if setting is None or setting == "":
        return DEFAULT_MODEL
    if isinstance(setting, EnergyModel):
        return setting
    fields: Any = {"method": setting} if isinstance(setting, str) else setting
    if not isinstance(fields, dict):
        raise UsageError(f"{where} is a {type(setting).__name__}; it takes a method or a table of settings")
    for name, value in fields.items():
        if name not in EnergyModel._fields:
            raise UsageError(f"{where} has no {name!r}; it has {', '.join(EnergyModel._fields)}")
        _check_field(name, value, where)
    return EnergyModel(**{name: _as_given(value) for name, value in fields.items()})


def _as_given(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)


def _check_field(name: str, value: Any, where: str) -> None:
    if name == "method" and value not in METHODS:
        raise UsageError(f"{where}: method is {value!r}; the choices are {', '.join(METHODS)}")
    if name == "rapl_path" and not (isinstance(value, str) and value):
        raise UsageError(f"{where}: rapl_path takes a folder")
    # `true` is a number for Python, and a mistake here.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _MOST and not (is_number and 0 <= value <= _MOST[name]):
        raise UsageError(f"{where}: {name} takes a number from 0 to {_MOST[name]:g}")


# Formulas -------------------------------------------------------------------------------------------


def estimate_energy(
    model: EnergyModel,
    *,
    cpu_s: float,
    duration_s: float = 0.0,
    memory_gb: float = 0.0,
    network_bytes: float = 0.0,
) -> float:
    """Return the estimated energy in kWh of CPU time, held memory and transferred data."""
    energy = cpu_s * model.core_watts / JOULES_PER_KWH
    if memory_gb:
        energy += memory_gb * model.memory_watts_per_gb * duration_s / JOULES_PER_KWH
    if network_bytes:
        energy += network_bytes / BYTES_PER_GB * model.network_kwh_per_gb
    return energy


def share_of_machine(machine_kwh: float, cpu_s: float, busy_s: float) -> float:
    """Return the part of the machine's energy that an attempt has used, by its share of the CPU time."""
    # The kernel counts busy time in steps of 10 ms: a short attempt can seem busier than the machine.
    return machine_kwh * cpu_s / max(busy_s, cpu_s) if cpu_s > 0 else 0.0


def compute_carbon(energy_kwh: float, intensity_g_per_kwh: float) -> float:
    """Return kg of CO2-equivalent (TELEM-7)."""
    return energy_kwh * intensity_g_per_kwh / 1000


def compute_cost(energy_kwh: float, rate_usd: float, duration_s: float, unit_cost_usd: float) -> float:
    """Return the cost in USD: energy at its rate, and time at the cost of the machine per hour (G-8)."""
    return energy_kwh * rate_usd + duration_s / SECONDS_PER_HOUR * unit_cost_usd


def to_watt_hours(energy_kwh: float) -> float:
    """Return energy in Wh, the unit of retry records (TELEM-8)."""
    return energy_kwh * 1000


def to_grams(carbon_kg: float) -> float:
    """Return carbon in g, the unit of retry records (TELEM-8)."""
    return carbon_kg * 1000


# The snapshot of an entry ---------------------------------------------------------------------------

#: Names in the stored usage, and the fields of the snapshot that they become.
STORED_SIGNALS = {
    "queue": "queue_depth",
    "g_per_kwh": "grid_intensity_g_per_kWh",
    "usd_per_kwh": "energy_rate_usd_per_kWh",
    "usd_per_h": "compute_unit_cost_usd_per_h",
}
#: Other stored names that are shown where they are present.
_EXTRAS = {
    "grid_source": "grid_intensity_source",
    "network_bytes": "network_bytes",
    "memory_gb": "memory_gb",
}
NO_ATTEMPT = "no attempt ended with this entry"
NOT_MEASURED = "the attempt was not measured: it was lost with its process, or measuring is off"
NO_SOURCE = "no source is configured"


def build_snapshot(body: Mapping[str, Any], *, ends_attempt: bool) -> dict[str, Any]:
    """Return the telemetry snapshot of an entry, from its body: every field, and the reason of each null.

    ends_attempt  whether the entry ends an attempt; all others have nothing to measure
    """
    usage: Mapping[str, Any] = body.get("usage") or {}
    reasons: Mapping[str, str] = usage.get("unavailable", {})
    unavailable: dict[str, str] = {}
    absent = NOT_MEASURED if ends_attempt else NO_ATTEMPT
    energy, carbon, cost, *_ = read_figures(body)
    snapshot: dict[str, Any] = {
        "energy_kWh": energy,
        "carbon_kgCO2e": carbon,
        "cost_usd": cost,
        "duration_s": body.get("duration_s"),
        "queue_depth": None,
        "cpu_s": usage.get("cpu_s"),
    }
    for stored, field in STORED_SIGNALS.items():
        snapshot[field] = usage.get(stored)
        if snapshot[field] is None:
            unavailable[field] = reasons.get(field, NO_SOURCE) if usage else absent
    inputs = {
        "energy_kWh": (),
        "cpu_s": (),
        "duration_s": (),
        "carbon_kgCO2e": ("grid_intensity_g_per_kWh",),
        "cost_usd": ("energy_rate_usd_per_kWh", "compute_unit_cost_usd_per_h"),
    }
    for field, needed in inputs.items():
        if snapshot[field] is None:
            missing = [name for name in needed if snapshot[name] is None]
            unavailable[field] = f"needs {' and '.join(missing)}" if usage and missing else absent
    snapshot["circuit_open"] = bool(body.get("circuit_open"))
    snapshot["method"] = read_method(usage)
    snapshot["unavailable"] = unavailable
    snapshot.update({field: usage[stored] for stored, field in _EXTRAS.items() if stored in usage})
    return snapshot


def read_figures(body: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return energy in kWh, carbon in kg, cost in USD, intensity, price and machine cost of an attempt.

    Each is None if it was not measured, or if the log lacks what it follows from.
    """
    usage = body.get("usage")
    if not usage:
        return _NO_FIGURES
    # Most entries store the two factors of the energy.
    energy = usage["cpu_s"] * usage["watts"] / JOULES_PER_KWH if "watts" in usage else usage.get("kwh")
    intensity, rate, unit_cost = usage.get("g_per_kwh"), usage.get("usd_per_kwh"), usage.get("usd_per_h")
    duration = body.get("duration_s")
    carbon = None if energy is None or intensity is None else compute_carbon(energy, intensity)
    cost = None
    if None not in (energy, rate, duration, unit_cost):
        cost = compute_cost(energy, rate, duration, unit_cost)  # type: ignore[arg-type]
    return energy, carbon, cost, intensity, rate, unit_cost


_NO_FIGURES = (None,) * 6


def read_method(usage: Mapping[str, Any]) -> str | None:
    """Return how a stored usage was measured; None if nothing was."""
    method: str | None = usage.get("method", CPU_TIME if "watts" in usage else None)
    return method


# Totals of runs -------------------------------------------------------------------------------------


class EnergyTotals(Value):
    """Energy, carbon, cost and time of some attempts; figures that are null count as 0.

    attempts    number of attempts that ended
    unmeasured  those among them without an energy figure
    """

    energy_kWh: float = 0.0  # noqa: N815 - the name of the field in every record
    carbon_kgCO2e: float = 0.0  # noqa: N815
    cost_usd: float = 0.0
    duration_s: float = 0.0
    cpu_s: float = 0.0
    attempts: int = 0
    unmeasured: int = 0


class RunEnergy(Value):
    """The energy of a run: of all attempts, and of those that only retrying has caused (TELEM-9).

    retries   all attempts after the first, and attempts whose result was discarded
    methods   how many attempts were measured by each method
    """

    total: EnergyTotals
    retries: EnergyTotals
    methods: dict[str, int]

    @property
    def retry_share(self) -> float:
        """The part of the energy that retrying has caused, 0 to 1."""
        return self.retries.energy_kWh / self.total.energy_kWh if self.total.energy_kWh else 0.0


#: Why an attempt was closed by another process: a result of it that comes later is discarded.
_DISCARDED = "lease_expired"


def energy_of_run(records: Iterable[Mapping[str, Any]]) -> RunEnergy:
    """Return the energy of runs, from exported records; each attempt counts once, however often it is listed.

    The records may be of one run or of many: the first attempt of each run is no retry.
    """
    attempts: dict[tuple[str, str, int], tuple[Mapping[str, Any], bool]] = {}
    first: dict[str, int] = {}
    for record in records:
        run_id, number = record["run_id"], record["attempt"]
        if record["kind"] == "INTENT":
            first[run_id] = min(number, first.get(run_id, number))
        snapshot = record["telemetry_snapshot"]
        # A run can also change its state without an attempt: its artifact exists, or it is cancelled.
        if record["kind"] == "TRANSITION" and snapshot["unavailable"].get("cpu_s") != NO_ATTEMPT:
            is_retry = number > first.get(run_id, number) or record["reason"] == _DISCARDED
            attempts[(record["idempotency_key"], run_id, number)] = snapshot, is_retry
    total = retries = EnergyTotals()
    methods: dict[str, int] = {}
    for snapshot, is_retry in attempts.values():
        total = add_snapshot(total, snapshot)
        retries = add_snapshot(retries, snapshot) if is_retry else retries
        method = snapshot["method"] or "not measured"
        methods[method] = methods.get(method, 0) + 1
    return RunEnergy(total, retries, methods)


def add_snapshot(totals: EnergyTotals, snapshot: Mapping[str, Any]) -> EnergyTotals:
    """Return totals with the figures of one more attempt."""
    figures = {
        name: getattr(totals, name) + (snapshot[name] or 0.0)
        for name in ("energy_kWh", "carbon_kgCO2e", "cost_usd", "duration_s", "cpu_s")
    }
    missing = snapshot["energy_kWh"] is None
    return EnergyTotals(**figures, attempts=totals.attempts + 1, unmeasured=totals.unmeasured + missing)
