"""The versions of each policy that a store has used, and one change of them before and after.

Two views of a change, each of which lacks what the other has:

    measured    the runs that were recorded under each version: other runs, in another period
    simulated   the same runs under both versions
"""

from __future__ import annotations

from itertools import pairwise

from oncemore._values import Value
from oncemore.policy.policy import policy_name
from oncemore.queries.policy_compare import compare_policies
from oncemore.queries.policy_evidence import compare_versions, name_view
from oncemore.queries.recorded_policies import find_policy_or_recorded, list_recorded_policies
from oncemore.queries.recorded_runs import (
    RecordedRunFilter,
    build_recorded_world,
    load_recorded_runs,
    policy_base,
)
from oncemore.queries.what_if import compare_figures
from oncemore.simulate.recorded_runs import SimulatedWorld
from oncemore.simulate.totals import sum_runs
from oncemore.simulate.what_if import WhatIf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.log.store import Store
    from oncemore.policy.policy import Policy
    from oncemore.queries.policy_compare import PolicyDifference
    from oncemore.queries.recorded_policies import RecordedPolicyRow
    from oncemore.queries.what_if import ComparedFigure, SimulationReport
    from oncemore.simulate.recorded_runs import RecordedRun
    from oncemore.simulate.totals import SimulationTotals


class PolicyChangeRow(Value):
    """Two versions of a policy that followed each other in a store; `view` is the page that compares them.

    old, new    addresses of the recorded policies
    changed_at  when the first run began with the new version
    """

    name: str
    old: str
    old_version: str
    new: str
    new_version: str
    changed_at: float
    view: str


class PolicyChangeView(Value):
    """One change of a policy before and after.

    difference  the fields, delays and decisions that differ
    figures     the recorded runs of each version: sums, and None where no attempt has a value
    simulated   the same runs under both versions; None if the period has none of either
    """

    old: str
    new: str
    difference: PolicyDifference
    since: float
    until: float
    figures: tuple[ComparedFigure, ...]
    before: SimulationTotals
    after: SimulationTotals
    simulated: SimulationReport | None


def list_policy_changes(store: Store) -> list[PolicyChangeRow]:
    """Return the changes of policies in a store, the newest first."""
    by_name: dict[str, list[RecordedPolicyRow]] = {}
    for row in reversed(list_recorded_policies(store)):
        by_name.setdefault(row.name, []).append(row)
    changes = [
        PolicyChangeRow(
            name=name,
            old=old.address,
            old_version=old.version,
            new=new.address,
            new_version=new.version,
            changed_at=new.recorded_at,
            view=name_view(old.digest, new.digest),
        )
        for name, rows in by_name.items()
        for old, new in pairwise(rows)
    ]
    return sorted(changes, key=lambda change: -change.changed_at)


def load_policy_change(store: Store, a: str, b: str, *, since: float, until: float) -> PolicyChangeView:
    """Return two policies before and after, on the runs of a period.

    a, b  a profile's name, or `policy/DIGEST` for a recorded one
    """
    old, new = find_policy_or_recorded(store, a), find_policy_or_recorded(store, b)
    runs = load_recorded_runs(store, RecordedRunFilter(since, until))
    before, after = _sum_version(runs, old), _sum_version(runs, new)
    own = [run for run in runs if policy_base(run.policy) in (old.name, new.name)]
    return PolicyChangeView(
        old=a,
        new=b,
        difference=compare_policies(old, new, (a, b)),
        since=since,
        until=until,
        figures=tuple(compare_figures(before, after)),
        before=before,
        after=after,
        simulated=compare_versions([(old, new)], own, SimulatedWorld(), "time") if own else None,
    )


def _sum_version(runs: Sequence[RecordedRun], policy: Policy) -> SimulationTotals:
    """Return the totals of the runs that began with exactly this version, as they were recorded."""
    own = [run for run in runs if run.policy == policy_name(policy)]
    # Without a choice of policies every run keeps its recorded course.
    side = WhatIf(recorded=build_recorded_world(own))
    return sum_runs([side.simulate_run(run) for run in own])
