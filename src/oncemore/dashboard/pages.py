"""The pages about runs: Now, Runs and Run. A page is a function that reads values for its template.

The same function serves the page, its live updates and, through `api`, the JSON API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from oncemore._values import Value
from oncemore.dashboard.drawings import draw_minutes, draw_timeline
from oncemore.errors import UsageError
from oncemore.queries.explain import explain_run
from oncemore.queries.overview import MAX_COUNTED, load_overview
from oncemore.queries.proof_terms import list_proof_terms
from oncemore.queries.run_pages import RunPage, add_arguments, list_running_rows, load_run_page
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.run_tree import load_tree
from oncemore.queries.runs import RunFilter, complete_step_names, find_run
from oncemore.queries.times import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.dashboard.app import Dashboard
    from oncemore.dashboard.sessions import DashboardUser
    from oncemore.queries.run_timeline import RunTimeline

    PageValues = dict[str, Any]

PAGE_SIZE = 50
RUN_STATES = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")
#: The fields of the filter form on the page of runs.
FILTER_FIELDS = ("step", "state", "error", "dataset", "tenant", "correlation", "since", "until", "held")


class PageView(Value):
    """A request for a page: the user, the parameters in the path, and those in the query."""

    dashboard: Dashboard
    user: DashboardUser
    path: Mapping[str, str]
    query: Mapping[str, str]


class PageRoute(Value):
    """A page: its path, its title, its template, and the function that reads its values.

    section  the entry of the navigation that is marked
    """

    path: str
    section: str
    title: str
    template: str
    load: Callable[[PageView], PageValues]


def load_now(view: PageView) -> PageValues:
    """Return the values of the first page."""
    dashboard = view.dashboard
    overview = load_overview(dashboard.engine, dashboard.activity, dashboard.options.alert_rules)
    ended = sum(minute.completed + minute.failed + minute.held for minute in overview.minutes)
    attempts = sum(minute.attempts for minute in overview.minutes)
    retries = sum(minute.retries for minute in overview.minutes)
    return {
        "overview": overview,
        "bars": draw_minutes(overview.minutes),
        "ended": ended,
        "attempts": attempts,
        "retry_share": retries / attempts if attempts else None,
        "most": MAX_COUNTED,
    }


def parse_run_filter(query: Mapping[str, str], now: float, limit: int = PAGE_SIZE) -> RunFilter:
    """Return the filter in the query of a request; raise `UsageError` for a value that it cannot have."""
    words = {name: query.get(name, "").strip() or None for name in FILTER_FIELDS}
    state = words["state"].upper() if words["state"] else None
    if state is not None and state not in RUN_STATES:
        raise UsageError(f"state is {words['state']!r:.60}; the states are {', '.join(RUN_STATES)}")
    since, until = (
        None if text is None else parse_instant(text, now) for text in (words["since"], words["until"])
    )
    return RunFilter(
        step=words["step"],
        state=state,
        error=words["error"],
        dataset=words["dataset"],
        tenant=words["tenant"],
        correlation=words["correlation"],
        since=since,
        until=until,
        held=words["held"] not in (None, "0", "false"),
        limit=limit,
        before=parse_number(query, "before", 1, 2**62),
    )


def parse_number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """Return a whole number of the query; None if it is missing; raise `UsageError` if it is out of range."""
    text = query.get(name, "").strip()
    if not text:
        return None
    # isdecimal accepts digits of other scripts, which int() reads as well; only ASCII is expected here.
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise UsageError(f"{name} is {text!r:.60}; it takes a whole number from {low} to {high}")
    return int(text)


def load_runs(view: PageView) -> PageValues:
    """Return one page of the list of runs."""
    store = view.dashboard.engine.store
    wanted = parse_run_filter(view.query, store.now())
    page = find_runs(view, wanted)
    # Only fields with a value, so that links and the shown command stay short.
    given = {name: view.query[name] for name in FILTER_FIELDS if view.query.get(name, "").strip()}
    older = urlencode({**given, "before": page.next_before}) if page.next_before else ""
    return {
        "rows": page.rows,
        "searched_to": page.searched_to,
        "wanted": wanted,
        "given": given,
        "older": older,
        "newest": urlencode(given),
        "states": RUN_STATES,
        "steps": complete_step_names(store, "")[:200],
        "command": _runs_command(given),
    }


def find_runs(view: PageView, wanted: RunFilter) -> RunPage:
    """Return one page of runs; running ones come from the counter, which knows them all."""
    store, activity = view.dashboard.engine.store, view.dashboard.activity
    if wanted.state == "RUNNING" and not wanted.held:
        activity.update()
        page = list_running_rows(store, activity.list_running(), wanted)
    else:
        page = load_run_page(store, wanted)
    return add_arguments(store, page)


def _runs_command(given: Mapping[str, str]) -> str:
    """Return the command that prints the same list."""
    from shlex import quote

    options = " ".join(
        "--held" if name == "held" else f"--{name} {quote(value)}" for name, value in given.items()
    )
    return f"oncemore runs {options}".strip()


def load_run(view: PageView) -> PageValues:
    """Return everything that the log knows about one run."""
    engine = view.dashboard.engine
    timeline = load_timeline(engine.store, find_run(engine.store, view.path["run"]))
    row = timeline.row
    explanation = explain_run(timeline)
    is_last = timeline.lives[-1] == row.run_id
    # A wait is explained by the decision after the attempt before it; the page shows both together.
    attempts = [
        {"explanation": told, "terms": list_proof_terms(told.proof) if told.proof else ()}
        for told in explanation.told
    ]
    return {
        "timeline": timeline,
        "row": row,
        "drawing": draw_timeline(timeline.spans, timeline.now),
        "attempts": attempts,
        "standing": explanation.standing,
        "tree": load_tree(engine.store, row.key),
        "is_last": is_last,
        "choices": list_run_choices(timeline) if is_last else (),
        "version": timeline.steps[-1].version,
    }


def list_run_choices(timeline: RunTimeline) -> tuple[str, ...]:
    """Return the actions that are possible for the last run of a key."""
    from oncemore.control.model import APPROVAL_NEEDED
    from oncemore.control.review import list_choices

    run = timeline.steps[-1].state
    # Nothing is left to continue a pruned run with.
    if run.pruned_at:
        return ()
    if run.held_for:
        choices = list_choices(run)
        return (*choices, "escalate") if run.held_for != APPROVAL_NEEDED else choices
    if run.state in ("PENDING", "RUNNING", "SOFT_FAIL"):
        # Only a workflow waits for signals.
        is_workflow = any("workflow" in entry.body for entry in timeline.steps[:1])
        return ("cancel", "signal") if is_workflow else ("cancel",)
    return ("rerun_failed", "escalate") if run.state == "HARD_FAIL" else ()


RUN_PAGES = (
    PageRoute("/", "now", "Now", "now.html", load_now),
    PageRoute("/runs", "runs", "Runs", "runs.html", load_runs),
    PageRoute("/runs/{run}", "runs", "Run", "run.html", load_run),
)
