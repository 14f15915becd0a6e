"""Metrics of OpenTelemetry are updated by the queue of reports: none is lost or counted twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import oncemore
from oncemore.log.entry_codec import load_head
from oncemore.telemetry import enable_opentelemetry
from oncemore.telemetry.metrics import ATTEMPT_DURATION, RUNS
from oncemore.telemetry.otel_metrics import OpenTelemetryBackend

if TYPE_CHECKING:
    import pytest


def read_points(reader: InMemoryMetricReader, name: str) -> list[Any]:
    """Return the data points of a metric."""
    data = reader.get_metrics_data()
    scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
    return [
        point
        for scope in scopes
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def test_a_reader_gets_every_update_of_every_thread(engine: oncemore.Engine) -> None:
    reader = InMemoryMetricReader()
    step = oncemore.step(effect="idempotent", name="work")(lambda n: n).bind(engine)
    with_metrics = enable_opentelemetry(
        tracer_provider=trace.NoOpTracerProvider(), meter_provider=MeterProvider([reader])
    )
    try:
        threads = [
            threading.Thread(target=lambda first=first: [step(first + n) for n in range(25)])
            for first in (0, 100, 200, 300)
        ]
        for thread in threads:
            thread.start()
        # Reading while they work takes updates from the thread that applies them, and must lose none.
        while any(thread.is_alive() for thread in threads):
            read_points(reader, RUNS.name)
        (runs,) = read_points(reader, RUNS.name)
        (durations,) = read_points(reader, ATTEMPT_DURATION.name)
        assert (runs.value, durations.count) == (100, 100)
    finally:
        with_metrics.disable()


def test_a_failing_instrument_does_not_end_the_work(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    export = enable_opentelemetry(
        tracer_provider=trace.NoOpTracerProvider(), meter_provider=MeterProvider([InMemoryMetricReader()])
    )

    def fail(*values: object) -> None:
        raise ConnectionError("no")

    monkeypatch.setattr(OpenTelemetryBackend, "record_seconds", fail)
    step = oncemore.step(effect="idempotent", name="work")(lambda n: n).bind(engine)
    try:
        assert [step(n) for n in range(3)] == [0, 1, 2]
    finally:
        export.disable()
    lines = [record.getMessage() for record in caplog.records if "reported" in record.getMessage()]
    assert lines == [
        "oncemore: a span or a metric could not be reported: ConnectionError; further errors are not logged"
    ]


def test_a_dropped_trace_has_one_span_for_run_and_attempt(engine: oncemore.Engine) -> None:
    started: list[str] = []

    class CountingSampler(type(ALWAYS_OFF)):  # type: ignore[misc]
        def should_sample(self, context: Any, trace_id: int, name: str, *values: Any, **named: Any) -> Any:
            started.append(name)
            return super().should_sample(context, trace_id, name, *values, **named)

    exporter, contexts = InMemorySpanExporter(), []
    provider = TracerProvider(sampler=CountingSampler(ALWAYS_OFF._decision))
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @oncemore.step(effect="idempotent", name="work")
    def work(n: int) -> int:
        contexts.append(trace.get_current_span().get_span_context())
        return n

    export = enable_opentelemetry(tracer_provider=provider, meter_provider=MeterProvider())
    try:
        run = work.bind(engine).run(1)
    finally:
        export.disable()
    assert (started, exporter.get_finished_spans()) == (["oncemore.run work"], ())
    # The function still has the trace: spans of its own, and of services that it calls, follow the decision.
    record = load_head(engine.store, f"run/{run.key}").record
    assert (
        record.traceparent
        == f"00-{contexts[0].trace_id:032x}-{contexts[0].span_id:016x}-{contexts[0].trace_flags:02x}"
    )
    assert not contexts[0].trace_flags.sampled
