"""The pages that compute over a period: energy and carbon, and what another policy would have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.dashboard.drawings import draw_curves
from oncemore.dashboard.pages import PageRoute
from oncemore.errors import UsageError
from oncemore.queries.energy import load_energy
from oncemore.queries.recorded_runs import RecordedRunFilter
from oncemore.queries.times import parse_instant
from oncemore.queries.window_comparison import compare_window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.dashboard.background import Progress, TaskReport
    from oncemore.dashboard.pages import PageValues, PageView
    from oncemore.policy.policy import Policy
    from oncemore.queries.energy import EnergyPeriod
    from oncemore.queries.window_comparison import ComparedWindow
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
    """Return the energy of a period by pipeline, step, policy and key, and beside it that of a baseline."""
    names = ("since", "until", "base_since", "base_until", "step", "pipeline")
    given = {name: view.query.get(name, "").strip() for name in names}
    engine = view.dashboard.engine
    now = engine.store.now()
    # Checked before the computation starts, so that a wrong time is refused at once.
    prefixes = ("", "base_") if given["base_since"] else ("",)
    wanted = [
        RecordedRunFilter(*parse_period(given, now, prefix), step=given["step"], pipeline=given["pipeline"])
        for prefix in prefixes
    ]

    def compute(progress: Progress) -> list[EnergyPeriod]:
        return [load_energy(engine, each, progress) for each in wanted]

    return {
        "task": view.dashboard.tasks.compute_report(("energy", *given.values()), compute),
        "figures": PERIOD_FIGURES,
        "given": given,
    }


def load_what_if_page(view: PageView) -> PageValues:
    """Return the runs of a window as recorded and under another policy, as figures and as two curves."""
    names = ("since", "until", "step", "policy", "tuning", "intensity")
    given = {name: view.query.get(name, "").strip() for name in names}
    # Without a policy or a tuning the comparison would show the record twice.
    is_asked = bool(given["policy"] or given["tuning"])
    return {"given": given, "task": _compare_window(view, given) if is_asked else None, "draw": draw_curves}


def _compare_window(view: PageView, given: Mapping[str, str]) -> TaskReport:
    """Return the comparison of a window; wrong values are refused before it starts."""
    from oncemore.queries.recorded_policies import find_policy_or_recorded
    from oncemore.queries.what_if import SimulationOptions

    if given["tuning"] not in ("", "on", "off", "compare"):
        raise UsageError(f"tuning is {given['tuning']!r:.60}; it takes on, off or compare")
    if given["tuning"] == "compare" and given["policy"]:
        raise UsageError("a comparison of tuning keeps the recorded policies; leave the policy empty")
    store = view.dashboard.engine.store
    policies: dict[str, Policy] = {}
    if given["policy"]:
        policies[""] = find_policy_or_recorded(store, given["policy"])
    options = SimulationOptions(policies=policies, tuning=given["tuning"], world=_read_world(given))
    wanted = RecordedRunFilter(*parse_period(given, store.now()), step=given["step"])

    def compute(progress: Progress) -> ComparedWindow:
        return compare_window(store, wanted, options, progress)

    return view.dashboard.tasks.compute_report(("what-if", *given.values()), compute)


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
