"""Totals and curves of simulated runs, and their comparison."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.simulate.recorded_runs import COMPLETE
from oncemore.simulate.what_if import HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.simulate.what_if import SimulatedRun


class SimulationTotals(Value):
    """The totals of several runs.

    delay_s            decided waits between attempts
    duration_s         time from the opening of each run to its end
    repeated_attempts  attempts after the first of their run, and all attempts of work computed again
    repeated_kwh       their energy
    computed_again     runs that computed a key again after it was COMPLETE
    missed_deadlines   runs that were not COMPLETE by their deadline
    assumed_attempts   attempts without a counterpart in the record
    without_energy     attempts without a value for energy, which the sums therefore lack

    A sum is None if none of the attempts has a value.
    """

    runs: int = 0
    attempts: int = 0
    completed: int = 0
    failed: int = 0
    held: int = 0
    delay_s: float = 0.0
    duration_s: float = 0.0
    energy_kwh: float | None = None
    carbon_kg: float | None = None
    cost_usd: float | None = None
    repeated_attempts: int = 0
    repeated_kwh: float | None = None
    computed_again: int = 0
    deadlines: int = 0
    missed_deadlines: int = 0
    assumed_attempts: int = 0
    without_energy: int = 0


def add_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    # Sorted, so that the order in which runs are read does not change the last digits.
    return sum(sorted(known)) if known else None


def sum_runs(runs: Sequence[SimulatedRun]) -> SimulationTotals:
    """Return the totals of simulated runs."""
    attempts = [attempt for one in runs for attempt in one.attempts]
    repeated = [
        attempt
        for one in runs
        for number, attempt in enumerate(one.attempts)
        # The result of a discarded attempt is not used, so that its work was done in vain.
        if number or one.run.repeated or one.run.attempts[attempt.source].discarded
    ]
    return SimulationTotals(
        runs=len(runs),
        attempts=len(attempts),
        completed=sum(one.state == COMPLETE for one in runs),
        failed=sum(one.state == "HARD_FAIL" for one in runs),
        held=sum(one.state == HELD or bool(one.run.held_for and one.state == one.run.state) for one in runs),
        delay_s=add_known(one.delay_s for one in attempts) or 0.0,
        duration_s=add_known(max(0.0, one.ended_at - one.run.created_at) for one in runs) or 0.0,
        energy_kwh=add_known(one.values.energy_kwh for one in attempts),
        carbon_kg=add_known(one.values.carbon_kg for one in attempts),
        cost_usd=add_known(one.values.cost_usd for one in attempts),
        repeated_attempts=len(repeated),
        repeated_kwh=add_known(one.values.energy_kwh for one in repeated),
        computed_again=sum(one.run.repeated for one in runs),
        deadlines=sum(one.run.deadline is not None for one in runs),
        missed_deadlines=sum(one.misses_deadline for one in runs),
        assumed_attempts=sum(one.assumed for one in attempts),
        without_energy=sum(one.values.energy_kwh is None for one in attempts),
    )


# Curves ---------------------------------------------------------------------------------------------

#: What a curve can show: the name of the field, the name on its axis.
CURVES = {
    "attempts": "attempts",
    "energy": "energy, kWh",
    "carbon": "carbon, kg CO2e",
    "cost": "cost, USD",
}
_CURVE_FIELDS = {"energy": "energy_kwh", "carbon": "carbon_kg", "cost": "cost_usd"}
MAX_CURVE_POINTS = 200


def build_curve(
    runs: Sequence[SimulatedRun], kind: str, first: float, last: float
) -> tuple[tuple[float, float], ...]:
    """Return the growing sum of a value over time, in at most `MAX_CURVE_POINTS` steps of equal length."""
    span = max(last - first, 1.0)
    sums = [0.0] * MAX_CURVE_POINTS
    for one in runs:
        for attempt in one.attempts:
            value = 1.0 if kind == "attempts" else getattr(attempt.values, _CURVE_FIELDS[kind]) or 0.0
            place = int((attempt.began - first) / span * MAX_CURVE_POINTS)
            sums[min(max(place, 0), MAX_CURVE_POINTS - 1)] += value
    total, points = 0.0, [(first, 0.0)]
    for number, value in enumerate(sums, 1):
        total += value
        points.append((first + span * number / MAX_CURVE_POINTS, total))
    return tuple(points)
