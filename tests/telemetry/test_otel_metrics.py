"""Metrics of OpenTelemetry are updated beside the steps: none is lost, counted twice, or in the way."""

from __future__ import annotations

import os
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
from oncemore.telemetry import enable_opentelemetry, otel_metrics
from oncemore.telemetry.metrics import ATTEMPT_DURATION, RUNS
from oncemore.telemetry.otel_metrics import BATCH_SIZE, OpenTelemetryBackend
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LABELS = ("work", "completed")


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


def make_backend() -> tuple[OpenTelemetryBackend, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    return OpenTelemetryBackend(MeterProvider([reader])), reader


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


def test_a_thread_applies_updates_without_a_reader() -> None:
    backend, reader = make_backend()
    for _ in range(BATCH_SIZE):
        backend.record_seconds(ATTEMPT_DURATION, LABELS, 0.5)
    wait_until(lambda: not backend._updates)
    backend.close()
    assert [point.count for point in read_points(reader, ATTEMPT_DURATION.name)] == [BATCH_SIZE]
    thread = backend._thread
    assert thread is not None
    wait_until(lambda: not thread.is_alive())


def test_updates_that_nothing_takes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, reader = make_backend()
    monkeypatch.setattr(otel_metrics, "MAX_UPDATES", BATCH_SIZE)
    for _ in range(BATCH_SIZE):
        backend.add_count(RUNS, (*LABELS, ""))
    # The step that reached the limit has applied them itself, and needed no thread.
    assert (len(backend._updates), backend._thread) == (0, None)
    assert [point.value for point in read_points(reader, RUNS.name)] == [BATCH_SIZE]


def test_an_error_of_the_sdk_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, _ = make_backend()
    apply_updates = backend.apply_updates
    failures = [ConnectionError("no")]

    def fail_once() -> None:
        apply_updates()
        if failures:
            raise failures.pop()

    monkeypatch.setattr(backend, "apply_updates", fail_once)
    for _ in range(2):
        for _ in range(BATCH_SIZE):
            backend.add_count(RUNS, (*LABELS, ""))
        wait_until(lambda: not backend._updates)
    wait_until(lambda: "metrics could not be updated: ConnectionError" in caplog.text)
    backend.close()


def in_child(check: Callable[[], bool]) -> int:
    """Return the exit code of a forked child: 0 if the check holds there."""
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_its_own_lock_and_leaves_the_parents_updates() -> None:
    backend, reader = make_backend()
    backend.add_count(RUNS, (*LABELS, ""))

    def counts_its_own() -> bool:
        free = backend._applying.acquire(timeout=5)
        backend._applying.release()
        backend.add_count(RUNS, (*LABELS, ""))
        backend.apply_updates()
        return free and not backend._updates

    with backend._applying:
        assert in_child(counts_its_own) == 0
    assert [point.value for point in read_points(reader, RUNS.name)] == [1]


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
