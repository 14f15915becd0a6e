"""The figures of a sustainability review: energy, carbon, cost and the share of retries of a period."""

from __future__ import annotations

from collections import Counter

from oncemore._values import Value
from oncemore.queries.report_period import (
    GROUPS,
    AttemptGroup,
    BudgetUse,
    ReportFigure,
    count_attempts,
    group_attempts,
    list_computed_again,
    name_entries,
)
from oncemore.simulate.totals import add_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.queries.report_period import ReportPeriod


class SustainabilityReport(Value):
    """The figures of a sustainability review; `methods` counts attempts by how their energy was measured."""

    since: float
    until: float
    figures: tuple[ReportFigure, ...]
    groups: dict[str, tuple[AttemptGroup, ...]]
    methods: tuple[tuple[str, int], ...]
    computed_again: tuple[str, ...]
    budgets: tuple[BudgetUse, ...]
    timeline: tuple[AttemptGroup, ...]


class PeriodComparison(Value):
    """The same figures of two periods: the baseline, and the period of the report."""

    baseline_since: float
    baseline_until: float
    rows: tuple[tuple[str, str, float | None, float | None], ...]


def build_sustainability(period: ReportPeriod) -> SustainabilityReport:
    """Return the figures of a sustainability review."""
    methods = Counter(one.attempt.values.method or "not measured" for one in period.attempts)
    return SustainabilityReport(
        since=period.since,
        until=period.until,
        figures=tuple(_list_energy_figures(period)),
        groups={by: group_attempts(period, by) for by in GROUPS},
        methods=tuple(sorted(methods.items())),
        computed_again=tuple(run.run_id for run in list_computed_again(period)),
        budgets=period.budgets,
        timeline=group_attempts(period, "period"),
    )


def _list_energy_figures(period: ReportPeriod) -> Iterator[ReportFigure]:
    attempts = period.attempts
    retries = [one for one in attempts if one.is_retry]
    # A double spike: the energy of work that was complete already.
    again = [one for one in attempts if one.run.repeated]
    for name, title, unit, chosen, field in (
        ("energy_kwh", "energy", "kWh", attempts, "energy_kwh"),
        ("retry_kwh", "energy of retries", "kWh", retries, "energy_kwh"),
        ("carbon_kg", "carbon", "kg CO2e", attempts, "carbon_kg"),
        ("retry_carbon_kg", "carbon of retries", "kg CO2e", retries, "carbon_kg"),
        ("cost_usd", "cost", "USD", attempts, "cost_usd"),
        ("again_kwh", "energy of work computed again", "kWh", again, "energy_kwh"),
    ):
        known = [one for one in chosen if getattr(one.attempt.values, field) is not None]
        value = add_known(getattr(one.attempt.values, field) for one in known)
        if attempts and not chosen:
            # There were attempts, and none of this kind: their energy is 0, not unknown.
            value = 0.0
        yield ReportFigure(name, title, value, unit, name_entries(known))
    yield count_attempts("attempts", "attempts", attempts)
    yield count_attempts("retries", "attempts after the first", retries)
    unmeasured = [one for one in attempts if one.attempt.values.energy_kwh is None]
    yield count_attempts("unmeasured", "attempts without an energy value", unmeasured)
    yield ReportFigure(
        "computed_again", "runs computed again after COMPLETE", len(list_computed_again(period)), "",
        tuple(f"run {run.run_id}" for run in list_computed_again(period)),
    )  # fmt: skip


# Two periods ----------------------------------------------------------------------------------------

_COMPARED = (
    ("attempts", "attempts"),
    ("retries", "attempts after the first"),
    ("energy_kwh", "energy, kWh"),
    ("retry_kwh", "energy of retries, kWh"),
    ("carbon_kg", "carbon, kg CO2e"),
    ("cost_usd", "cost, USD"),
    ("computed_again", "duplicate work: computed again after COMPLETE"),
)


def compare_periods(baseline: ReportPeriod, period: ReportPeriod) -> PeriodComparison:
    """Return energy, carbon, attempts and duplicate work of two periods, in total and per ended run."""
    before, after = (
        {figure.name: figure.value for figure in _list_energy_figures(one)} for one in (baseline, period)
    )
    rows: list[tuple[str, str, float | None, float | None]] = [
        ("runs", "ended runs", float(len(baseline.runs)), float(len(period.runs)))
    ]
    for name, title in _COMPARED:
        rows.append((name, title, before[name], after[name]))
    for name in ("attempts", "energy_kwh", "carbon_kg"):
        title = f"{dict(_COMPARED)[name]}, per ended run"
        rows.append(
            (f"{name}_per_run", title, _per_run(before[name], baseline), _per_run(after[name], period))
        )
    return PeriodComparison(baseline.since, baseline.until, tuple(rows))


def _per_run(value: float | None, period: ReportPeriod) -> float | None:
    # Two periods have different numbers of runs: only the figures per run can be compared fairly.
    return None if value is None or not period.runs else value / len(period.runs)
