"""Reports to Sentry, by its own SDK, to a local server that receives envelopes."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import events, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


class Receiver(http.server.ThreadingHTTPServer):
    """A Sentry server that keeps the events of its envelopes."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.server_port}/1"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        lines = body.split(b"\n")[1:]
        for head, payload in zip(lines[::2], lines[1::2], strict=False):
            if json.loads(head)["type"] == "event":
                self.server.events.append(json.loads(payload))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *told: Any) -> None:
        """Say nothing about requests."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


#: In a process of its own: the integrations of the SDK stay in the process that has enabled them.
PROGRAM = """
import sys
import oncemore
import sentry_sdk
from oncemore import telemetry
from oncemore.testing import FakeClock

sentry_sdk.init(dsn=sys.argv[1], auto_enabling_integrations=False)   # which import all that is installed
report = telemetry.enable_sentry()
telemetry.enable_sentry()                                  # a second call changes nothing
calm = oncemore.Policy(schedule=oncemore.backoff.fixed(0.5, 1.0), jitter=oncemore.Jitter("none"))
answers = [ConnectionError("refused, password=hunter2"), "paid"]

@oncemore.step(effect="idempotent", name="shop.charge", policy=calm)
def charge(order):
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer

@oncemore.step(effect="once", name="shop.pay")
def pay(order):
    raise ConnectionResetError("reset")

with FakeClock(), oncemore.open("memory:"):
    charge(1)                                              # retried, then done: nothing is sent
    answers = [ValueError("wrong order, password=hunter2")]
    try:
        charge(2)                                          # caught by the program, and still a failed run
    except oncemore.PermanentFailure:
        pass
    try:
        pay(3)                                             # held for an operator
    except oncemore.OutcomeUnknown:
        pass
    report.disable()
    answers = [ValueError("unreported")]
    try:
        charge(4)
    except oncemore.PermanentFailure as error:
        sentry_sdk.capture_exception(error)                # as without a report
    telemetry.enable_sentry()
    try:
        charge(4)                                          # another run, which fails again
    except oncemore.Error as error:
        around = RuntimeError("around it")
        around.__cause__ = error
        sentry_sdk.capture_exception(around)               # the same failure, which is reported
    answers = [ValueError("last")]
    charge(5)                                              # nothing catches it
"""


def test_a_failed_run_is_one_event_and_a_retried_error_none(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "SENTRY"))}
    done = subprocess.run(
        [sys.executable, "program.py", receiver.dsn], cwd=tmp_path, capture_output=True, text=True,
        env={**quiet, "PYTHONPATH": str(ROOT / "src"), "NO_PROXY": "*"}, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "PermanentFailure" in done.stderr
    found = [(event.get("tags", {}).get("oncemore.step", "-"), describe(event)) for event in receiver.events]
    assert found == [
        ("shop.charge", "ValueError: wrong order, password=***"),
        ("shop.pay", "ConnectionResetError: reset"),
        ("-", "ValueError: unreported"),
        ("shop.charge", "IndexError: pop from empty list"),
        ("shop.charge", "ValueError: last"),
    ]
    failed, held, *_ = receiver.events
    assert (failed["level"], held["level"]) == ("error", "warning")
    assert failed["tags"].keys() >= {"oncemore.run_id", "oncemore.reason", "oncemore.step"}
    assert failed["fingerprint"] == ["oncemore", "shop.charge", "ValueError", "not_retryable"]
    assert len(failed["contexts"]["oncemore"]["key"]) == 64
    assert held["tags"]["oncemore.reason"] == "outcome_unknown"
    crumbs = [
        crumb["message"] for crumb in failed["breadcrumbs"]["values"] if crumb["category"] == "oncemore"
    ]
    assert crumbs == [
        "shop.charge: attempt 1 of 3 started",
        "shop.charge: attempt 1 of 3 failed with ConnectionError: refused, password=*** (CONNECTION_ERROR); "
        "next attempt in 0.5 s",
        "shop.charge: attempt 2 of 3 started",
        crumbs[3],
        "shop.charge: attempt 1 of 3 started",
        crumbs[5],
    ]
    assert crumbs[3].startswith("shop.charge: completed with attempt 2 of 3 in ")
    # The records of the logger say the same, and are not added beside the breadcrumbs.
    reported = [crumb for event in (failed, held) for crumb in event["breadcrumbs"]["values"]]
    categories = {crumb["category"] for crumb in reported}
    assert categories == {"oncemore"}


def describe(event: dict[str, Any]) -> str:
    error = event["exception"]["values"][-1]
    # The error of the SDK is the chain of causes; its last one is that of the step.
    if error["type"] == "PermanentFailure":
        error = event["exception"]["values"][0]
    return f"{error['type']}: {error['value']}"


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    import sentry_sdk

    captured: list[dict[str, Any]] = []
    monkeypatch.setattr(sentry_sdk, "capture_event", captured.append)
    monkeypatch.setattr(sentry_sdk, "add_breadcrumb", lambda **crumb: captured.append(crumb))
    return captured


def test_reported_runs_are_remembered_up_to_a_limit(
    captured: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.telemetry import sentry

    monkeypatch.setattr(sentry, "MAX_REPORTED_RUNS", 2)
    report = sentry.SentryReport()
    report.enable()
    common = dict.fromkeys(events.RunHeld.__annotations__, "") | {
        "attempt": 0,
        "max_attempts": 3,
        "at": 0.0,
    }
    for run_id in ("r1", "r2", "r3"):
        report._report_event(
            events.RunHeld(**{**common, "step": "s", "run_id": run_id, "held_for": "approval"})
        )
    assert [event["logentry"]["message"] for event in captured] == [
        "s: held for an operator before its first attempt: approval; oncemore quarantine list shows it"
    ] * 3
    sent = []
    for run_id in ("r1", "r3"):
        error = oncemore.StepFailed("failed")
        error.run = type("Run", (), {"run_id": run_id})()
        outer = RuntimeError("outer")
        outer.__cause__ = error
        sent.append(report.filter_exception({}, {"exc_info": (RuntimeError, outer, None)}))
    assert sent == [{"tags": {"oncemore.run_id": "r1"}}, None]
    # An endless chain of causes, and events without an exception.
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__context__, two.__context__ = two, one
    assert report.filter_exception({"a": 1}, {"exc_info": (RuntimeError, one, None)}) == {"a": 1}
    assert report.filter_exception({"a": 1}, None) == {"a": 1}
    report.disable()
    report.disable()
    assert report.filter_exception({"b": 2}, {"exc_info": (RuntimeError, outer, None)}) == {"b": 2}


def test_breadcrumbs_and_failures_in_this_process() -> None:
    import sentry_sdk
    from sentry_sdk.transport import Transport

    sent: list[Any] = []

    class Collector(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            sent.append(envelope.get_event())

    answers: list[Exception] = [ConnectionError("refused"), ValueError("wrong")]
    calm = oncemore.Policy(schedule=oncemore.backoff.fixed(0.001, 0.002), jitter=oncemore.Jitter("none"))

    @oncemore.step(effect="idempotent", name="shop.charge", policy=calm)
    def charge(order: int) -> None:
        raise answers.pop(0)

    sentry_sdk.init(dsn="https://public@sentry.invalid/1", transport=Collector, default_integrations=False)
    try:
        telemetry.enable_sentry()
        with telemetry.enable_sentry(), oncemore.open("memory:"):  # a second call changes nothing
            with pytest.raises(oncemore.PermanentFailure) as failed:
                charge(1)
            sentry_sdk.capture_exception(failed.value)
    finally:
        sentry_sdk.init()
    (event,) = sent
    assert event["exception"]["values"][0]["type"] == "ValueError"
    assert len(event["breadcrumbs"]["values"]) == 4


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "oncemore.telemetry.sentry", raising=False)
    monkeypatch.delattr(telemetry, "sentry", raising=False)
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(oncemore.MissingExtra, match=r"pip install 'oncemore\[sentry\]'"):
        telemetry.enable_sentry()
