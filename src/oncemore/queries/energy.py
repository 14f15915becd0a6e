"""Energy, carbon and cost of recorded attempts by step, policy and key, with the share of repeated work.

The sums are those of `oncemore simulate` for the recorded side, so that both agree. A period with more
entries than `MAX_ENTRIES` is cut at its beginning, and the report says so.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries.entries import find_seq
from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs, policy_base
from oncemore.simulate.totals import SimulationTotals, sum_runs
from oncemore.simulate.what_if import WhatIf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.log.store import Store
    from oncemore.simulate.recorded_runs import RecordedRun

#: The number of log entries that one report reads.
MAX_ENTRIES = 20_000
MAX_ROWS = 100


class EnergyRow(Value):
    """The sums of one step, policy or key; `retry_share` is the share of the energy of repeated attempts."""

    name: str
    totals: SimulationTotals
    retry_share: float | None


class EnergyPeriod(Value):
    """The sums of a period.

    since       its beginning; later than asked for if `is_cut`
    by_step     one row for each step, the largest energy first; by_policy and by_key in the same way
    """

    since: float
    until: float
    is_cut: bool
    totals: SimulationTotals
    retry_share: float | None
    by_step: tuple[EnergyRow, ...]
    by_policy: tuple[EnergyRow, ...]
    by_key: tuple[EnergyRow, ...]


def cut_period(store: Store, since: float, until: float) -> tuple[float, bool]:
    """Return the beginning of a period, moved so that it has few enough entries, and whether it was moved."""
    from oncemore.log.entry_codec import decode_header

    first, last = find_seq(store, since), find_seq(store, until + 2.0)
    if last - first <= MAX_ENTRIES:
        return since, False
    entry = next(iter(store.read_entries(after=last - MAX_ENTRIES)), None)
    return (since, False) if entry is None else (float(decode_header(entry.header).at), True)


def load_energy(store: Store, since: float, until: float, step: str = "") -> EnergyPeriod:
    """Return the energy of the runs of a period; with `step` only of its runs."""
    begins, is_cut = cut_period(store, since, until)
    runs = load_recorded_runs(store, RecordedRunFilter(begins, until, step=step))
    totals = _sum(runs)
    return EnergyPeriod(
        since=begins,
        until=until,
        is_cut=is_cut,
        totals=totals,
        retry_share=find_retry_share(totals),
        by_step=_group_runs(runs, lambda run: run.step),
        by_policy=_group_runs(runs, lambda run: policy_base(run.policy)),
        by_key=_group_runs(runs, lambda run: run.key),
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
