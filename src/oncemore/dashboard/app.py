"""The ASGI application: routes, templates, the stream of live updates, signing in and out."""

from __future__ import annotations

import json
import secrets
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.routing import Mount, Route, compile_path
from starlette.staticfiles import StaticFiles

from oncemore._values import Value
from oncemore._version import __version__
from oncemore.dashboard.actions import ACTIONS, perform_action
from oncemore.dashboard.api import build_api_routes
from oncemore.dashboard.background import BackgroundTasks
from oncemore.dashboard.feed import KEEP_ALIVE, MAX_STREAMS, LiveFeed, encode_event, find_changed_regions
from oncemore.dashboard.formats import FILTERS
from oncemore.dashboard.guard import RequestGuard, build_cookie, route_path
from oncemore.dashboard.page_table import NAVIGATION, PAGES
from oncemore.dashboard.pages import PageRoute, PageView
from oncemore.dashboard.request_rules import is_local_path
from oncemore.dashboard.sessions import DashboardUser, SessionTable
from oncemore.errors import Error, NotPermitted, StoreError
from oncemore.governance.role_model import VIEWER, is_permitted
from oncemore.queries.activity import ActivityCounter
from oncemore.queries.ledger import DecisionList
from oncemore.telemetry.alerts import AlertRules, check_rules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from oncemore.dashboard.guard import RequestAccess
    from oncemore.queries.ledger import RecordedDecision
    from oncemore.steps.engine import Engine

FOLDER = Path(__file__).parent


class DashboardOptions(Value):
    """The options of `create_app`."""

    identify: Callable[[str], DashboardUser | None] | None = None
    user_of: Callable[[Mapping[str, Any]], DashboardUser | None] | None = None
    hosts: tuple[str, ...] = ()
    read_only: bool = False
    audit_files: tuple[str, ...] = ()
    alert_rules: AlertRules = AlertRules()


class RenderedPage(Value):
    """A page as HTML, and its live parts by name."""

    html: str
    regions: dict[str, str]


class Dashboard:
    """The dashboard of one store, as an ASGI application."""

    engine: Engine
    options: DashboardOptions

    def __init__(self, engine: Engine, options: DashboardOptions) -> None:
        check_rules(options.alert_rules)
        self.engine, self.options = engine, options
        self.sessions = SessionTable()
        # Stands for the form token in pages that several streams share; random, so that no data contains it.
        self._token_place = secrets.token_urlsafe(32)
        self.tasks = BackgroundTasks()
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            # Every value is escaped, in every template.
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._guarded = RequestGuard(self._build_app(), self.sessions, options, self.identify)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; nothing answers before the guard has checked it."""
        await self._guarded(scope, receive, send)

    @cached_property
    def activity(self) -> ActivityCounter:
        """The counts of the last hour, shared by all pages."""
        return ActivityCounter(self.engine)

    @cached_property
    def feed(self) -> LiveFeed:
        """The waiter on the store, shared by all streams."""
        return LiveFeed(self._wait_for_change)

    def _wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the log or a computation has changed; return the last seq of the log."""
        ends_at, tasks = time.monotonic() + timeout, self.tasks.change_number
        while True:
            # In slices: the store does not know about computations of this process.
            left = ends_at - time.monotonic()
            last_seq = self.engine.store.wait_for_change(after, max(0.0, min(1.0, left)))
            if last_seq > after or left <= 1.0 or self.tasks.change_number != tasks:
                return last_seq

    @cached_property
    def _decisions(self) -> DecisionList:
        return DecisionList(self.engine)

    def list_decisions(self) -> list[RecordedDecision]:
        """Return the last decisions of people, newest first."""
        return self._decisions.read_decisions()

    def create_link(self, user: DashboardUser) -> str:
        """Return the path of a link that signs in a user once."""
        return f"/login?token={self.sessions.create_link(user)}"

    @property
    def has_links(self) -> bool:
        """Whether users sign in by links; an outer application that signs users in has no use for them."""
        return self.options.user_of is None

    def identify(self, token: str) -> DashboardUser | None:
        """Return the user of a token: by the caller's function, else by the tokens of the store."""
        if self.options.identify is not None:
            return self.options.identify(token)
        from oncemore.governance.identity import identify_token

        try:
            found = identify_token(self.engine, token)
        except NotPermitted:
            return None
        return DashboardUser(found.name, found.role, found)

    def may_change(self, user: DashboardUser, needed: str = "operator") -> bool:
        """Return whether a user may make a change that needs a role."""
        # A viewer's action changes nothing, so that a read-only dashboard permits it.
        return is_permitted(user.role, needed) and (needed == VIEWER or not self.options.read_only)

    # Routes -------------------------------------------------------------------------------------------

    def _build_app(self) -> Starlette:
        routes: list[Route | Mount] = [
            Route("/healthz", _report_health),
            Route("/login", self._sign_in, methods=["GET", "POST"]),
            Route("/logout", self._sign_out, methods=["POST"]),
            Route("/links", self._show_link, methods=["POST"]),
            Route("/live", self._stream_page),
            Route("/do/{action}", self._perform_form, methods=["POST"]),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
            *build_api_routes(self),
            *(Route(page.path, self._make_page_handler(page)) for page in PAGES),
        ]
        return Starlette(routes=routes, exception_handlers={404: self._show_missing})

    def _make_page_handler(self, page: PageRoute) -> Callable[[Request], Any]:
        async def show_page(request: Request) -> Response:
            return await self._show(request, page)

        return show_page

    async def _show(self, request: Request, page: PageRoute) -> Response:
        view = self.make_view(request, dict(request.path_params), dict(request.query_params))
        # Taken before the page is rendered: a notice is shown once, also if the page fails.
        notices = request.state.access.session.take_notices() if request.state.access.session else []
        try:
            rendered = await run_in_threadpool(self.render_page, page, view, request.scope, notices)
        except Error as error:
            return self._show_error(request, error, bool(request.path_params))
        return HTMLResponse(rendered.html)

    def make_view(self, request: Request, path: Mapping[str, str], query: Mapping[str, str]) -> PageView:
        """Return the request for a page by the user of an HTTP request."""
        return PageView(self, request.state.access.user, path, query)

    # Rendering ----------------------------------------------------------------------------------------

    def render_page(
        self,
        page: PageRoute,
        view: PageView,
        scope: Mapping[str, Any],
        notices: list[Any],
        form_token: str | None = None,
    ) -> RenderedPage:
        """Return a page; raise an `Error` if its values cannot be read.

        form_token  the token in its forms; without it the one of the session
        """
        regions: dict[str, str] = {}

        def make_region(name: str, caller: Callable[[], str]) -> Markup:
            # The block of the template, with its values escaped: `format` does not escape it again.
            html = caller()
            regions[name] = str(html)
            return Markup('<div data-live="{name}">{html}</div>').format(name=name, html=html)

        values = page.load(view)
        values |= {"region": make_region, "page": page, "notices": notices}
        if form_token is not None:
            values["form_token"] = form_token
        html = self._render(page.template, scope, view.user, values)
        return RenderedPage(html, regions)

    def _render(
        self, template: str, scope: Mapping[str, Any], user: DashboardUser | None, values: Mapping[str, Any]
    ) -> str:
        access: RequestAccess | None = scope["state"]["access"]
        session = None if access is None else access.session
        common = {
            "root": scope.get("root_path", ""),
            "here": _describe_address(scope),
            "user": user,
            "form_token": "" if session is None else session.form_token,
            "can_operate": user is not None and self.may_change(user),
            "can_review": user is not None and self.may_change(user, "reviewer"),
            "read_only": self.options.read_only,
            "has_links": self.has_links and session is not None,
            "navigation": NAVIGATION,
            "store": self.engine.url,
            "version": __version__,
        }
        return self._templates.get_template(template).render({**common, **values})

    def _show_error(self, request: Request, error: Exception, is_lookup: bool) -> Response:
        """Return a page about a value that cannot be shown: 404 for an unknown id, 400 for a bad filter."""
        status = 503 if isinstance(error, StoreError) else 404 if is_lookup else 400
        return self._show_message(request, status, str(error))

    def _show_message(self, request: Request, status: int, text: str, link: str = "") -> Response:
        access = getattr(request.state, "access", None)
        user = None if access is None else access.user
        # Not one of PAGES: no entry of the navigation is marked.
        title = {200: "Sign-in link", 404: "Not found"}.get(status, "Error")
        page = PageRoute("", "", title, "message.html", lambda view: {})
        values = {"page": page, "notices": [], "text": text, "status": status, "link": link}
        return HTMLResponse(self._render("message.html", request.scope, user, values), status)

    async def _show_missing(self, request: Request, error: Exception) -> Response:
        return self._show_message(request, 404, f"There is no page {route_path(request.scope)}.")

    # Live updates -------------------------------------------------------------------------------------

    async def _stream_page(self, request: Request) -> Response:
        """Send the changed parts of a page, as server-sent events, until the browser closes the stream."""
        address = urlsplit(request.query_params.get("page", "/"))
        found = find_page(address.path.removeprefix(request.scope.get("root_path", "")) or "/")
        if found is None:
            return PlainTextResponse("There is no such page.\n", 404)
        if self.feed.stream_count >= MAX_STREAMS:
            return PlainTextResponse("Too many pages are open; reload this one to update it.\n", 503)
        page, path = found
        view = self.make_view(request, path, dict(parse_qsl(address.query, keep_blank_values=True)))
        stream = self._follow_page(request, page, view, address.geturl())
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _follow_page(
        self, request: Request, page: PageRoute, view: PageView, address: str
    ) -> AsyncIterator[str]:
        sent: dict[str, str] | None = None
        session = request.state.access.session
        # One rendering serves all users of a role: the form token of each is put in afterwards.
        key = (address, view.user.role)
        scope = _address_scope(request.scope, address)

        def render_regions() -> dict[str, str]:
            return self.render_page(page, view, scope, [], self._token_place).regions

        async for number in self.feed.follow_changes():
            try:
                regions = await self.feed.render_once(number, key, render_regions)
            except Error as error:
                yield encode_event("problem", json.dumps(str(error)))
                continue
            changed = find_changed_regions(sent or {}, regions)
            # The first event is sent in any case: it tells the browser that the page is live.
            is_first, sent = sent is None, regions
            own = json.dumps(changed).replace(self._token_place, session.form_token if session else "")
            yield encode_event("regions", own) if changed or is_first else KEEP_ALIVE

    # Changes ------------------------------------------------------------------------------------------

    async def _perform_form(self, request: Request) -> Response:
        """Perform the action of a form, then show the page that it came from with the result."""
        action, fields = ACTIONS.get(request.path_params["action"]), dict(request.state.fields)
        target = str(fields.pop("next", "/"))
        access: RequestAccess = request.state.access
        if action is None:
            return self._show_message(request, 404, "There is no such action.")
        if not self.may_change(access.user, action.needed_role):
            return self._show_message(request, 403, self.explain_refusal(access.user, action.needed_role))
        text, is_error = "", False
        try:
            text = await run_in_threadpool(perform_action, self, access.user, action, fields)
        except Error as error:
            text, is_error = str(error), True
        # After a redirect, so that reloading the page does not send the form again.
        if access.session is not None:
            access.session.add_notice(text, is_error=is_error)
        return RedirectResponse(
            target if is_local_path(target) else f"{request.scope.get('root_path', '')}/", 303
        )

    def explain_refusal(self, user: DashboardUser, needed: str) -> str:
        """Return why a user may not make a change."""
        if self.options.read_only:
            return "This dashboard is read-only. Start it without --read-only to make changes."
        return f"This needs the role {needed}; {user.name} has the role {user.role} here."

    # Signing in ---------------------------------------------------------------------------------------

    async def _sign_in(self, request: Request) -> Response:
        """Begin a session for the holder of a token; without a token show the form for one."""
        token = str(request.state.fields.get("token", "") or request.query_params.get("token", "")).strip()
        target = str(request.state.fields.get("next", "") or request.query_params.get("next", "/"))
        values = {"notices": [], "next": target, "fault": ""}
        if not token:
            return HTMLResponse(self._render("login.html", request.scope, None, values))
        user = self.sessions.redeem_link(token)
        if user is None:
            user = await run_in_threadpool(self.identify, token)
        if user is None:
            values["fault"] = (
                "This token is not valid, or its link was used already. Press Enter in the terminal of "
                "the dashboard for a new link."
            )
            return HTMLResponse(self._render("login.html", request.scope, None, values), 401)
        root = request.scope.get("root_path", "")
        response = RedirectResponse(root + (target if is_local_path(target) else "/"), 303)
        cookie = build_cookie(self.sessions.cookie_name, self.sessions.open_session(user), request.scope)
        response.headers.append("set-cookie", cookie)
        return response

    async def _show_link(self, request: Request) -> Response:
        """Show a link that signs in the same user once more, for another browser."""
        access: RequestAccess = request.state.access
        if not self.has_links or access.session is None:
            return self._show_message(request, 404, "This dashboard does not sign users in by links.")
        url = request.url.replace(path=request.scope.get("root_path", "") + "/login", query="")
        link = f"{url}?{urlsplit(self.create_link(access.user)).query}"
        text = "Open this link in another browser. It works once, for a day, with your name and role."
        return self._show_message(request, 200, text, link)

    async def _sign_out(self, request: Request) -> Response:
        # On the server: a copy of the cookie must be worth nothing either.
        self.sessions.end_session(request.cookies.get(self.sessions.cookie_name, ""))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        response.headers.append("set-cookie", build_cookie(self.sessions.cookie_name, "", request.scope))
        return response


_PATTERNS = tuple((compile_path(page.path)[0], page) for page in PAGES)


def find_page(path: str) -> tuple[PageRoute, dict[str, str]] | None:
    """Return the page at a path and the parameters in the path; None if there is none."""
    for pattern, page in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            return page, match.groupdict()
    return None


def _describe_address(scope: Mapping[str, Any]) -> str:
    """Return the path and the query of a request, for forms that come back to it."""
    query = scope.get("query_string", b"").decode("latin-1")
    return str(scope["path"]) + (f"?{query}" if query else "")


def _address_scope(scope: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Return the scope of a stream with the address of the page that it follows."""
    parts = urlsplit(address)
    return {**scope, "path": parts.path, "query_string": parts.query.encode("latin-1", "replace")}


async def _report_health(request: Request) -> Response:
    """Answer a probe; it says nothing about the store, and needs no user."""
    return PlainTextResponse("ok\n")
