"""Reports of runs for monitoring systems: OpenTelemetry, Prometheus and Sentry.

    events of the process ──► MetricSource ──► Prometheus metrics
                          ──► SentryReport ──► breadcrumbs and failed runs in Sentry
    calls of steps        ──► ReportQueue  ──► CallSpans, MetricSource ──► OpenTelemetry spans and metrics

All are off until they are enabled, and their packages are extras. The events themselves, without any of it,
are `oncemore.on_event` and the logger `oncemore.steps`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from oncemore.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from oncemore.telemetry.metrics import MetricSource
    from oncemore.telemetry.otel import OpenTelemetryExport
    from oncemore.telemetry.sentry import SentryReport

    AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

__all__ = [
    "JsonLogFormatter",
    "enable_opentelemetry",
    "enable_prometheus",
    "enable_sentry",
    "make_metrics_app",
]

#: The attributes that every log record has; the remaining ones are fields that the caller has added.
_PLAIN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLogFormatter(logging.Formatter):
    """Formats each log record as one JSON object on one line, with all fields that the record carries.

    The fields are `at` (POSIX seconds), `level`, `logger`, `message`, `traceback`
    if there is one, and the extra fields of the record without the prefix `oncemore_`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            # A field of the caller must not hide the level or the text of the line.
            if name not in _PLAIN_ATTRIBUTES:
                line.setdefault(name.removeprefix("oncemore_"), value)
        # Any other object as its text: a value of the caller must not cost the line.
        return json.dumps(line, default=str, skipkeys=True)


def enable_opentelemetry(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> OpenTelemetryExport:
    """Report spans of runs and attempts, and metrics, through OpenTelemetry; the extra is `otel`.

    tracer_provider, meter_provider  by default the global ones, which the OpenTelemetry SDK sets; without an
                                     SDK nothing is reported

    A second call replaces the first. Return the export: `disable()` ends it.
    """
    try:
        from oncemore.telemetry import otel
    except ImportError as missing:
        raise MissingExtra(
            "enable_opentelemetry() needs opentelemetry-api: pip install 'oncemore[otel]'"
        ) from missing
    return otel.enable_export(tracer_provider, meter_provider)


def enable_prometheus(registry: CollectorRegistry | None = None) -> MetricSource:
    """Count runs, attempts, waits and breaker states in a Prometheus registry; the extra is `prometheus`.

    registry  by default the global one of `prometheus_client`

    A second call with the same registry returns the same source. `disable()` ends it and removes the metrics
    from the registry.
    """
    source: MetricSource = _import_prometheus("enable_prometheus()").enable_registry(registry)
    return source


def enable_sentry() -> SentryReport:
    """Report to Sentry: a breadcrumb per attempt and wait, an event per failed or held run; extra `sentry`.

    Call it after `sentry_sdk.init()`. Exceptions that are retried are not sent, and the error of a failed run
    that nothing catches is not sent a second time. Return the report: `disable()` ends it.
    """
    try:
        from oncemore.telemetry import sentry
    except ImportError as missing:
        raise MissingExtra("enable_sentry() needs sentry-sdk: pip install 'oncemore[sentry]'") from missing
    return sentry.enable_report()


def make_metrics_app(registry: CollectorRegistry | None = None) -> AsgiApp:
    """Return an ASGI application that serves the metrics; it calls `enable_prometheus` with the registry.

    Mount it in an application, for example `Mount("/metrics", make_metrics_app())` in Starlette.
    """
    app: AsgiApp = _import_prometheus("make_metrics_app()").make_app(registry)
    return app


def _import_prometheus(needed_by: str) -> Any:
    try:
        from oncemore.telemetry import prometheus
    except ImportError as missing:
        raise MissingExtra(
            f"{needed_by} needs prometheus-client: pip install 'oncemore[prometheus]'"
        ) from missing
    return prometheus
