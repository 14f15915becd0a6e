"""The surroundings of a decision: signals, measured usage and the autonomy decision in force.

`read_surroundings` is a part of the script of a call. It runs after a failed attempt of a tuned policy, and
returns values: the decision itself stays a pure function of them, and its proof holds all of them with their
sources. Nothing is read for policies without tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.policy.tuning import Signals
from oncemore.telemetry.energy import build_snapshot
from oncemore.telemetry.signal_values import MISSING, NAMES, describe_reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.log.record import RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AttemptOutcome, Script
    from oncemore.steps.plan import StepPlan
    from oncemore.telemetry.signal_values import SignalReading

#: A P0 run is never held for carbon or price beyond its SLO: its delay is stretched by no more (G-10).
P0_MAX_STRETCH = 1.25


class ReadSignals(NamedTuple):
    """Read the signals of the engine → readings by name; empty if no source is configured."""

    now: float


class Surroundings(NamedTuple):
    """The inputs of a tuned decision.

    signals   the numbers of the formula
    readings  all inputs with their sources and ages, as the proof holds them (TELEM-5)
    autonomy  the decision of the autonomy matrix that is in force, if there is a matrix
    """

    signals: Signals
    readings: dict[str, Any]
    autonomy: dict[str, Any] | None = None


def perform_read_signals(call: PreparedCall, op: ReadSignals) -> Mapping[str, SignalReading]:
    """Return the signals; wait a moment for those that were never fetched before."""
    board = call.engine.signals
    return {} if board is None else board.read_all(op.now, waits=True)


async def perform_read_signals_async(call: PreparedCall, op: ReadSignals) -> Mapping[str, SignalReading]:
    """Return the signals without blocking the event loop."""
    board = call.engine.signals
    # A cancelled task must not await.
    if board is None or board.has_all or call.interrupt is not None:
        return perform_read_signals(call, op)
    from oncemore.steps.operations import run_in_thread

    return await run_in_thread(perform_read_signals, call, op)  # type: ignore[no-any-return]


def read_surroundings(
    plan: StepPlan, outcome: AttemptOutcome, now: float, in_force: dict[str, Any] | None
) -> Script:
    """Return the surroundings of the decision about a failed attempt; None if nothing of it is used.

    in_force  the decision of the autonomy matrix, if the policy has one
    """
    if plan.policy.tuning is None and in_force is None:
        return None
    readings = yield ReadSignals(now)
    return Surroundings(select_signals(readings), list_inputs(readings, outcome, now), in_force)


def select_signals(readings: Mapping[str, SignalReading]) -> Signals:
    """Return the numbers of the tuning formula; None for a signal that is missing."""
    names = ("grid_intensity", "energy_price", "queue_depth", "parallelism", "error_budget")
    return Signals(*(readings.get(name, MISSING).value for name in names))


def list_inputs(readings: Mapping[str, SignalReading], outcome: AttemptOutcome, now: float) -> dict[str, Any]:
    """Return all inputs of a decision with source and age, or the reason why one is missing (TELEM-5)."""
    inputs = {name: describe_reading(readings.get(name, MISSING), now) for name in NAMES}
    snapshot = build_snapshot({"usage": outcome.usage}, ends_attempt=True)
    for name in ("energy_kWh", "carbon_kgCO2e"):
        if snapshot[name] is None:
            inputs[name] = {"unavailable": snapshot["unavailable"][name]}
        else:
            inputs[name] = {"value": snapshot[name], "source": snapshot["method"]}
    return inputs | _list_limits(outcome.head.record)


def _list_limits(run: RunRecord) -> dict[str, Any]:
    """Return the deadline of a run as a time, and as milliseconds from its creation."""
    if not run.deadline:
        return {name: {"unavailable": "the run has no deadline"} for name in ("deadline_at", "sla_ms")}
    return {
        "deadline_at": {"value": run.deadline, "source": "run"},
        "sla_ms": {"value": round((run.deadline - run.created_at) * 1000, 3), "source": "run"},
    }
