"""Find alerts in a store or in a file of audit events, and hand them to the notification sinks."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs
from oncemore.telemetry.alerts import RetryMoment, check_rules, find_alerts, read_moments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.audit.events import AuditEvent
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.alerts import AlertRules, RetryAlert

EXHAUSTED = "max_attempts_exceeded"


class AlertReport(Value):
    """The alerts of a period, and how many retry events and ended operations it has."""

    since: float
    until: float
    retries: int
    operations: int
    alerts: tuple[RetryAlert, ...]


def find_store_alerts(store: Store, since: float, until: float, rules: AlertRules) -> AlertReport:
    """Return the alerts of the runs in a log between two times."""
    check_rules(rules)
    retries: list[RetryMoment] = []
    ends: list[RetryMoment] = []
    for run in load_recorded_runs(store, RecordedRunFilter(since, until)):
        for attempt in run.attempts:
            if attempt.action in ("retry", "defer") and since <= attempt.ended <= until:
                assert attempt.situation is not None
                code = attempt.situation.failure.code
                retries.append(RetryMoment(attempt.ended, run.step, code, f"entry {attempt.seq}"))
        # A run that is still open may yet succeed.
        if not run.open and since <= run.ended_at <= until:
            is_exhausted = run.state == "HARD_FAIL" and run.reason == EXHAUSTED
            record = f"run {run.run_id}"
            ends.append(RetryMoment(run.ended_at, run.step, run.error_class, record, is_exhausted))
    return AlertReport(since, until, len(retries), len(ends), find_alerts(retries, ends, rules))


def find_audit_alerts(
    events: Sequence[AuditEvent], since: float, until: float, rules: AlertRules
) -> AlertReport:
    """Return the alerts of audit events between two times."""
    check_rules(rules)
    retries, ends = (
        [moment for moment in moments if since <= moment.at <= until] for moments in read_moments(events)
    )
    return AlertReport(since, until, len(retries), len(ends), find_alerts(retries, ends, rules))


def notify_alerts(engine: Engine, alerts: Sequence[RetryAlert]) -> int:
    """Write a notification of each alert for every sink, once per window; return how many are new."""
    from oncemore.errors import UsageError

    if engine.notifier is None:
        raise UsageError(
            "no alert can be sent: the setting notify is empty; set it in oncemore.toml or ONCEMORE_NOTIFY"
        )
    return sum(engine.notifier.write_alert(engine, alert.kind, alert._asdict()) for alert in alerts)
