"""Pages as a client without a browser sees them: categories, periods, what-if, the ledger, the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from html import unescape
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import backoff
from oncemore.dashboard import create_app
from tests.dashboard.conftest import HOST, OPERATOR, ServedDashboard, read_form_token, sign_in
from tests.stores import postgres_database, store_url

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from starlette.testclient import TestClient


__all__ = ["postgres_database", "store_url"]


def read_cells(html: str, heading: str) -> list[list[str]]:
    """Return the texts of the table rows after a heading."""
    table = html.partition(heading)[2].partition("</table>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)[1:]
    return [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in rows
    ]


def wait_for_end(client: TestClient, path: str, sign: str = "") -> str:
    """Return a page once its computation has ended; a live page would get it by its stream."""
    ends_at = time.monotonic() + 60
    while "<progress" in (html := client.get(path).text):
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    assert sign in html
    return html


@pytest.mark.req("DASH-7")
def test_the_page_of_categories_has_the_numbers_of_the_audit(tmp_path: Path) -> None:
    from oncemore.audit.recorder import AuditRecorder
    from oncemore.audit.sinks import AuditFile, AuditStream

    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as sink:
        for attempts, error in ((1, None), (2, None), (3, ConnectionError("refused"))):
            recorder = AuditRecorder(sink, "RETRY_KV_GET", "read")
            recorder.record_end(attempts, 0.0, error)
    with oncemore.open("memory:") as engine:
        html = sign_in(create_app(engine, audit_files=[path])).get("/categories").text
    ((category, operations, attempts_, rate, average),) = read_cells(html, str(path))
    (summary,) = AuditStream.read(path).per_category().values()
    assert (operations, attempts_, rate, average) == ("3", "6", "66.7 %", "2.00")
    assert (summary.total_attempts, summary.avg_attempts) == (6, 2.0)
    assert category in AuditStream.read(path).per_category()


@pytest.mark.req("DASH-1")
def test_two_periods_stand_side_by_side(served: ServedDashboard) -> None:
    client = sign_in(served.app)
    html = wait_for_end(client, "/energy?since=1h&until=2099-01-01&base_since=2h&base_until=1h")
    rows = {row[0]: row[1:] for row in read_cells(html, "Both periods")}
    for figure in ("Attempts", "Energy, kWh", "Carbon, kg CO2e", "Duplicate work: repeated attempts"):
        baseline, period, *_ = rows[figure]
        assert baseline in ("0", "—"), "nothing ran in the hour before"
        assert period != "0"
    assert "the period ends before it begins" in client.get("/energy?since=1h&until=2h").text


def test_what_if_compares_a_window_under_another_policy(served: ServedDashboard) -> None:
    client = sign_in(served.app)
    html = wait_for_end(client, "/what-if?since=1h&until=2099-01-01&policy=kfm-loop")
    figures = {row[0]: row[1:] for row in read_cells(html, 'id="figures"')}
    assert float(figures["Delays, s"][1].replace(",", "")) > float(figures["Delays, s"][0].replace(",", ""))
    assert html.count("<polyline") == 2
    for query, message in (
        ("tuning=compare&policy=kfm-loop", "leave the policy empty"),
        ("tuning=perhaps", "it takes on, off or compare"),
        ("policy=kfm-loop&intensity=much", "grams of CO2"),
        ("policy=nothing", "not"),
    ):
        reply = client.get(f"/what-if?{query}")
        assert reply.status_code == 400
        assert message in reply.text
    assert client.get("/what-if?tuning=compare&intensity=620").status_code == 200
    empty = wait_for_end(client, "/what-if?policy=kfm-loop&since=2001-01-01&until=2001-01-02")
    assert "No run was recorded" in empty
    assert 'value="2001-01-01"' in empty, "the form keeps what was typed"


@pytest.mark.req("GOV-5")
def test_a_retry_into_a_governance_conflict_is_an_escalation_to_the_council_on_the_pages(
    tmp_path: Path, quiet_log: None
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        engine.datasets.register("survey", care_label="Public · Low-Risk", reason="new", by="steward")

        @oncemore.step(effect="idempotent", name="survey.publish", dataset="survey")
        def publish(sheet: int) -> None:
            # The community objects while the attempt runs: its retry meets the gate.
            engine.datasets.block("survey", reason="the community has objected", by="steward")
            raise ConnectionError("refused")

        run = publish.run(1)
        assert len(run.attempts) == 1
        (opened,) = engine.escalations.list()
        assert (opened.kind, opened.role, opened.run_id) == (
            "CARE_ESCALATION",
            "FAIR+CARE Council",
            run.run_id,
        )
        app = create_app(engine)
        client = sign_in(app)
        for path in ("/", "/review", f"/escalations/{opened.id}"):
            page = client.get(path).text
            assert "FAIR+CARE Council" in page, path
            assert "survey.publish" in page, path
        listed = client.get("/api/escalations").json()
        assert [(each["role"], each["kind"]) for each in listed] == [(opened.role, opened.kind)]
        # The council's decision is for a reviewer; an operator sees it and cannot make it.
        other = sign_in(app, OPERATOR)
        form = {"escalation": opened.id, "reason": "fine", "form_token": read_form_token(other)}
        other.post("/do/acknowledge", data=form, headers={"origin": HOST})
        assert "needs the role reviewer" in other.get("/review").text
        assert len(engine.escalations.list()) == 1


@pytest.mark.req("DASH-3")
def test_a_changed_policy_has_a_view_before_and_after(tmp_path: Path, quiet_log: None) -> None:
    def work_under(attempts: int) -> None:
        policy = oncemore.Policy(
            "mine", max_attempts=attempts, unmatched="retry", schedule=backoff.fixed(0.01)
        )

        @oncemore.step(effect="idempotent", name="poll", policy=policy)
        def poll(day: int) -> None:
            # A known energy: the measured one depends on how busy the machine is.
            oncemore.current().add_usage(energy_kwh=1.0)
            raise ConnectionError("refused")

        for day in range(3):
            poll.run(10 * attempts + day)

    with oncemore.open(tmp_path / "log.db") as engine:
        work_under(4)
        work_under(2)
        client = sign_in(create_app(engine))
        listed = client.get("/policies").text.partition('id="changes"')[2].partition("</table>")[0]
        view = unescape(re.findall(r'href="(/policies\?a=policy/[^"]+)"', listed)[0])
        html = wait_for_end(client, view)
    rows = {row[0]: row[1:] for row in read_cells(html, 'id="before-after"')}
    assert rows["Runs"] == ["3", "3", "6", "6", "0"]
    assert rows["Attempts"] == ["12", "6", "24", "12", "-12"]
    # Energy and duplicate work are measured; carbon needs the intensity of a grid, which is not set here.
    repeated = rows["Duplicate work: repeated attempts"]
    assert repeated[:2] == ["9", "3"]
    assert [float(text) for text in rows["Energy, kWh"][:2]] == pytest.approx([12.0, 6.0], abs=0.01)
    assert rows["Carbon, kg CO2e"] is not None


def test_the_ledger_is_verified_on_demand_and_a_changed_log_shows(tmp_path: Path) -> None:
    import apsw

    with oncemore.open(tmp_path / "log.db") as engine:

        @oncemore.step(effect="pure", name="square")
        def square(n: int) -> int:
            return n * n

        square(2)
        app = create_app(engine, read_only=True)
        client = sign_in(app)
        token = read_form_token(client)
        form = {"form_token": token, "next": "/ledger"}
        reply = client.post("/do/verify-ledger", data=form, headers={"origin": HOST})
        assert reply.headers["location"] == "/ledger"
        assert "Intact: " in wait_for_end(client, "/ledger", "Verify now")
        with apsw.Connection(str(tmp_path / "log.db")) as connection:
            connection.execute("update log set body = replace(body, '4', '5')")
        client.post("/do/verify-ledger", data=form, headers={"origin": HOST})
        assert "Not intact" in wait_for_end(client, "/ledger", "Verify now")


def test_a_stored_token_signs_in_and_decides_as_its_owner(tmp_path: Path) -> None:
    from oncemore.dashboard import DashboardUser
    from oncemore.governance.identity import read_process_user

    with oncemore.open(tmp_path / "log.db") as engine:
        engine.roles.assign(read_process_user().name, "reviewer", reason="head of the archive")
        token = engine.roles.create_token("archivist", "operator", expires=3600.0, reason="on call")
        app = create_app(engine)
        from starlette.testclient import TestClient

        client = TestClient(app, base_url=HOST, headers={"authorization": f"Bearer {token}"})
        body = {"scope": "tenant", "name": "north", "reason": "a test"}
        assert client.post("/api/actions/switch-on", json=body).status_code == 200
        (switch,) = engine.switches.status()
        assert switch.by.startswith("archivist (token ")
        assert app.identify("guess") is None
        assert isinstance(app.identify(token), DashboardUser)


def test_an_unknown_page_and_an_unknown_run_are_explained(served: ServedDashboard) -> None:
    client = sign_in(served.app)
    for path, message in (("/nothing", "There is no page /nothing"), ("/runs/0193aaaa", "there is no run")):
        reply = client.get(path)
        assert reply.status_code == 404
        assert message in reply.text
    reply = client.get("/runs?state=x")
    assert reply.status_code == 400
    assert "the states are" in reply.text
    assert client.get("/live?page=/nothing").status_code == 404
    assert (
        client.post(
            "/do/nothing", data={"form_token": read_form_token(client)}, headers={"origin": HOST}
        ).status_code
        == 404
    )


def test_the_error_of_a_store_is_shown(tmp_path: Path) -> None:
    engine = oncemore.open(tmp_path / "log.db")
    app = create_app(engine)
    client = sign_in(app)
    assert client.get("/").status_code == 200
    engine.close()
    for file in tmp_path.glob("log.db*"):
        file.unlink() if file.is_file() else None
    (tmp_path / "log.db").write_bytes(b"this is not a database, " * 100)
    reply = client.get("/runs")
    assert reply.status_code == 503
    assert "log.db" in reply.text


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    from urllib.request import HTTPCookieProcessor, build_opener

    with oncemore.open(tmp_path / "log.db") as engine:
        engine.switches.on(reason="a test", by="operator")
    command = [
        sys.executable,
        "-m",
        "oncemore",
        "dashboard",
        "--port",
        "0",
        "--store",
        str(tmp_path / "log.db"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "works once" in process.stdout.readline()
        link = process.stdout.readline().strip()
        assert "operator" in process.stdout.readline()
        opener = build_opener(HTTPCookieProcessor())
        deadline = time.monotonic() + 30
        while True:
            try:
                page = opener.open(link, timeout=30).read().decode()
                break
            except OSError:
                # The link is printed a moment before the server answers.
                assert time.monotonic() < deadline
        assert "Switch all_execution" in page
        stream = opener.open(link.partition("/login")[0] + "/live?page=/", timeout=30)
        assert stream.readline().startswith(b"event: regions")
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert errors.strip() == ""
    finally:
        process.kill()
        process.wait()


def test_enter_in_the_terminal_prints_another_link(tmp_path: Path) -> None:
    import pty

    oncemore.open(tmp_path / "log.db").store.now()
    command = [
        sys.executable,
        "-m",
        "oncemore",
        "dashboard",
        "--port",
        "0",
        "--store",
        str(tmp_path / "log.db"),
    ]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        with os.fdopen(ours, "r+b", buffering=0) as terminal:
            read_until(terminal, b"Enter prints another link")
            terminal.write(b"\n")
            shown = read_until(terminal, b"login?token=")
            assert re.search(rb"http://127\.0\.0\.1:\d+/login\?token=", shown)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(30) in (0, 130), "the thread that reads the terminal does not hold it up"
    finally:
        process.kill()
        process.wait()


def read_until(terminal: IO[bytes], sign: bytes) -> bytes:
    """Return the output of a terminal up to a sign in it."""
    shown = b""
    while sign not in shown:
        shown += terminal.read(1)
    return shown


@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
def test_a_read_only_dashboard_opens_the_store_for_reading(store_url: str) -> None:
    from oncemore.errors import StoreError
    from oncemore.queries.stores import open_for_viewing

    with oncemore.open(store_url) as engine:

        @oncemore.step(effect="pure", name="square")
        def square(n: int) -> int:
            return n * n

        run = square.run(2)
    with open_for_viewing(store_url) as engine:
        last_seq = engine.store.wait_for_change(0, 0.0)
        # The dashboard itself permits changes here: the store refuses them.
        client = sign_in(create_app(engine))
        for path in (
            "/",
            "/runs",
            f"/runs/{run.run_id}",
            "/review",
            "/limits",
            "/schedules",
            "/energy",
            "/ledger",
        ):
            assert client.get(path).status_code == 200, path
        form = {"form_token": read_form_token(client), "scope": "all", "reason": "a test"}
        client.post("/do/switch-on", data=form, headers={"origin": HOST})
        assert "read" in client.get("/limits").text.partition('class="notice bad"')[2][:300]
        with pytest.raises(StoreError, match="read"):
            square(3)
        assert engine.store.wait_for_change(0, 0.0) == last_seq


def test_the_command_opens_the_store_for_reading_with_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore import cli
    from oncemore.cli import dashboard

    oncemore.open(tmp_path / "log.db").store.now()
    opened = []

    def stop_here(engine: oncemore.Engine, options: object) -> None:
        opened.append(type(engine.store).__name__)
        raise KeyboardInterrupt

    monkeypatch.setattr(dashboard, "_create_app", stop_here)
    for options in ([], ["--read-only"]):
        cli.run_command(["dashboard", "--store", str(tmp_path / "log.db"), *options])
    assert opened == ["SqliteStore", "ReadOnlySqliteStore"]


def test_a_missing_store_and_a_taken_port_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    from oncemore import cli

    assert cli.run_command(["dashboard", "--store", str(tmp_path / "none.db")]) != 0
    assert "there is no store" in capsys.readouterr().err
    oncemore.open(tmp_path / "log.db").store.now()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert cli.run_command(["dashboard", "--store", str(tmp_path / "log.db"), "--port", port]) == 2
    assert "cannot listen" in capsys.readouterr().err
