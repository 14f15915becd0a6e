"""The steps of a worker that reports through OpenTelemetry; tests start it with a copy of this file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.telemetry import enable_opentelemetry

if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
    enable_opentelemetry()

QUICK = Policy("quick", max_attempts=2, schedule=Schedule("fixed", delays=(0.01,)), jitter=Jitter("none"))


@oncemore.step(effect="idempotent", name="watched.flaky", policy=QUICK)
def flaky(order: int) -> int:
    """Fail at the first attempt."""
    if oncemore.current().number == 1:
        raise ConnectionError("refused, password=hunter2")
    return order


@oncemore.step(effect="idempotent", name="watched.doomed", policy=QUICK)
def doomed(order: int) -> int:
    """Fail always."""
    raise ConnectionError("refused")


@oncemore.step(effect="idempotent", name="watched.slow", policy=QUICK)
def slow(order: int) -> int:
    """Begin and take for ever at the first attempt."""
    if oncemore.current().number == 1:
        Path("began").touch()
        time.sleep(600)
    return order
