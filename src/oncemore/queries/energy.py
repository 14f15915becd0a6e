"""Energy, carbon and cost of recorded attempts, by pipeline, step, policy, key and decision of the matrix.

The sums are those of `oncemore simulate` for the recorded side, so that both agree. A period with more
entries than `MAX_ENTRIES` is cut at its beginning, and the report says so.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries.carbon import find_in_force, group_decisions, list_decisions, name_matrix
from oncemore.queries.entries import find_seq
from oncemore.queries.recorded_runs import load_recorded_runs, policy_base
from oncemore.simulate.totals import SimulationTotals, sum_runs
from oncemore.simulate.what_if import WhatIf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncemore.log.store import Store
    from oncemore.queries.carbon import MatrixDecision
    from oncemore.queries.recorded_runs import RecordedRunFilter
    from oncemore.simulate.recorded_runs import RecordedAttempt, RecordedRun
    from oncemore.steps.engine import Engine

    Progress = Callable[[int, int], object]

#: The number of log entries that one report reads, and the rows that one of its tables has.
MAX_ENTRIES, MAX_ROWS = 200_000, 100


class EnergyRow(Value):
    """The sums of one pipeline, step, policy or key; `retry_share`: the energy share of repeated attempts."""

    name: str
    totals: SimulationTotals
    retry_share: float | None


class DecisionRow(Value):
    """A decision of the autonomy matrix, and the sums of the attempts that ended while it was in force.

    action                 its level: run, slow, pause or escalate
    energy_kwh, carbon_kg  None if no attempt has a value
    """

    at: float
    matrix: str
    action: str
    sentence: str
    attempts: int
    energy_kwh: float | None
    carbon_kg: float | None


class EnergyPeriod(Value):
    """The sums of a period.

    since         its beginning; later than asked for if `is_cut`
    by_step       one row for each step, the largest energy first; the other tables in the same way
    decisions     the decisions of the autonomy matrix in the period, oldest first
    """

    since: float
    until: float
    is_cut: bool
    totals: SimulationTotals
    retry_share: float | None
    by_pipeline: tuple[EnergyRow, ...]
    by_step: tuple[EnergyRow, ...]
    by_policy: tuple[EnergyRow, ...]
    by_key: tuple[EnergyRow, ...]
    decisions: tuple[DecisionRow, ...]


def cut_period(store: Store, since: float, until: float) -> tuple[float, bool]:
    """Return the beginning of a period, moved so that it has few enough entries, and whether it was moved."""
    from oncemore.log.entry_codec import decode_header

    first, last = find_seq(store, since), find_seq(store, until + 2.0)
    if last - first <= MAX_ENTRIES:
        return since, False
    entry = next(iter(store.read_entries(after=last - MAX_ENTRIES)), None)
    return (since, False) if entry is None else (float(decode_header(entry.header).at), True)


def load_energy(
    engine: Engine, wanted: RecordedRunFilter, progress: Progress = lambda done, of: None
) -> EnergyPeriod:
    """Return the energy of the runs of a period that match a filter."""
    begins, is_cut = cut_period(engine.store, wanted.since, wanted.until)
    runs = load_recorded_runs(engine.store, wanted._replace(since=begins), progress)
    totals = _sum(runs)
    return EnergyPeriod(
        since=begins,
        until=wanted.until,
        is_cut=is_cut,
        totals=totals,
        retry_share=find_retry_share(totals),
        by_pipeline=_group_runs(runs, lambda run: run.pipeline),
        by_step=_group_runs(runs, lambda run: run.step),
        by_policy=_group_runs(runs, lambda run: policy_base(run.policy)),
        by_key=_group_runs(runs, lambda run: run.key),
        decisions=tuple(_sum_decisions(list_decisions(engine), runs, begins, wanted.until)),
    )


def find_retry_share(totals: SimulationTotals) -> float | None:
    """Return the share of repeated work: of the energy, or of the attempts if no energy is known."""
    if totals.energy_kwh:
        return (totals.repeated_kwh or 0.0) / totals.energy_kwh
    return totals.repeated_attempts / totals.attempts if totals.attempts else None


def _sum(runs: Sequence[RecordedRun]) -> SimulationTotals:
    # Without another policy or other signals, the simulation repeats the record.
    recorded = WhatIf()
    return sum_runs([recorded.simulate_run(run) for run in runs])


def _group_runs(runs: Sequence[RecordedRun], name_of: Callable[[RecordedRun], str]) -> tuple[EnergyRow, ...]:
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        groups.setdefault(name_of(run), []).append(run)
    sums = [(name, _sum(group)) for name, group in groups.items()]
    rows = [EnergyRow(name, totals, find_retry_share(totals)) for name, totals in sums]
    return tuple(sorted(rows, key=lambda row: (-(row.totals.energy_kwh or 0.0), row.name))[:MAX_ROWS])


def _sum_decisions(
    decisions: list[MatrixDecision], runs: Iterable[RecordedRun], since: float, until: float
) -> list[DecisionRow]:
    """Return the last decisions of a period, each with the attempts that ended while it was in force."""
    by_matrix = group_decisions(decisions)
    attempts: dict[str, list[RecordedAttempt]] = {}
    for run in runs:
        own = by_matrix.get(name_matrix(run.policy), [])
        for attempt in run.attempts:
            in_force = find_in_force(own, attempt.ended)
            if in_force is not None:
                attempts.setdefault(in_force.id, []).append(attempt)
    # One that was made before the period counts too while it was in force in it.
    shown = [each for each in decisions if each.at <= until and (each.at >= since or each.id in attempts)]
    return [
        DecisionRow(
            at=each.at,
            matrix=each.name,
            action=each.action,
            sentence=each.sentence,
            attempts=len(attempts.get(each.id, ())),
            energy_kwh=_sum_known(one.values.energy_kwh for one in attempts.get(each.id, ())),
            carbon_kg=_sum_known(one.values.carbon_kg for one in attempts.get(each.id, ())),
        )
        for each in shown[-MAX_ROWS:]
    ]


def _sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
