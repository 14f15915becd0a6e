"""The pages that compute over a period: energy and carbon, and what another policy would have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.dashboard.drawings import draw_curves
from oncemore.dashboard.pages import PageRoute
from oncemore.errors import UsageError
from oncemore.queries.energy import cut_period, load_energy
from oncemore.queries.times import parse_instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.dashboard.pages import PageValues, PageView
    from oncemore.policy.policy import Policy
    from oncemore.queries.what_if import SimulationReport
    from oncemore.simulate.recorded_runs import SimulatedWorld

DEFAULT_PERIOD = "1d"
#: The figures of the comparison of two periods: their field in the totals, their name and unit.
PERIOD_FIGURES = (
    ("runs", "Runs", ""),
    ("attempts", "Attempts", ""),
    ("energy_kwh", "Energy", "kWh"),
    ("carbon_kg", "Carbon", "kg CO2e"),
    ("cost_usd", "Cost", "USD"),
    ("repeated_attempts", "Duplicate work: repeated attempts", ""),
    ("repeated_kwh", "Duplicate work: their energy", "kWh"),
    ("computed_again", "Duplicate work: computed again after COMPLETE", ""),
)


def parse_period(query: Mapping[str, str], now: float, prefix: str = "") -> tuple[float, float]:
    """Return the beginning and the end of a period in the query of a request."""
    since = parse_instant(query.get(f"{prefix}since", "").strip() or DEFAULT_PERIOD, now)
    until = parse_instant(query.get(f"{prefix}until", "").strip() or "now", now)
    if until < since:
        raise UsageError("the period ends before it begins; give the earlier time as since")
    return since, until


def load_energy_page(view: PageView) -> PageValues:
    """Return the energy of a period by step, policy and key, and beside it that of a baseline."""
    store, query = view.dashboard.engine.store, view.query
    now = store.now()
    period = load_energy(store, *parse_period(query, now), step=query.get("step", "").strip())
    baseline = None
    if query.get("base_since", "").strip():
        baseline = load_energy(store, *parse_period(query, now, "base_"), step=query.get("step", "").strip())
    names = ("since", "until", "base_since", "base_until", "step")
    return {
        "period": period,
        "baseline": baseline,
        "figures": PERIOD_FIGURES,
        "given": {name: query.get(name, "") for name in names},
    }


def load_what_if_page(view: PageView) -> PageValues:
    """Return the runs of a window as recorded and under another policy, as figures and as two curves."""
    query = view.query
    names = ("since", "until", "step", "policy", "tuning", "intensity")
    given = {name: query.get(name, "").strip() for name in names}
    # Without a policy or a tuning the comparison would show the record twice.
    is_asked = bool(given["policy"] or given["tuning"])
    report, notice = _compare_window(view, given) if is_asked else (None, "")
    return {
        "given": given,
        "report": report,
        "notice": notice,
        "curves": draw_curves(report.curves) if report is not None else None,
    }


def _compare_window(view: PageView, given: Mapping[str, str]) -> tuple[SimulationReport, str]:
    from oncemore.queries.recorded_policies import find_policy_or_recorded
    from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs
    from oncemore.queries.what_if import SimulationOptions, compare_runs

    if given["tuning"] not in ("", "on", "off", "compare"):
        raise UsageError(f"tuning is {given['tuning']!r:.60}; it takes on, off or compare")
    if given["tuning"] == "compare" and given["policy"]:
        raise UsageError("a comparison of tuning keeps the recorded policies; leave the policy empty")
    store = view.dashboard.engine.store
    since, until = parse_period(given, store.now())
    begins, is_cut = cut_period(store, since, until)
    runs = load_recorded_runs(store, RecordedRunFilter(begins, until, step=given["step"]))
    policies: dict[str, Policy] = {}
    if given["policy"]:
        policies[""] = find_policy_or_recorded(store, given["policy"])
    if not runs:
        raise UsageError("no run was recorded in this window; choose an earlier beginning")
    options = SimulationOptions(policies=policies, tuning=given["tuning"], world=_read_world(given))
    notice = "The window has too many entries; only the last of them are compared." if is_cut else ""
    return compare_runs(runs, options), notice


def _read_world(given: Mapping[str, str]) -> SimulatedWorld:
    from oncemore.simulate.recorded_runs import SignalTimeline, SimulatedWorld

    if not given["intensity"]:
        return SimulatedWorld()
    try:
        grams = float(given["intensity"])
    except ValueError:
        grams = -1.0
    if not 0 <= grams < 1e6:
        raise UsageError(f"intensity is {given['intensity']!r:.60}; it takes grams of CO2 per kWh")
    return SimulatedWorld(SignalTimeline([(0.0, grams)]))


STUDY_PAGES = (
    PageRoute("/energy", "energy", "Energy and carbon", "energy.html", load_energy_page),
    PageRoute("/what-if", "what-if", "What if", "what_if.html", load_what_if_page),
)
