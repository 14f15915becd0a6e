"""The guard in front of every request: Host, user, origin and form token, before any handler runs.

A handler gets only requests that passed all checks (`request_rules` has the rules), with the user in
`request.state.access` and the fields of a changing request in `request.state.fields`. So no handler can
forget a check.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse

from oncemore._values import Value
from oncemore.dashboard.request_rules import (
    MAX_BODY_BYTES,
    SAFE_METHODS,
    SECURITY_HEADERS,
    find_origin_fault,
    is_known_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from oncemore.dashboard.app import DashboardOptions
    from oncemore.dashboard.sessions import DashboardUser, Session, SessionTable

API_PREFIX = "/api"
#: Paths that need no user.
PUBLIC_PATHS = ("/login", "/static/", "/healthz")
COOKIE_OPTIONS = "HttpOnly; SameSite=Strict"


class RequestAccess(Value):
    """Who sent a request.

    session     the session of a browser; None for a bearer token
    new_cookie  the session id to set, if the request began a session
    """

    user: DashboardUser
    session: Session | None = None
    new_cookie: str = ""


class RequestGuard:
    """ASGI middleware that refuses requests which do not come from a signed-in user's own page."""

    def __init__(
        self,
        app: ASGIApp,
        sessions: SessionTable,
        options: DashboardOptions,
        identify: Callable[[str], DashboardUser | None],
    ) -> None:
        self._app, self._sessions, self._options, self._identify = app, sessions, options, identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and hand it to the application, or answer it with the reason of the refusal."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # The dashboard has no web sockets; closing before accepting answers with 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        # A token is looked up in the store, which may take a moment.
        access = await run_in_threadpool(self._find_access, scope, headers)
        guarded_send = _add_headers(send, self._make_cookie(scope, access))
        refusal = self._find_refusal(scope, headers, access)
        state = scope["state"] = {**scope.get("state", {}), "access": access, "fields": {}}
        if refusal is None and scope["method"] not in SAFE_METHODS:
            body = await _read_body(receive)
            refusal = self._check_body(scope, headers, access, body, state)
        await (self._app if refusal is None else refusal)(scope, receive, guarded_send)

    # Who ---------------------------------------------------------------------------------------------

    def _find_access(self, scope: Scope, headers: Headers) -> RequestAccess | None:
        """Return the user of a request: by bearer token, by session, or by the outer application."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            user = self._identify(token.strip())
            return None if user is None else RequestAccess(user)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._sessions.cookie_name, "")
        session = self._sessions.find_session(cookie) if cookie else None
        if self._options.user_of is None:
            return None if session is None else RequestAccess(session.user, session)
        outer = self._options.user_of(scope)
        if outer is None:
            return None
        # The session holds the form token; the outer application says on each request who the user is.
        if session is None or session.user != outer:
            cookie = self._sessions.open_session(outer)
            return RequestAccess(outer, self._sessions.find_session(cookie), cookie)
        return RequestAccess(outer, session)

    def _make_cookie(self, scope: Scope, access: RequestAccess | None) -> str:
        if access is None or not access.new_cookie:
            return ""
        return build_cookie(self._sessions.cookie_name, access.new_cookie, scope)

    # Whether -----------------------------------------------------------------------------------------

    def _find_refusal(self, scope: Scope, headers: Headers, access: RequestAccess | None) -> Response | None:
        """Return the answer to a request that is refused by its headers alone; None if it may go on."""
        host = headers.get("host", "")
        if not is_known_host(host, self._options.hosts):
            return _refuse(
                scope, 421, f"This dashboard is not reached as {host[:100]!r}; open the printed address."
            )
        path = route_path(scope)
        is_safe = scope["method"] in SAFE_METHODS
        if access is None and not path.startswith(PUBLIC_PATHS):
            return _ask_to_sign_in(scope, path)
        is_browser = access is None or access.session is not None
        if not is_safe and is_browser:
            own = (f"http://{host}", f"https://{host}")
            fault = find_origin_fault(headers.get("origin"), headers.get("sec-fetch-site"), own)
            if fault:
                return _refuse(
                    scope, 403, f"Refused: {fault}. Changes are made from a page of this dashboard."
                )
        return None

    def _check_body(
        self,
        scope: Scope,
        headers: Headers,
        access: RequestAccess | None,
        body: bytes | None,
        state: dict[str, Any],
    ) -> Response | None:
        """Read the fields of a changing request into `state`; return the answer if it is refused."""
        if body is None:
            return _refuse(scope, 413, f"The request is larger than {MAX_BODY_BYTES:,} bytes.")
        try:
            fields = parse_fields(body, headers.get("content-type", ""))
        except ValueError as error:
            return _refuse(scope, 400, f"The request cannot be read: {error}")
        state["fields"] = fields
        session = None if access is None else access.session
        token = headers.get("x-form-token") or str(fields.pop("form_token", ""))
        # A bearer token is not sent by browsers on their own, so it needs no second token.
        if session is not None and not session.accepts_token(token):
            return _refuse(
                scope, 403, "Refused: the form token is missing or old. Reload the page, and try again."
            )
        return None


def route_path(scope: Scope) -> str:
    """Return the path of a request below the place where the dashboard is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def build_cookie(name: str, value: str, scope: Scope) -> str:
    """Return a Set-Cookie header for the session; an empty value deletes the cookie."""
    path = scope.get("root_path", "") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    age = "" if value else "; Max-Age=0"
    return f"{name}={value}; Path={path}; {COOKIE_OPTIONS}{secure}{age}"


def parse_fields(body: bytes, content_type: str) -> dict[str, Any]:
    """Return the fields of a form or of a JSON object; raise `ValueError` for anything else."""
    if content_type.partition(";")[0].strip().lower() == "application/json":
        document = json.loads(body or b"{}")
        if not isinstance(document, dict):
            raise ValueError("the JSON is not an object")
        return document
    pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=100)
    return dict(pairs)


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is larger than permitted."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += bytes(message.get("body", b""))
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return body


def _refuse(scope: Scope, status: int, reason: str) -> Response:
    if route_path(scope).startswith(API_PREFIX):
        return JSONResponse({"error": {"message": reason}}, status)
    return PlainTextResponse(reason + "\n", status)


def _ask_to_sign_in(scope: Scope, path: str) -> Response:
    """Send a browser to the sign-in page; answer anything else with 401."""
    if path.startswith(API_PREFIX):
        reason = "sign in first: send a token as Authorization: Bearer, or the cookie of a session"
        return JSONResponse({"error": {"message": reason}}, 401, {"www-authenticate": "Bearer"})
    if scope["method"] not in SAFE_METHODS or path == "/live":
        return PlainTextResponse("Your session has ended; sign in again.\n", 401)
    query = scope.get("query_string", b"").decode("latin-1")
    wanted = path + (f"?{query}" if query else "")
    return RedirectResponse(f"{scope.get('root_path', '')}/login?next={quote(wanted)}", 303)


def _add_headers(send: Send, cookie: str) -> Send:
    """Return a `send` that adds the security headers to every answer."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            headers = [*message.get("headers", ()), *SECURITY_HEADERS]
            # Pages hold data of the store: no cache of the browser or a proxy keeps them.
            if b"cache-control" not in present:
                headers.append((b"cache-control", b"no-store"))
            if cookie:
                headers.append((b"set-cookie", cookie.encode("latin-1")))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers
