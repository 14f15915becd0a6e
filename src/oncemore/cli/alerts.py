"""`oncemore report alerts`: report a high rate of retries and elevated exhaustion."""

from __future__ import annotations

import time

import click

from oncemore.cli.commands import (
    FiniteNumber,
    WholeNumber,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
)
from oncemore.cli.output import OutputWriter
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    from oncemore.queries.alerts import AlertReport
    from oncemore.telemetry.alerts import AlertRules, RetryAlert

EXAMPLES = """
oncemore report alerts
oncemore report alerts --since 1d --retries 50
oncemore report alerts --watch --notify
oncemore report alerts --audit audit.jsonl --since 1h
"""


@documented_command("alerts", EXAMPLES, {"Thresholds": "retries exhausted window operations"})
@value_option("--since", "TIME", "Begin of the period (15m).", default="15m")
@value_option("--until", "TIME", "End of the period; default: now.")
@value_option("--retries", "N", "Retry events within a minute that are still fine (20).",
              type=FiniteNumber(0.0), default=20.0)  # fmt: skip
@value_option("--exhausted", "SHARE", "Share of exhausted operations that is still fine (0.05).",
              type=click.FloatRange(0.0, 1.0, max_open=True), default=0.05)  # fmt: skip
@value_option("--window", "TIME", "Length of the window of that share (15m).", type=DURATION, default=900.0)
@value_option("--operations", "N", "Fewest operations for a share (5).", type=WholeNumber(1), default=5)
@value_option("--audit", "FILE", "Read audit events from a file instead of a store.",
              type=click.File(encoding="utf-8"))  # fmt: skip
@flag_option("--watch", "Check again and again, until Ctrl-C; print each alert once.")
@value_option("--every", "TIME", "With --watch: time between two checks (10s).", type=DURATION, default=10.0)
@flag_option("--notify", "Send alerts to the sinks of the setting notify.")
@store_option
@json_option
def alerts(store: str | None, in_json: bool, audit: IO[str] | None, watch: bool, every: float, notify: bool,
           **options: Any) -> int:  # fmt: skip
    """Report high rates of retries and of exhausted attempts.

    An alert of exhausted attempts names the likely causes.

    One alert for each episode. Exit code 1 if there is one. With --watch the period moves with the time, and
    an alert is printed when its episode begins.
    """
    from oncemore.telemetry.alerts import AlertRules

    # A file of events has no settings, so that there are no sinks to notify.
    if audit is not None and (notify or store or watch):
        raise click.UsageError(
            "--audit reads a file; leave out --store, --notify and --watch.", click.get_current_context()
        )
    if watch and options["until"]:
        raise click.UsageError("--watch has no end; leave out --until.", click.get_current_context())
    # The names of the options are short; the order is that of the rules.
    rules = AlertRules(options["retries"], options["exhausted"], options["window"], options["operations"])
    out = OutputWriter(in_json=in_json)
    if watch:
        return _watch_alerts(out, lambda: _find_alerts(store, audit, options, rules, notify), every)
    report = _find_alerts(store, audit, options, rules, notify)
    if in_json:
        out.write_json(report)
    else:
        _print_report(out, report)
    # For scripts: `oncemore report alerts || page-the-operator`.
    return 1 if report.alerts else 0


def _find_alerts(
    store: str | None, audit: IO[str] | None, options: dict[str, Any], rules: AlertRules, notify: bool
) -> AlertReport:
    from oncemore.queries import alerts
    from oncemore.queries.stores import open_existing, open_read_only
    from oncemore.queries.times import parse_instant

    # `now` is that of the store, whose clock all of its entries have.
    def find_period(now: float) -> tuple[float, float]:
        until = now if options["until"] is None else parse_instant(options["until"], now)
        return parse_instant(options["since"], now), until

    if audit is not None:
        from oncemore.queries.audit import AuditTrail, EventFilter, load_stream

        events = list(load_stream(AuditTrail(audit, audit.name, EventFilter())))
        return alerts.find_audit_alerts(events, *find_period(time.time()), rules)
    with open_read_only(store) as opened:
        report = alerts.find_store_alerts(opened, *find_period(opened.now()), rules)
    if notify and report.alerts:
        # Opened for writing only if there is something to send; closing it waits for the delivery.
        with open_existing(store) as engine:
            alerts.notify_alerts(engine, report.alerts)
    return report


def _watch_alerts(out: OutputWriter, find: Callable[[], AlertReport], every: float) -> int:
    """Print each alert when its episode begins; end with Ctrl-C or when the reader is gone."""
    active: set[str] = set()
    while not out.is_reader_gone:
        current: dict[str, RetryAlert] = {}
        for alert in find().alerts:
            # The last episode of a kind is the one that may still last.
            current[alert.kind] = alert
        for kind, alert in current.items():
            if kind not in active:
                _write_alert(out, alert)
        # An episode that has ended may begin again, and is printed then.
        active = set(current)
        time.sleep(every)
    return 0


def _write_alert(out: OutputWriter, alert: RetryAlert) -> None:
    if out.in_json:
        out.write_json_line(alert)
        return
    from oncemore.queries.times import format_time

    out.write_paragraph(f"{format_time(alert.began)}  {alert.text}", "red")
    # Some of the records, as the next place to look.
    steps = ", ".join(alert.operations)
    out.write_paragraph(f"{steps}; see {', '.join(alert.records)}", "dim", "  ")


def _print_report(out: OutputWriter, report: AlertReport) -> None:
    # The alerts first, and the counts behind them as the last line.
    for alert in report.alerts:
        _write_alert(out, alert)
    counts = f"{report.retries:,} retry events, {report.operations:,} ended operations"
    if not report.alerts:
        out.write_line(f"no alert: {counts}", "green")
    else:
        out.write_line(f"{len(report.alerts)} {'alert' if len(report.alerts) == 1 else 'alerts'}: {counts}")
