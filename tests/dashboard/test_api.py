"""The JSON API: its values, its published description, and requests that nobody would write by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from oncemore.dashboard.actions import ACTIONS
from oncemore.dashboard.api import API_ROUTES
from oncemore.dashboard.openapi import build_document, describe_annotation
from tests.dashboard.conftest import HOST, ServedDashboard, read_form_token, sign_in

if TYPE_CHECKING:
    from oncemore.dashboard.app import Dashboard

#: The examples per operation: enough to meet every kind of parameter; `make torture` tries many more.
EXAMPLES = 400 if os.environ.get("ONCEMORE_TORTURE") else 12


@pytest.fixture
def client(served: ServedDashboard) -> TestClient:
    return TestClient(served.app, base_url=HOST, headers={"authorization": "Bearer reviewer-token"})


def test_every_route_answers_with_the_fields_of_its_description(
    served: ServedDashboard, client: TestClient
) -> None:
    import jsonschema_rs

    document = client.get("/api/openapi.json").json()
    for route in API_ROUTES:
        path = route.path.replace("{run}", served.runs.retried)
        reply = client.get(f"/api{path}")
        assert reply.status_code == 200, path
        schema = document["components"]["schemas"][route.record.__name__]
        values = reply.json() if route.is_list else [reply.json()]
        for value in values:
            jsonschema_rs.validate(schema, value)


def test_the_api_and_the_command_line_return_the_same_run(
    served: ServedDashboard, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from oncemore import cli

    url = served.app.engine.url
    assert cli.run_command(["show", served.runs.retried, "--store", url, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    reply = client.get(f"/api/runs/{served.runs.retried}").json()
    assert reply["row"] == printed["row"]


def test_runs_are_paged_to_the_end_without_a_gap_or_a_repetition(client: TestClient) -> None:
    whole = client.get("/api/runs?limit=1000").json()["rows"]
    seen, before = [], ""
    while True:
        page = client.get(f"/api/runs?limit=4{before}").json()
        seen += [row["run_id"] for row in page["rows"]]
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert seen == [row["run_id"] for row in whole]
    assert len(seen) > 20


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("state=nothing", "the states are"),
        ("limit=0", "whole number from 1 to 1000"),
        ("limit=x", "whole number"),
        ("before=-1", "whole number"),
        ("since=yesterday", "is not a time"),
    ],
)
def test_a_wrong_parameter_is_named(client: TestClient, query: str, message: str) -> None:
    reply = client.get(f"/api/runs?{query}")
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_unknown_runs_paths_and_actions_are_not_found(client: TestClient) -> None:
    for path in ("/api/runs/0193a000", "/api/nothing", "/api/runs/x"):
        reply = client.get(path)
        assert reply.status_code == 404
        assert reply.json()["error"]["message"]
    assert client.post("/api/actions/nothing", json={}).status_code == 404


def test_a_bearer_token_acts_with_its_role_and_needs_no_form_token(changing: ServedDashboard) -> None:
    app = changing.app
    operator = TestClient(app, base_url=HOST, headers={"authorization": "Bearer operator-token"})
    body = {"scope": "tenant", "name": "north", "reason": "a test"}
    assert operator.post("/api/actions/switch-on", json=body).json()["message"].startswith("The switch")
    reply = operator.post("/api/actions/approve", json={"run": changing.runs.approval, "reason": "x"})
    assert reply.status_code == 403
    assert "needs the role reviewer" in reply.json()["error"]["message"]
    stranger = TestClient(app, base_url=HOST, headers={"authorization": "Bearer guess"})
    assert stranger.post("/api/actions/switch-off", json=body).status_code == 401


def test_a_browser_session_needs_the_form_token_for_the_api_too(changing: ServedDashboard) -> None:
    client = sign_in(changing.app)
    body = {"scope": "tenant", "name": "north", "reason": "a test"}
    headers = {"origin": HOST}
    assert client.post("/api/actions/switch-on", json=body, headers=headers).status_code == 403
    headers["x-form-token"] = read_form_token(client)
    assert client.post("/api/actions/switch-on", json=body, headers=headers).status_code == 200
    again = client.post("/api/actions/release", json={"item": "run/0", "reason": "x"}, headers=headers)
    assert again.status_code == 400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "is missing"),
        ({"run": "x", "reason": "y", "more": 1}, "has no field 'more'"),
        ({"run": 7, "reason": "y"}, "it takes text"),
        ({"run": "0193a000", "reason": " "}, "reason is missing"),
        ({"run": "0193a000", "reason": "x" * 20_000}, "it takes up to"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, fields: dict[str, Any], message: str) -> None:
    reply = client.post("/api/actions/cancel", json=fields)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_wrong_values_of_actions_are_refused(client: TestClient, served: ServedDashboard) -> None:
    from oncemore.queries.runs import find_run

    item = find_run(served.app.engine.store, served.runs.unknown).entity
    for action, fields in (
        ("settle", {"item": item, "outcome": "perhaps"}),
        ("rerun", {"item": item, "extra_attempts": "many"}),
        ("rerun", {"item": item, "extra_attempts": True}),
        ("settle", {"item": item, "outcome": "applied", "value": "{"}),
        ("switch-on", {"scope": "all", "name": "x"}),
        ("switch-on", {"scope": "nothing"}),
        ("release", {"item": "worker/1"}),
    ):
        reply = client.post(f"/api/actions/{action}", json={**fields, "reason": "a test"})
        assert reply.status_code == 400, (action, fields, reply.text)


def test_the_description_covers_every_route_and_action() -> None:
    document = build_document("/desk")
    assert document["servers"] == [{"url": "/desk"}]
    assert len(document["paths"]) == len(API_ROUTES) + len(ACTIONS)
    assert describe_annotation("int") == {"type": "integer"}
    assert describe_annotation("str | None") == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert describe_annotation("SomethingElse") == {}


@pytest.mark.torture
def test_generated_requests_never_break_the_server(changing: ServedDashboard) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    app: Dashboard = changing.app
    schema = schemathesis.openapi.from_dict(build_document())
    client = TestClient(app, base_url=HOST, raise_server_exceptions=False)
    covered = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        @given(case=operation.as_strategy())
        def call_operation(case: Any) -> None:
            # The generated path is escaped as the client would send it.
            request = case.as_transport_kwargs(base_url=HOST)
            headers = {
                name: value for name, value in request.get("headers", {}).items() if _is_sendable(value)
            }
            headers["Authorization"] = "Bearer reviewer-token"
            reply = client.request(
                request["method"],
                request["url"],
                params=request.get("params"),
                json=request.get("json"),
                headers=headers,
            )
            assert reply.status_code < 500, f"{case.method} {case.path}: {reply.text}"
            assert reply.status_code in (200, 400, 401, 403, 404, 409, 413)

        call_operation()
        covered.add(operation.label)
    assert len(covered) == len(API_ROUTES) + len(ACTIONS)


def _is_sendable(value: str) -> bool:
    return value.isascii() and value.isprintable()
