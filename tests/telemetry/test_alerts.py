"""Alerts: one for each episode, with the main error class and its likely causes."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.audit import AuditFile
from oncemore.audit.events import (
    AuditEvent,
    Idempotency,
    RetryAttempt,
    RetryExhausted,
    RetryRefused,
    RetrySucceeded,
    format_rfc3339,
)
from oncemore.errors import UsageError
from oncemore.policy.backoff import NO_JITTER
from oncemore.queries.alerts import find_audit_alerts, find_store_alerts, notify_alerts
from oncemore.queries.stores import open_read_only
from oncemore.telemetry.alerts import (
    AlertRules,
    AlertSink,
    RetryAlert,
    RetryMoment,
    check_rules,
    find_alerts,
    find_current_alerts,
    name_causes,
)
from oncemore.testing import FakeClock
from tests.shell import told

if TYPE_CHECKING:
    from pathlib import Path

IDS: dict[str, Any] = {"tenant_id": None, "correlation_id": None, "trace_id": None, "operation": "Fetch"}
RULES = AlertRules()


def moments(count: int, every: float, start: float = 0.0, error: str = "HTTP_503") -> list[RetryMoment]:
    return [RetryMoment(start + every * n, "fetch", error, f"entry {n}") for n in range(count)]


def retry_event(at: float, error: str = "TimeoutError") -> AuditEvent:
    return RetryAttempt(
        retry_category="RETRY_KV_GET", timestamp=format_rfc3339(at), attempt_number=1, max_attempts=3,
        delay_seconds=1.0, exception_type=error, exception_message="", **IDS,
    )  # fmt: skip


def test_more_than_the_threshold_within_a_minute_is_one_alert() -> None:
    assert find_alerts(moments(20, 3.0), [], RULES) == ()
    (alert,) = find_alerts(moments(21, 3.0), [], RULES)
    assert alert.text.startswith("High retry rate detected: 21 retry events within a minute, more than 20")
    assert (alert.kind, alert.affected, alert.main_error, alert.causes) == (
        "retry_rate", 21, "HTTP_503", "upstream outage",
    )  # fmt: skip
    # 21 events within more than a minute are no alert.
    assert find_alerts(moments(21, 3.1), [], RULES) == ()


def test_only_the_alerts_of_the_last_minutes_hold_now() -> None:
    retries = moments(21, 1.0)
    ends = [RetryMoment(float(n), "book", "HTTP_503", f"run {n}", exhausted=True) for n in range(5)]
    assert find_current_alerts(retries, ends, 60.0, RULES) == find_alerts(retries, ends, RULES)[::-1]
    assert find_current_alerts(retries[:20], ends[:4], 60.0, RULES) == ()
    # A minute later the retries are over; the ends count for a quarter of an hour.
    assert [alert.kind for alert in find_current_alerts(retries, ends, 90.0, RULES)] == ["exhaustion"]
    assert find_current_alerts(retries, ends, 2_000.0, RULES) == ()


def test_an_episode_is_one_alert_with_its_worst_window_and_a_later_one_another() -> None:
    first = [*moments(60, 2.0), *moments(30, 1.0, start=60.5)]
    (alert, later) = find_alerts([*first, *moments(25, 1.0, start=900.0)], [], RULES)
    assert (alert.began, later.began) == (0.0, 900.0)
    assert alert.ended == 118.0
    assert alert.affected == 61
    assert later.affected == 25


@pytest.mark.req("DASH-6")
def test_exhaustion_above_the_threshold_names_the_main_error_and_the_causes() -> None:
    ended = [RetryMoment(float(n), "book", "", f"run {n}") for n in range(38)]
    exhausted = [
        RetryMoment(40.0 + n, "book", code, f"run x{n}", exhausted=True)
        for n, code in enumerate(["SQLITE_BUSY", "HTTP_503", "SQLITE_BUSY"])
    ]
    assert find_alerts([], [*ended, *exhausted[:2]], RULES) == ()  # 2 of 40 are 5 %: not above
    (alert,) = find_alerts([], [*ended, *exhausted], RULES)
    assert alert.text == (
        "Elevated retry exhaustion detected: 3 of 41 operations (7%) used up their attempts within 15 min, "
        "more than 5%; main error class SQLITE_BUSY; likely database pressure."
    )
    assert alert.records == ("run x0", "run x1", "run x2")
    # Fewer than five operations are no share.
    assert find_alerts([], exhausted, RULES) == ()


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("HTTP_502", "upstream outage"),
        ("TIMEOUT_READ", "upstream outage"),
        ("CONNECTION_REFUSED", "upstream outage"),
        ("SQLSTATE_40001", "database pressure"),
        ("TIMEOUT_POOL", "database pressure"),
        ("HTTP_429", "throttling by the provider"),
        ("EXC_ValueError", "fault of the work or its data"),
        ("UNHEARD_OF", "upstream outage or database pressure"),
        ("", "upstream outage or database pressure"),
    ],
)
def test_causes_follow_from_the_class_of_the_error(code: str, cause: str) -> None:
    assert name_causes(code) == cause


def test_an_alert_without_error_classes_says_so_by_leaving_it_out() -> None:
    (alert,) = find_alerts(moments(30, 1.0, error=""), [], RULES)
    assert "main error class" not in alert.text


@pytest.mark.parametrize(
    "rules",
    [
        RULES._replace(retries_per_minute=-1.0),
        RULES._replace(exhausted_share=1.0),
        RULES._replace(window_s=0.0),
        RULES._replace(minimum_operations=0),
    ],
)
def test_a_threshold_that_cannot_be_meant_is_refused(rules: AlertRules) -> None:
    with pytest.raises(UsageError, match="it must be"):
        check_rules(rules)


# Audit events ------------------------------------------------------------------------------------------


@pytest.mark.req("DASH-5")
def test_a_sink_alerts_once_at_the_21st_event_of_a_minute_and_again_after_it_was_quiet() -> None:
    alerts: list[RetryAlert] = []
    sink = AlertSink(alerts.append)
    for n in range(20):
        sink(retry_event(1000.0 + n))
    assert alerts == []
    sink(retry_event(1020.5))
    assert [alert.text.partition(":")[0] for alert in alerts] == ["High retry rate detected"]
    for n in range(30):
        sink(retry_event(1021.0 + n))
    assert len(alerts) == 1
    assert "retry_rate" in sink.active
    sink(retry_event(1200.0))
    assert sink.active == {}
    for n in range(21):
        sink(retry_event(1300.0 + n))
    assert len(alerts) == 2


def outcome(at: float, exhausted: bool) -> AuditEvent:
    common = {**IDS, "retry_category": "RETRY_KV_GET", "timestamp": format_rfc3339(at), "total_attempts": 3}
    if not exhausted:
        return RetrySucceeded(**common)
    return RetryExhausted(**common, final_exception_type="TimeoutError", final_exception_message="")


def test_a_sink_counts_exhausted_operations_too() -> None:
    alerts: list[RetryAlert] = []
    sink = AlertSink(alerts.append, AlertRules(exhausted_share=0.5))
    for n in range(10):
        sink(outcome(float(n), exhausted=n > 3))
    (alert,) = alerts
    assert (alert.kind, alert.main_error, alert.causes) == ("exhaustion", "TimeoutError", "upstream outage")
    refused = RetryRefused(
        **IDS, retry_category="C", timestamp=format_rfc3339(0.0), total_attempts=1, reason="not_retryable",
        not_before=None, exception_type="ValueError", exception_message="",
    )  # fmt: skip
    hit = Idempotency(
        **IDS, retry_category="C", timestamp=format_rfc3339(1.0), idempotency_key="k", action="hit"
    )
    report = find_audit_alerts([refused, hit, retry_event(5.0)], 0.0, 10.0, RULES)
    assert (report.retries, report.operations, report.alerts) == (1, 1, ())


def test_the_command_reads_a_file_of_audit_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as sink:
        for n in range(25):
            sink(retry_event(1_790_000_000.0 + n))
    words = ["report", "alerts", "--audit", str(path), "--since", "1789999999"]
    assert cli.run_command(words) == 1
    assert "High retry rate detected: 25 retry events" in capsys.readouterr().out
    assert cli.run_command([*words, "--retries", "30"]) == 0
    assert "no alert: 25 retry events" in capsys.readouterr().out
    assert cli.run_command([*words, "--notify"]) == 2


# A store -----------------------------------------------------------------------------------------------


def fail_often(path: Path, count: int, **settings: Any) -> None:
    @oncemore.step(effect="idempotent", name="book", attempts=4, on=TimeoutError)
    def book(n: int) -> int:
        raise TimeoutError("no answer")

    with oncemore.open(path, **settings), FakeClock():
        for n in range(count):
            with suppress(oncemore.Error):
                book(n)


def test_a_store_is_judged_by_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    fail_often(path, 8)
    with open_read_only(str(path)) as store:
        report = find_store_alerts(store, 0.0, 4e9, RULES)
    assert (report.retries, report.operations) == (24, 8)
    kinds = {alert.kind: alert for alert in report.alerts}
    assert kinds["retry_rate"].affected == 24
    assert (kinds["exhaustion"].affected, kinds["exhaustion"].of) == (8, 8)
    assert kinds["exhaustion"].main_error == "TIMEOUT"
    assert all(record.startswith("run ") for record in kinds["exhaustion"].records)


def test_the_command_exits_with_1_and_names_records(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    fail_often(path, 8)
    # The test clock has moved the records a little into the future.
    words = ("report", "alerts", "--store", str(path), "--until", "4000000000")
    report = told(*words, code=1)
    assert {alert["kind"] for alert in report["alerts"]} == {"retry_rate", "exhaustion"}
    assert (
        told("report", "alerts", "--store", str(path), "--since", "3999999999", "--until", "4000000000")[
            "alerts"
        ]
        == []
    )


def test_alerts_reach_the_sinks_once_per_window(tmp_path: Path) -> None:
    path, received = tmp_path / "log.db", threading.Event()
    messages: list[Any] = []

    def pager(message: Any) -> None:
        messages.append(message)
        received.set()

    fail_often(path, 8)
    with open_read_only(str(path)) as store:
        alerts = find_store_alerts(store, 0.0, 4e9, RULES).alerts
    with oncemore.open(path, notify={"pager": pager}) as engine:
        assert notify_alerts(engine, alerts[:1]) == 1
        assert notify_alerts(engine, alerts[:1]) == 0
        assert received.wait(20.0)
    (message,) = messages
    assert message.payload["what"] == "alert"
    assert message.payload["kind"] == alerts[0].kind
    assert json.dumps(message.to_dict())
    with oncemore.open(path) as engine, pytest.raises(UsageError, match="the setting notify is empty"):
        notify_alerts(engine, alerts)
    with oncemore.open(path, notify={"pager": pager}, notify_every_s=0) as engine:
        assert notify_alerts(engine, alerts[:1]) == 1


def test_watching_prints_each_alert_once_when_its_episode_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, checks = tmp_path / "log.db", list[float]()
    quick = oncemore.Policy(
        "quick", max_attempts=4, schedule=oncemore.backoff.fixed(0.001, 0.002, 0.003), jitter=NO_JITTER
    )

    @oncemore.step(effect="idempotent", name="book", policy=quick, on=TimeoutError)
    def book(n: int) -> int:
        raise TimeoutError("no answer")

    def fail_often(numbers: range) -> None:
        # On the real clock: the command looks at the last minutes.
        with oncemore.open(path):
            for n in numbers:
                book.run(n)

    fail_often(range(1))

    def wait(seconds: float) -> None:
        # Between two checks: more failures before the second, nothing new before the third.
        checks.append(seconds)
        if len(checks) == 1:
            fail_often(range(1, 12))
        if len(checks) == 3:
            raise KeyboardInterrupt

    # Only the waits of this command: the engine has waits of its own.
    monkeypatch.setattr("oncemore.cli.alerts.time", SimpleNamespace(sleep=wait))
    words = ["report", "alerts", "--store", str(path), "--watch", "--every", "2s", "--exhausted", "0.9"]
    # 130 is the exit code of a command that was ended by Ctrl-C.
    assert cli.run_command(words) == 130
    assert checks == [2.0, 2.0, 2.0]
    assert capsys.readouterr().out.count("High retry rate detected") == 1
    assert cli.run_command([*words, "--until", "now"]) == 2
