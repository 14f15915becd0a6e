"""The JSON API below /api: the functions of `queries/` by HTTP, and the actions of `actions`.

A route is one line of `API_ROUTES`; its OpenAPI description is made from the same line. Values are the fields
of the records that the functions return, so that the API, the command line (`--json`) and the pages agree.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from oncemore._values import Value
from oncemore.control.approvals import ApprovalState, PendingApproval
from oncemore.control.quarantine_items import QuarantineItem
from oncemore.control.switches import ActiveSwitch
from oncemore.dashboard.actions import ACTIONS, perform_action
from oncemore.dashboard.pages import PageView, find_runs, parse_number, parse_run_filter
from oncemore.errors import CallRefused, Error, NotPermitted, StaleDecision, StoreError, UsageError
from oncemore.governance.escalations import Escalation
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.log.record import QuotaRecord
from oncemore.queries import to_plain
from oncemore.queries.explain import RunExplanation, explain_run
from oncemore.queries.ledger import CheckpointRow, RecordedDecision, list_checkpoints
from oncemore.queries.limits import BreakerView, list_breakers, list_quotas
from oncemore.queries.overview import StoreOverview, WorkerRow, list_workers, load_overview
from oncemore.queries.recorded_policies import RecordedPolicyRow, list_recorded_policies
from oncemore.queries.run_pages import RunPage
from oncemore.queries.run_timeline import RunTimeline, load_timeline
from oncemore.queries.run_tree import RunTree, load_tree
from oncemore.queries.runs import find_run
from oncemore.queries.schedules import QueueView, ScheduleView, list_queues, list_schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from oncemore.dashboard.app import Dashboard

DEFAULT_LIMIT, LARGEST_LIMIT = 50, 1000


class ApiParameter(Value):
    """A parameter of the query; `kind` is string or integer."""

    name: str
    meaning: str
    kind: str = "string"


class ApiRoute(Value):
    """A route that reads: its path, its summary, the function, and the record that it returns.

    is_list  whether it returns a list of these records
    """

    path: str
    summary: str
    load: Callable[[PageView], Any]
    record: type
    is_list: bool = True
    parameters: tuple[ApiParameter, ...] = ()


def _load_overview(view: PageView) -> StoreOverview:
    dashboard = view.dashboard
    return load_overview(dashboard.engine, dashboard.activity, dashboard.options.alert_rules)


def _load_run_page(view: PageView) -> RunPage:
    return find_runs(view, parse_run_filter(view.query, view.dashboard.engine.now(), _parse_limit(view)))


def _parse_limit(view: PageView) -> int:
    return parse_number(view.query, "limit", 1, LARGEST_LIMIT) or DEFAULT_LIMIT


def _load_run(view: PageView) -> RunTimeline:
    store = view.dashboard.engine.store
    return load_timeline(store, find_run(store, view.path["run"]))


def _load_tree(view: PageView) -> RunTree:
    store = view.dashboard.engine.store
    return load_tree(store, find_run(store, view.path["run"]).entity.removeprefix("run/"))


def _list_workers(view: PageView) -> list[WorkerRow]:
    view.dashboard.activity.update()
    return list_workers(view.dashboard.engine, view.dashboard.activity.list_running())


def _list_escalations(view: PageView) -> tuple[Escalation, ...]:
    return view.dashboard.engine.escalations.list(acknowledged=view.query.get("state") == "acknowledged")


LIMIT_PARAMETER = ApiParameter("limit", f"how many ({DEFAULT_LIMIT}), up to {LARGEST_LIMIT}", "integer")
RUN_PARAMETERS = (
    ApiParameter("step", "only runs of this step"),
    ApiParameter("state", "PENDING, RUNNING, SOFT_FAIL, HARD_FAIL or COMPLETE"),
    ApiParameter("error", "only runs whose last error has this class"),
    ApiParameter("dataset", "only runs on this dataset"),
    ApiParameter("tenant", "only runs of this tenant"),
    ApiParameter("correlation", "only runs with this correlation id"),
    ApiParameter("since", "changed at or after: 2h, 7d, 14:05, 2026-11-16, an ISO time or POSIX seconds"),
    ApiParameter("until", "changed at or before; the same forms"),
    ApiParameter("held", "1: only runs that wait for a person"),
    LIMIT_PARAMETER,
    ApiParameter("before", "continue a list: the next_before of its last page", "integer"),
)
API_ROUTES = (
    ApiRoute(
        "/overview", "What happens now, and what is stuck", _load_overview, StoreOverview, is_list=False
    ),
    ApiRoute(
        "/runs",
        "A page of runs, most recently changed first",
        _load_run_page,
        RunPage,
        is_list=False,
        parameters=RUN_PARAMETERS,
    ),
    ApiRoute("/runs/{run}", "Everything the log knows about a run", _load_run, RunTimeline, is_list=False),
    ApiRoute(
        "/runs/{run}/explanation",
        "A run in sentences",
        lambda view: explain_run(_load_run(view)),
        RunExplanation,
        is_list=False,
    ),
    ApiRoute(
        "/runs/{run}/tree", "The callers of a run and the runs it called", _load_tree, RunTree, is_list=False
    ),
    ApiRoute(
        "/quarantine",
        "Items that wait for a person, longest waiting first",
        lambda view: view.dashboard.engine.quarantine.list(limit=_parse_limit(view)),
        QuarantineItem,
        parameters=(LIMIT_PARAMETER,),
    ),
    ApiRoute(
        "/escalations",
        "Escalations and tickets",
        _list_escalations,
        Escalation,
        parameters=(ApiParameter("state", "acknowledged: the ones that were acknowledged"),),
    ),
    ApiRoute(
        "/approvals",
        "Approvals, oldest first",
        lambda view: view.dashboard.engine.approvals.list(),
        ApprovalState,
    ),
    ApiRoute(
        "/approvals/waiting",
        "Runs that wait for an approval",
        lambda view: view.dashboard.engine.approvals.list_waiting(),
        PendingApproval,
    ),
    ApiRoute("/breakers", "Circuit breakers", lambda view: list_breakers(view.dashboard.engine), BreakerView),
    ApiRoute(
        "/limits",
        "Rate limits, concurrency limits and budgets",
        lambda view: list_quotas(view.dashboard.engine),
        QuotaRecord,
    ),
    ApiRoute(
        "/cooldowns",
        "Resources that cool down or are held",
        lambda view: view.dashboard.engine.cooldowns.list(),
        ResourceRecord,
    ),
    ApiRoute(
        "/switches", "Active switches", lambda view: view.dashboard.engine.switches.status(), ActiveSwitch
    ),
    ApiRoute(
        "/schedules",
        "Schedules and their next ticks",
        lambda view: [shown for shown, _ in list_schedules(view.dashboard.engine)],
        ScheduleView,
    ),
    ApiRoute(
        "/queues", "Queues and their running work", lambda view: list_queues(view.dashboard.engine), QueueView
    ),
    ApiRoute("/workers", "Processes that hold a lease", _list_workers, WorkerRow),
    ApiRoute(
        "/policies",
        "Policies that runs of this store began with",
        lambda view: list_recorded_policies(view.dashboard.engine.store),
        RecordedPolicyRow,
    ),
    ApiRoute(
        "/checkpoints",
        "Checkpoints of the ledger, oldest first",
        lambda view: list_checkpoints(view.dashboard.engine),
        CheckpointRow,
    ),
    ApiRoute(
        "/decisions",
        "The last decisions of people",
        lambda view: view.dashboard.list_decisions(),
        RecordedDecision,
    ),
)


def build_api_routes(dashboard: Dashboard) -> list[Route]:
    """Return the routes of the API."""
    from oncemore.dashboard.openapi import build_document

    async def show_document(request: Request) -> Response:
        return make_json_response(build_document(request.scope.get("root_path", "")))

    async def perform(request: Request) -> Response:
        return await _perform_action(dashboard, request)

    async def show_missing(request: Request) -> Response:
        return make_error_response(404, "there is no such path; /api/openapi.json lists them")

    return [
        Route("/api/openapi.json", show_document),
        *(Route(f"/api{route.path}", _make_handler(dashboard, route)) for route in API_ROUTES),
        Route("/api/actions/{action}", perform, methods=["POST"]),
        # Last: routes are tried in their order, and an unknown path gets JSON and not a page.
        Route("/api/{rest:path}", show_missing),
    ]


def _make_handler(dashboard: Dashboard, route: ApiRoute) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        view = dashboard.make_view(request, dict(request.path_params), dict(request.query_params))
        try:
            return make_json_response(await run_in_threadpool(route.load, view))
        except Error as error:
            return make_error_response(find_status(error, is_lookup=bool(request.path_params)), str(error))

    return answer


async def _perform_action(dashboard: Dashboard, request: Request) -> Response:
    action, user = ACTIONS.get(request.path_params["action"]), request.state.access.user
    if action is None:
        return make_error_response(404, "there is no such action; /api/openapi.json lists them")
    if not dashboard.may_change(user, action.needed_role):
        return make_error_response(403, dashboard.explain_refusal(user, action.needed_role))
    try:
        text = await run_in_threadpool(perform_action, dashboard, user, action, request.state.fields)
    except Error as error:
        return make_error_response(find_status(error), str(error))
    return make_json_response({"message": text})


def find_status(error: Error, *, is_lookup: bool = False) -> int:
    """Return the HTTP status of an error, by whose move it is."""
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, StaleDecision):
        return 409
    if isinstance(error, NotPermitted):
        return 403
    # A run in a state that does not permit the action: the request conflicts with it.
    if isinstance(error, CallRefused) or not isinstance(error, UsageError):
        return 409
    return 404 if is_lookup else 400


def make_json_response(value: object, status: int = 200) -> Response:
    """Return a value as JSON; numbers that JSON does not have become null."""
    # A lone surrogate in stored text has no UTF-8 form; it is shown escaped.
    body = json.dumps(_replace_infinities(to_plain(value)), allow_nan=False).encode(
        "utf-8", "backslashreplace"
    )
    return Response(body, status, media_type="application/json")


def make_error_response(status: int, message: str) -> Response:
    """Return an error in the form that every refusal of the API has."""
    return make_json_response({"error": {"message": message}}, status)


def _replace_infinities(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _replace_infinities(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_replace_infinities(part) for part in value]
    return value
