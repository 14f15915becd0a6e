"""Who may see and change something: signing in, roles, forged requests, headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import oncemore
from oncemore.dashboard import DashboardUser, create_app
from oncemore.dashboard.request_rules import find_origin_fault, is_known_host, is_local_path, split_host
from oncemore.dashboard.sessions import LINK_S, MAX_SESSIONS, SESSION_S, SessionTable
from oncemore.errors import UsageError
from tests.dashboard.conftest import (
    HOST,
    OPERATOR,
    REVIEWER,
    VIEWER,
    identify_sample,
    read_form_token,
    sign_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.dashboard.app import Dashboard

ORIGIN = {"origin": HOST}


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


@pytest.fixture
def app(engine: oncemore.Engine) -> Dashboard:
    return create_app(engine, identify=identify_sample)


def post_switch(client: TestClient, token: str, headers: dict[str, str] = ORIGIN) -> Any:
    fields = {"form_token": token, "scope": "all", "reason": "a test"}
    return client.post("/do/switch-on", data=fields, headers=headers)


# Signing in -----------------------------------------------------------------------------------------


def test_nothing_but_the_sign_in_page_answers_without_a_session(app: Dashboard) -> None:
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    for path in ("/", "/runs", "/review", "/ledger"):
        reply = client.get(path)
        assert (reply.status_code, reply.headers["location"]) == (303, f"/login?next={path}")
    assert client.get("/api/runs").status_code == 401
    assert client.get("/api/openapi.json").status_code == 401
    assert client.get("/live").status_code == 401
    assert client.post("/do/switch-on", headers=ORIGIN).status_code == 401
    assert client.get("/healthz").text == "ok\n"
    assert "Token" in client.get("/login").text


def test_a_link_signs_in_once(app: Dashboard) -> None:
    link = app.create_link(OPERATOR)
    first, second = (TestClient(app, base_url=HOST, follow_redirects=False) for _ in range(2))
    reply = first.get(link)
    assert reply.status_code == 303
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert first.get("/").status_code == 200
    assert second.get(link).status_code == 401
    assert second.get("/").status_code == 303


def test_a_signed_in_user_gets_another_link_for_another_browser(app: Dashboard) -> None:
    first = sign_in(app, OPERATOR)
    form, headers = {"form_token": read_form_token(first)}, {"origin": HOST}
    assert first.post("/links", headers=headers).status_code == 403, "it needs the form token"
    reply = first.post("/links", data=form, headers=headers)
    link = reply.text.partition("<code>")[2].partition("</code>")[0]
    assert link.startswith(f"{HOST}/login?token=")
    assert "data-live-page" not in reply.text, "this page has nothing to follow"
    second = TestClient(app, base_url=HOST, follow_redirects=False)
    assert second.get(link).status_code == 303
    assert '<span class="role">operator' in second.get("/").text
    assert second.get(link).status_code == 401


def test_a_session_ends_when_the_user_signs_out(app: Dashboard) -> None:
    client = sign_in(app)
    copied = TestClient(app, base_url=HOST, cookies=dict(client.cookies), follow_redirects=False)
    assert copied.get("/").status_code == 200
    assert (
        client.post("/logout", data={"form_token": read_form_token(client)}, headers=ORIGIN).status_code
        == 303
    )
    # Not only the cookie is gone: a copy of it is worth nothing either.
    assert copied.get("/").status_code == 303


def test_a_typed_token_signs_in_and_a_wrong_one_does_not(app: Dashboard) -> None:
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    assert client.post("/login", data={"token": "guess"}, headers=ORIGIN).status_code == 401
    assert client.post("/login", data={"token": "viewer-token"}, headers=ORIGIN).status_code == 303
    assert "viewer" in client.get("/").text


@pytest.mark.parametrize("target", ["https://example.org/", "//example.org", "/\\example.org", "x"])
def test_signing_in_never_leads_to_another_site(app: Dashboard, target: str) -> None:
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    reply = client.post("/login", data={"token": "viewer-token", "next": target}, headers=ORIGIN)
    assert reply.headers["location"] == "/"
    assert not is_local_path(target)


def test_sessions_and_links_end_by_time_and_have_a_limit() -> None:
    now = [0.0]
    table = SessionTable(lambda: now[0])
    link, session = table.create_link(VIEWER), table.open_session(VIEWER)
    now[0] = LINK_S + 1
    assert table.redeem_link(link) is None
    assert table.find_session(session) is None
    late = table.open_session(VIEWER)
    now[0] += SESSION_S - 1
    assert table.find_session(late) is not None  # and it is prolonged
    now[0] += SESSION_S - 1
    assert table.find_session(late) is not None
    ids = [table.open_session(VIEWER) for _ in range(MAX_SESSIONS + 5)]
    assert table.find_session(ids[-1]) is not None
    assert sum(table.find_session(each) is not None for each in ids) <= MAX_SESSIONS
    with pytest.raises(UsageError, match="the roles are viewer, operator, reviewer"):
        table.open_session(DashboardUser("x", "admin"))


# Forged requests ------------------------------------------------------------------------------------


def test_a_change_needs_the_form_token_the_origin_the_host_and_the_role(
    app: Dashboard, engine: oncemore.Engine
) -> None:
    client = sign_in(app, OPERATOR)
    token = read_form_token(client)
    refused = [
        post_switch(client, ""),
        post_switch(client, "wrong"),
        post_switch(client, read_form_token(sign_in(app, OPERATOR))),  # the token of another session
        post_switch(client, token, {"origin": "https://example.org"}),
        post_switch(client, token, {"origin": "null"}),
        post_switch(client, token, {}),
        post_switch(client, token, {**ORIGIN, "sec-fetch-site": "cross-site"}),
        post_switch(client, token, {**ORIGIN, "sec-fetch-site": "same-site"}),
        post_switch(client, token, {"origin": "http://evil.test", "host": "evil.test"}),
        post_switch(sign_in(app, VIEWER), read_form_token(sign_in(app, VIEWER))),
    ]
    assert {reply.status_code for reply in refused[:8]} == {403}
    assert refused[8].status_code == 421
    assert refused[9].status_code == 403
    assert engine.switches.status() == ()
    assert post_switch(client, token).status_code == 303
    (switch,) = engine.switches.status()
    assert (switch.by, switch.reason) == ("operator", "a test")


def test_a_viewer_changes_nothing_with_a_right_token(app: Dashboard, engine: oncemore.Engine) -> None:
    client = sign_in(app, VIEWER)
    reply = post_switch(client, read_form_token(client))
    assert reply.status_code == 403
    assert "needs the role operator" in reply.text
    assert engine.switches.status() == ()


def test_a_read_only_dashboard_refuses_every_change(engine: oncemore.Engine) -> None:
    app = create_app(engine, read_only=True, identify=identify_sample)
    client = sign_in(app, REVIEWER)
    reply = post_switch(client, read_form_token(client))
    assert reply.status_code == 403
    assert "read-only" in reply.text
    reply = client.post(
        "/api/actions/switch-on", json={"reason": "x"}, headers={"authorization": "Bearer reviewer-token"}
    )
    assert reply.status_code == 403
    assert "Stop work" not in client.get("/limits").text
    assert engine.switches.status() == ()


def test_another_host_name_is_refused_before_anything_else(app: Dashboard) -> None:
    client = sign_in(app)
    for host in ("evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80", ""):
        assert client.get("/", headers={"host": host}).status_code == 421
    for host in ("localhost", "localhost:8321", "127.0.0.1:1", "[::1]:99"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_every_answer_has_the_security_headers(app: Dashboard) -> None:
    client = sign_in(app)
    for path in ("/", "/login", "/static/dashboard.css", "/api/runs", "/missing", "/api/missing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert client.get("/").headers["cache-control"] == "no-store"


def test_a_large_or_unreadable_body_is_refused(app: Dashboard) -> None:
    client = sign_in(app)
    assert client.post("/do/switch-on", content=b"x" * 70_000, headers=ORIGIN).status_code == 413
    for body in (b"{", b"[1]", b"\xff"):
        reply = client.post(
            "/do/switch-on", content=body, headers={**ORIGIN, "content-type": "application/json"}
        )
        assert reply.status_code == 400
    assert client.post("/do/switch-on", content=b"\xff=1", headers=ORIGIN).status_code == 400


def test_a_web_socket_is_refused(app: Dashboard) -> None:
    client = sign_in(app)
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/live"):
        pass
    assert closed.value.code == 1008


# Mounting -------------------------------------------------------------------------------------------


def test_it_can_be_mounted_into_an_application_that_signs_users_in(engine: oncemore.Engine) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    users: dict[bytes, DashboardUser] = {b"alpha": OPERATOR, b"beta": VIEWER}

    def user_of(scope: Any) -> DashboardUser | None:
        return users.get(dict(scope["headers"]).get(b"x-user", b""))

    app = create_app(engine, user_of=user_of, hosts=["ops.example.org"])
    outer = Starlette(routes=[Mount("/desk", app)])
    client = TestClient(outer, base_url="https://ops.example.org", follow_redirects=False)
    assert client.get("/desk/").headers["location"] == "/desk/login?next=/"
    page = client.get("/desk/", headers={"x-user": "alpha"})
    assert page.status_code == 200
    assert 'href="/desk/runs"' in page.text
    assert "Path=/desk" in page.headers["set-cookie"]
    assert "Secure" in page.headers["set-cookie"]
    token = page.text.partition('name="form_token" value="')[2].partition('"')[0]
    headers = {"origin": "https://ops.example.org", "x-user": "alpha"}
    fields = {"form_token": token, "scope": "all", "reason": "a test"}
    assert client.post("/desk/do/switch-on", data=fields, headers=headers).status_code == 303
    assert len(engine.switches.status()) == 1
    # The cookie of one user does not make another one an operator.
    reply = client.post("/desk/do/switch-off", data=fields, headers={**headers, "x-user": "beta"})
    assert reply.status_code == 403
    assert (
        client.post("/desk/do/switch-off", data=fields, headers={"origin": headers["origin"]}).status_code
        == 401
    )
    assert len(engine.switches.status()) == 1


# Rules ----------------------------------------------------------------------------------------------


def test_the_rules_for_hosts_and_origins() -> None:
    assert split_host("[::1]:80") == "[::1]"
    assert is_known_host("Ops.Example.org:443", ["ops.example.org"])
    assert is_known_host("ops.example.org:443", ["ops.example.org:443"])
    assert not is_known_host("ops.example.org:80", ["ops.example.org:443"])
    assert find_origin_fault("http://a", None, ["http://A"]) == ""
    assert "no Origin" in find_origin_fault(None, "same-origin", ["http://a"])
    assert "another site" in find_origin_fault("http://a", "cross-site", ["http://a"])
    assert is_local_path("/runs?x=//y")
    assert not is_local_path("/a\r\nset-cookie: x")
