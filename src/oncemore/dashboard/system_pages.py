"""The pages about the surroundings of runs: schedules, limits, review, policies, ledger and categories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.dashboard.drawings import draw_delays
from oncemore.dashboard.pages import PageRoute
from oncemore.errors import UsageError
from oncemore.queries.limits import list_breakers, list_quotas, load_breaker
from oncemore.queries.overview import list_workers
from oncemore.queries.proof_terms import list_proof_terms
from oncemore.queries.schedules import list_queues, list_schedules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.dashboard.background import TaskReport
    from oncemore.dashboard.pages import PageValues, PageView
    from oncemore.queries.policy_history import PolicyChangeView

#: The number of items of one list that a page shows.
MAX_ITEMS = 200


def load_schedules(view: PageView) -> PageValues:
    """Return the schedules, queues, jobs and workers."""
    engine, activity = view.dashboard.engine, view.dashboard.activity
    activity.update()
    return {
        "schedules": [{"view": shown, "record": record} for shown, record in list_schedules(engine)],
        "queues": list_queues(engine),
        "jobs": engine.jobs(limit=50),
        "workers": list_workers(engine, activity.list_running()),
    }


def load_limits(view: PageView) -> PageValues:
    """Return the breakers, cooldowns, rate and concurrency limits, budgets and switches."""
    from oncemore.control.switches import list_active_switches
    from oncemore.queries.runs import load_switches

    engine = view.dashboard.engine
    return {
        "breakers": list_breakers(engine)[:MAX_ITEMS],
        "quotas": list_quotas(engine)[:MAX_ITEMS],
        "resources": engine.cooldowns.list()[:MAX_ITEMS],
        "switches": list_active_switches(load_switches(engine.store)),
        "changes": engine.switches.history()[::-1][:20],
    }


def load_one_breaker(view: PageView) -> PageValues:
    """Return one breaker with its last events."""
    breaker, events = load_breaker(view.dashboard.engine, view.path["breaker"])
    return {"breaker": breaker, "events": events}


# Review ---------------------------------------------------------------------------------------------


def load_review(view: PageView) -> PageValues:
    """Return the work list of operators and reviewers: quarantine, approvals and escalations."""
    engine = view.dashboard.engine
    wants_old = view.query.get("show") == "acknowledged"
    # A run that waits for an approval is an item in quarantine too; it is shown once.
    waiting = engine.approvals.list_waiting()
    waiting_ids = {pending.run_id for pending in waiting}
    items = engine.quarantine.list(limit=MAX_ITEMS + len(waiting))
    return {
        "items": [item for item in items if item.id not in waiting_ids][:MAX_ITEMS],
        "item_count": len(engine.quarantine) - len(waiting),
        "waiting": waiting[:MAX_ITEMS],
        "approvals": engine.approvals.list()[::-1][:20],
        "escalations": engine.escalations.list(acknowledged=wants_old)[:MAX_ITEMS],
        "shows_acknowledged": wants_old,
    }


def load_item(view: PageView) -> PageValues:
    """Return one item in quarantine with its evidence."""
    case = view.dashboard.engine.quarantine.show(f"{view.path['kind']}/{view.path['item']}")
    return {
        "case": case,
        "item": case.item,
        "terms": list_proof_terms(case.proof) if case.proof else (),
    }


def load_escalation(view: PageView) -> PageValues:
    """Return one escalation with its evidence."""
    case = view.dashboard.engine.escalations.show(view.path["escalation"])
    return {
        "case": case,
        "escalation": case.escalation,
        "terms": list_proof_terms(case.proof) if case.proof else (),
    }


# Policies -------------------------------------------------------------------------------------------


def load_policies(view: PageView) -> PageValues:
    """Return the policy files, the policies that runs of this store began with, and two of them compared."""
    from oncemore.dashboard.study_pages import parse_period
    from oncemore.queries.policy_catalogue import list_profiles
    from oncemore.queries.policy_history import list_policy_changes
    from oncemore.queries.recorded_policies import list_accepted_policies, list_recorded_policies

    store = view.dashboard.engine.store
    recorded = list_recorded_policies(store)
    given = {name: view.query.get(name, "").strip() for name in ("a", "b", "since", "until")}
    a, b = given["a"], given["b"]
    period = parse_period(given, store.now())
    return {
        "profiles": list_profiles(),
        "recorded": recorded[:MAX_ITEMS],
        "accepted": list_accepted_policies(store),
        "changes": list_policy_changes(store)[:MAX_ITEMS],
        "given": given,
        "difference": _compare(view, a, b) if a and b else None,
        "task": _compare_runs(view, given, period) if a and b else None,
    }


def _compare(view: PageView, a: str, b: str) -> Any:
    from oncemore.queries.policy_compare import compare_policies
    from oncemore.queries.recorded_policies import find_policy_or_recorded

    store = view.dashboard.engine.store
    return compare_policies(find_policy_or_recorded(store, a), find_policy_or_recorded(store, b), (a, b))


def _compare_runs(view: PageView, given: Mapping[str, str], period: tuple[float, float]) -> TaskReport:
    """Return the runs of a period before and after: as recorded, and the same ones under both policies."""
    from oncemore.queries.energy import cut_period
    from oncemore.queries.policy_history import load_policy_change

    store, until = view.dashboard.engine.store, period[1]

    def compute(progress: object) -> PolicyChangeView:
        since, _ = cut_period(store, *period)
        return load_policy_change(store, given["a"], given["b"], since=since, until=until)

    return view.dashboard.tasks.compute_report(("policies", *given.values()), compute)


def load_policy(view: PageView) -> PageValues:
    """Return one policy: its delays drawn, its worst case and its values."""
    from oncemore.queries.policy_schedule import compute_worst_case, list_delays
    from oncemore.queries.policy_sheet import policy_values
    from oncemore.queries.recorded_policies import find_policy_or_recorded

    address = view.path["address"]
    policy = find_policy_or_recorded(view.dashboard.engine.store, address)
    return {
        "address": address,
        "policy": policy,
        "delays": draw_delays(list_delays(policy)),
        "worst": compute_worst_case(policy),
        "values": policy_values(policy),
    }


# Ledger and categories ------------------------------------------------------------------------------


def load_ledger(view: PageView) -> PageValues:
    """Return the checkpoints of the log and, if asked for, the progress or the result of verifying it."""
    from oncemore.dashboard.actions import VERIFICATION
    from oncemore.queries.ledger import list_checkpoints

    engine = view.dashboard.engine
    return {
        "checkpoints": list_checkpoints(engine)[::-1][:MAX_ITEMS],
        "last_seq": engine.store.wait_for_change(0, 0.0),
        "check": view.dashboard.tasks.find_report(VERIFICATION),
        "decisions": view.dashboard.list_decisions(),
    }


def load_categories(view: PageView) -> PageValues:
    """Return attempts, success rate and average attempts by category, from the audit files."""
    from oncemore.queries.audit import AuditTrail, EventFilter, load_stream

    # Read for each request: the files grow, and one that cannot be read must not hide the rest.
    files, summaries, faults = view.dashboard.options.audit_files, {}, []
    for name in files:
        try:
            with Path(name).open(encoding="utf-8") as file:
                trail = AuditTrail(file, Path(name).name, EventFilter())
                summaries[name] = load_stream(trail).per_category()
        except (OSError, UsageError) as error:
            faults.append(f"{name}: {error}")
    return {"files": files, "summaries": summaries, "faults": faults}


SYSTEM_PAGES = (
    PageRoute("/review", "review", "Quarantine and escalations", "review.html", load_review),
    PageRoute("/review/{kind}/{item}", "review", "Item in quarantine", "item.html", load_item),
    PageRoute("/escalations/{escalation}", "review", "Escalation", "escalation.html", load_escalation),
    PageRoute("/schedules", "schedules", "Schedules and queues", "schedules.html", load_schedules),
    PageRoute("/limits", "limits", "Breakers and limits", "limits.html", load_limits),
    PageRoute("/limits/{breaker}", "limits", "Breaker", "breaker.html", load_one_breaker),
    PageRoute("/policies", "policies", "Policies", "policies.html", load_policies),
    PageRoute("/policies/{address:path}", "policies", "Policy", "policy.html", load_policy),
    PageRoute("/ledger", "ledger", "Ledger", "ledger.html", load_ledger),
    PageRoute("/categories", "categories", "Categories", "categories.html", load_categories),
)
