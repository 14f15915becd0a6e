"""Reports of runs for monitoring systems: OpenTelemetry, Prometheus and Sentry.

    events of the process ──► MetricSource ──► Prometheus metrics
                          ──► SentryReport ──► breadcrumbs and failed runs in Sentry
    calls of steps        ──► ReportQueue  ──► CallSpans, MetricSource ──► OpenTelemetry spans and metrics

All are off until they are enabled, and their packages are extras. The events themselves, without any of it,
are `oncemore.on_event` and the logger `oncemore.steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from oncemore.telemetry.json_log import JsonLogFormatter
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


def __getattr__(name: str) -> Any:
    # Imported at first use: every store loads this package, and few programs format logs.
    if name == "JsonLogFormatter":
        from oncemore.telemetry.json_log import JsonLogFormatter

        return JsonLogFormatter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
