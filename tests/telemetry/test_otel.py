"""Spans and metrics, as a receiver of OTLP gets them from this process and from workers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler

import oncemore
from oncemore.audit import AuditStream
from oncemore.log.entry_codec import load_head
from oncemore.policy.backoff import Schedule
from oncemore.profiles.exoarmur import RetryManager
from oncemore.steps.history import export_records
from oncemore.telemetry import enable_opentelemetry, otel, otel_spans
from oncemore.telemetry.records import list_attempt_ends
from tests.telemetry.otlp_receiver import OtlpReceiver, attributes, run_receiver
from tests.telemetry.work import QUICK, make_step
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing import FakeClock

HERE = Path(__file__).parent
ERROR = 2
PRODUCER = 4


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with run_receiver() as receiver:
        yield receiver


class Reporting:
    """OpenTelemetry of this process, reporting to a receiver."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.url}/v1/metrics"))
        self.metrics = MeterProvider([reader])
        receiver.flush = lambda: self.traces.force_flush()
        self.tracer = self.traces.get_tracer("test")
        self.export = enable_opentelemetry(tracer_provider=self.traces, meter_provider=self.metrics)

    def close(self) -> None:
        """Report all that is left."""
        self.export.disable()
        self.traces.shutdown()
        self.metrics.shutdown()


@pytest.fixture
def reporting(receiver: OtlpReceiver) -> Iterator[Reporting]:
    reporting = Reporting(receiver)
    yield reporting
    reporting.close()


def test_a_run_has_a_span_and_each_attempt_a_child(
    engine: oncemore.Engine, clock: FakeClock, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    charge = make_step(ConnectionError("refused, password=hunter2"), 7)
    with reporting.tracer.start_as_current_span("request"):
        charge(5)
    (request,), (run,) = receiver.named("request"), receiver.named("oncemore.run shop.charge")
    first, second = receiver.named("oncemore.attempt shop.charge")
    assert run.parent_span_id == request.span_id
    assert {span.trace_id for span in (request, run, first, second)} == {run.trace_id}
    assert first.parent_span_id == second.parent_span_id == run.span_id
    assert run.start_time_unix_nano <= first.start_time_unix_nano
    assert first.end_time_unix_nano <= second.start_time_unix_nano <= second.end_time_unix_nano
    assert second.end_time_unix_nano <= run.end_time_unix_nano
    stored = charge.run(5)
    assert attributes(run) == {
        "oncemore.step.name": "shop.charge",
        "oncemore.key": stored.key,
        "oncemore.run.id": stored.run_id,
        "oncemore.policy.name": stored.state.policy,
    }
    failed, usage = attributes(first), {"run_id", "attempt", "idempotency_key", "energy_kWh"}
    assert usage <= failed.keys()
    failed = {name: value for name, value in failed.items() if name not in usage}
    assert failed.pop("oncemore.attempt.delay") == pytest.approx(0.25)
    assert failed == {
        "oncemore.attempt.number": 1,
        "oncemore.attempt.limit": 3,
        "oncemore.outcome": "failed",
        "error.type": "ConnectionError",
        "oncemore.error.class": "CONNECTION_ERROR",
        "oncemore.action": "retry",
        "oncemore.reason": "retry",
    }
    assert (first.status.code, first.status.message) == (ERROR, "refused, password=***")
    (exception,) = first.events
    assert (exception.name, attributes(exception)) == (
        "exception",
        {"exception.type": "ConnectionError", "exception.message": "refused, password=***"},
    )
    # An error that was retried is not one of the run.
    assert (run.status.code, second.status.code) == (0, 0)
    own = {name: value for name, value in attributes(second).items() if name not in usage}
    assert own == {"oncemore.attempt.number": 2, "oncemore.attempt.limit": 3}
    assert ("oncemore", otel.SCHEMA_URL) in receiver.scopes


@pytest.mark.req("LIN-4")
def test_the_span_of_an_attempt_has_its_energy_carbon_and_cost(
    receiver: OtlpReceiver, reporting: Reporting
) -> None:
    signals = {"grid_intensity": 380, "energy_price": 0.25, "compute_unit_cost": 1.0}
    with oncemore.open("memory:", signals=signals) as measured:
        charge = make_step(ConnectionError("refused"), 7)
        charge(5)
        run = charge.run(5)
        records = list(list_attempt_ends(export_records(measured.store.read_entries())))
    spans, (whole,) = (
        receiver.named("oncemore.attempt shop.charge"),
        receiver.named("oncemore.run shop.charge"),
    )
    assert len(spans) == len(records) == 2
    for number, (span, record) in enumerate(zip(spans, records, strict=True), 1):
        assert span.parent_span_id == whole.span_id
        stored, shown = record["telemetry_snapshot"], attributes(span)
        assert (shown["run_id"], shown["attempt"], shown["idempotency_key"]) == (run.run_id, number, run.key)
        for name in ("energy_kWh", "carbon_kgCO2e", "cost_usd"):
            assert shown[name] == stored[name]


def test_spans_of_the_function_are_children_of_its_attempt(
    engine: oncemore.Engine, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    @oncemore.step(effect="idempotent", name="outer")
    def outer() -> Any:
        with reporting.tracer.start_as_current_span("inside"):
            return make_step(7)(1)

    outer()
    assert trace.get_current_span() is trace.INVALID_SPAN
    (inside,), (attempt,) = receiver.named("inside"), receiver.named("oncemore.attempt outer")
    (inner,) = receiver.named("oncemore.run shop.charge")
    assert (inside.parent_span_id, inner.parent_span_id) == (attempt.span_id, inside.span_id)


def test_an_async_step_has_the_same_spans(
    engine: oncemore.Engine, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    @oncemore.step(effect="idempotent", name="outer", timeout=60)
    async def outer(number: int) -> None:
        with reporting.tracer.start_as_current_span(f"inside {number}"):
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(outer(1), outer(2))

    asyncio.run(both())
    attempts = {span.span_id for span in receiver.named("oncemore.attempt outer")}
    parents = {receiver.named(f"inside {number}")[0].parent_span_id for number in (1, 2)}
    assert parents == attempts
    assert len(parents) == 2


def test_a_call_after_a_long_wait_has_a_trace_of_its_own_with_links(
    clock: FakeClock, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    policy = QUICK.replace(schedule=Schedule("fixed", delays=(600.0, 700.0)), max_delay_s=700.0)
    charge = make_step(ConnectionError("refused"), ConnectionError("refused"), 7, policy=policy)
    with oncemore.open("memory:"):
        for _ in range(2):
            with pytest.raises(oncemore.Deferred):
                charge()
            clock.advance(701)
        assert charge() == 7
    first, second, third = receiver.named("oncemore.run shop.charge")
    assert len({span.trace_id for span in (first, second, third)}) == 3
    assert link_contexts(second) == link_contexts(third)[:1] == [(first.trace_id, first.span_id)]
    assert link_contexts(third)[1:] == [(second.trace_id, second.span_id)]
    assert [attributes(span).get("oncemore.outcome") for span in (first, second, third)] == [
        *("deferred", "deferred", None)
    ]


def test_a_workflow_that_waits_ends_its_spans(
    clock: FakeClock, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    @oncemore.workflow(name="shop.order")
    def order() -> int:
        oncemore.sleep(600)
        return 7

    with oncemore.open("memory:"):
        with pytest.raises(oncemore.Deferred):
            order()
        clock.advance(601)
        assert order() == 7
    first, second = receiver.named("oncemore.run shop.order")
    assert attributes(first)["oncemore.outcome"] == "parked"
    assert link_contexts(second) == [(first.trace_id, first.span_id)]
    assert len(receiver.named("oncemore.attempt shop.order")) == 2


def test_a_failed_run_has_the_error(
    engine: oncemore.Engine, clock: FakeClock, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    with pytest.raises(oncemore.StepFailed):
        make_step(ConnectionError("refused"))()
    (run,) = receiver.named("oncemore.run shop.charge")
    assert (run.status.code, run.status.message) == (ERROR, "refused")
    shown = attributes(run)
    assert (shown["error.type"], shown["oncemore.outcome"]) == ("ConnectionError", "failed")
    assert shown["oncemore.reason"] == "max_attempts_exceeded"
    assert len(receiver.named("oncemore.attempt shop.charge")) == 3


def test_what_became_of_a_run_is_its_outcome(
    engine: oncemore.Engine, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    def outcome(span: str = "oncemore.run shop.charge") -> Any:
        (found,) = receiver.named(span)
        receiver.spans.clear()
        return attributes(found).get("oncemore.outcome")

    with pytest.raises(oncemore.OutcomeUnknown):
        make_step(ConnectionError("cut off"), effect="once")(1)
    assert outcome() == "held"
    with pytest.raises(KeyboardInterrupt):
        make_step(KeyboardInterrupt())(2)
    assert outcome() == "interrupted"
    make_step(7).submit(3)
    (submitted,) = receiver.named("oncemore.submit shop.charge")
    assert submitted.kind == PRODUCER
    assert outcome("oncemore.submit shop.charge") == "submitted"
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=600)
    with pytest.raises(oncemore.Deferred):
        make_step(ConnectionError("down"), provider="bank", breaker=breaker)(4)
    assert outcome() == "deferred"
    with pytest.raises(oncemore.Deferred):
        make_step(7, provider="bank", breaker=breaker)(5)
    assert outcome() == "deferred"


def test_a_rerun_is_linked_to_the_decision_and_not_to_the_failed_run(
    engine: oncemore.Engine, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    charge = make_step(ValueError("wrong"), 7)
    with pytest.raises(oncemore.StepFailed):
        charge()
    assert charge.rerun(reason="corrected") == 7
    _, decision, again = receiver.named("oncemore.run shop.charge")
    assert attributes(decision)["oncemore.outcome"] == "submitted"
    assert [link.span_id for link in again.links] == [decision.span_id]


def test_an_attempt_whose_outcome_was_not_stored_says_so(
    tmp_path: Path, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:

        @oncemore.step(effect="idempotent", name="shop.charge")
        def charge() -> int:
            engine.store.close()
            return 7

        with pytest.raises(oncemore.Error):
            charge()
    (run,), (attempt,) = (
        receiver.named("oncemore.run shop.charge"),
        receiver.named("oncemore.attempt shop.charge"),
    )
    assert attributes(run)["oncemore.outcome"] == attributes(attempt)["oncemore.outcome"] == "unrecorded"


def test_a_claim_that_was_refused_leaves_a_deferred_span(
    engine: oncemore.Engine, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    """A breaker that is open already defers the run after the worker was reserved."""
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=600)
    options = {"provider": "bank", "breaker": breaker, "policy": QUICK}
    for order in (1, 2):
        with pytest.raises(oncemore.Deferred):
            make_step(ConnectionError("down"), **options)(order)
    first, second = receiver.named("oncemore.run shop.charge")
    assert attributes(second)["oncemore.reason"] == "circuit_open"
    assert len(receiver.named("oncemore.attempt shop.charge")) == 1
    assert first.trace_id != second.trace_id


@pytest.mark.req("AUDIT-13")
def test_a_token_and_a_coordinate_are_masked_in_audit_log_and_telemetry(
    engine: oncemore.Engine,
    clock: FakeClock,
    receiver: OtlpReceiver,
    reporting: Reporting,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work(order: int = 1) -> None:
        raise ConnectionError("token=abcdef1234567890 refused at 38.97172, -95.23525")

    audit = AuditStream()
    with pytest.raises(ConnectionError):
        oncemore.retrying(work, on=ConnectionError, on_event=audit)()
    charge = oncemore.step(effect="idempotent", name="shop.charge", policy=QUICK)(work)
    with caplog.at_level("DEBUG", "oncemore"), pytest.raises(oncemore.StepFailed):
        charge()
    logged = [str(vars(record)) for record in caplog.records if record.name == "oncemore.steps"]
    stored = [str(attempt) for attempt in charge.run().attempts]
    receiver.flush()
    places = {
        "audit": [event.to_json() for event in audit],
        "log": logged,
        "telemetry": [str(span) for span in receiver.spans],
        "store": stored,
    }
    for place, texts in places.items():
        assert "refused at" in str(texts), place
        for secret in ("abcdef1234567890", "38.97172", "95.23525"):
            assert secret not in str(texts), place


@pytest.mark.req("LIN-9")
def test_the_trace_of_audit_events_is_found_at_the_receiver(
    engine: oncemore.Engine, clock: FakeClock, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    stream = AuditStream()
    manager = RetryManager()
    manager.add_sink(stream)

    async def operate(key: str | None) -> None:
        errors = [ConnectionError("refused")]

        async def work() -> int:
            if errors:
                raise errors.pop()
            return 7

        category = "RETRY_KV_GET" if key is None else "RETRY_KV_PUT"
        await manager.execute_with_retry(category, "store", work, idempotency_key=key)

    def call() -> None:
        raise ConnectionError("refused")

    with reporting.tracer.start_as_current_span("request"):
        for key in (None, "order-1"):
            asyncio.run(operate(key))
        with pytest.raises(ConnectionError):
            oncemore.retrying(call, on=ConnectionError, on_event=stream)()
        make_step(7)(5)
    events = [*stream]
    (request,), (run,) = receiver.named("request"), receiver.named("oncemore.run shop.charge")
    assert {event.event_type for event in events} >= {"retry_attempt", "retry_succeeded", "retry_exhausted"}
    assert {event.trace_id for event in events} == {request.trace_id.hex()} == {run.trace_id.hex()}
    # A caller's own id is kept, and no event names a trace outside a span or without OpenTelemetry.
    with reporting.tracer.start_as_current_span("request"), oncemore.context(trace_id="own"):
        asyncio.run(operate(None))
    asyncio.run(operate(None))
    reporting.export.disable()
    with reporting.tracer.start_as_current_span("request"):
        asyncio.run(operate(None))
    later = [event.trace_id for event in stream][len(events) :]
    assert later == ["own", "own", None, None, None, None]


# Metrics --------------------------------------------------------------------------------------------


def test_metrics_of_runs_attempts_waits_and_breakers(
    engine: oncemore.Engine, clock: FakeClock, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    for order in range(30):
        make_step(7)(order)
    make_step(ConnectionError("refused"), 7)(100)
    with pytest.raises(oncemore.StepFailed):
        make_step(ValueError("wrong"))(101)
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=600)
    with pytest.raises(oncemore.Deferred):
        make_step(ConnectionError("down"), provider="bank", breaker=breaker)(102)
    with pytest.raises(OSError, match="down"):
        oncemore.retrying(make_step(OSError("down")).__wrapped__, on=OSError, attempts=2, name="fetch")()
    reporting.metrics.force_flush()
    counts = {labels: point.as_int for labels, point in receiver.points("oncemore.attempts").items()}
    assert counts == {
        ("completed", "shop.charge"): 31,
        ("CONNECTION_ERROR", "failed", "shop.charge"): 2,
        ("EXC_ValueError", "failed", "shop.charge"): 1,
    }
    runs = {labels: point.as_int for labels, point in receiver.points("oncemore.runs").items()}
    assert runs == {("completed", "shop.charge"): 31, ("EXC_ValueError", "failed", "shop.charge"): 1}
    durations = receiver.points("oncemore.run.duration")[("completed", "shop.charge")]
    assert durations.count == 31
    assert 3600 in durations.explicit_bounds
    waits = receiver.points("oncemore.wait.duration")
    assert {labels: point.count for labels, point in waits.items()} == {
        ("retry", "shop.charge"): 1,
        ("circuit_open", "shop.charge"): 1,
        ("retry", "fetch"): 1,
    }
    failures = receiver.points("oncemore.retry.failures")
    assert {labels[1:]: point.as_int for labels, point in failures.items()} == {
        ("retry", "fetch"): 1,
        ("stop", "fetch"): 1,
    }
    states = {labels: point.as_int for labels, point in receiver.points("oncemore.breaker.state").items()}
    assert states == {("closed", "bank"): 0, ("open", "bank"): 1, ("half_open", "bank"): 0}
    units = {metric.name: metric.unit for metric in receiver.metrics}
    assert (units["oncemore.attempts"], units["oncemore.run.duration"]) == ("{attempt}", "s")


# Processes ------------------------------------------------------------------------------------------


def start_worker(folder: Path, store: str, receiver: OtlpReceiver, *options: str) -> subprocess.Popen[str]:
    shutil.copy(HERE / "watched.py", folder / "watched.py")
    environment = {**os.environ, "ONCEMORE_STORE": store, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    command = [sys.executable, "-m", "oncemore", "worker", "watched", *options]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def link_contexts(span: Any) -> list[tuple[bytes, bytes]]:
    return [(link.trace_id, link.span_id) for link in span.links]


def test_a_worker_links_its_spans_to_the_submission_and_to_a_killed_worker(
    tmp_path: Path, receiver: OtlpReceiver, reporting: Reporting
) -> None:
    from tests.telemetry.watched import doomed, flaky, slow

    store = f"sqlite:///{tmp_path / 'log.db'}"
    with oncemore.open(store) as engine:
        with reporting.tracer.start_as_current_span("request"):
            slow.submit(1)
        worker = start_worker(tmp_path, store, receiver)
        try:
            wait_until(lambda: (tmp_path / "began").exists() or worker.poll() is not None)
            assert worker.poll() is None, worker.communicate()
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
        killed = load_head(engine.store, f"run/{slow.key(1)}", None).record
        flaky.submit(2)
        doomed.submit(3)
        worker = start_worker(tmp_path, store, receiver, "--drain")
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
    (request,), (submit,) = receiver.named("request"), receiver.named("oncemore.submit watched.slow")
    assert submit.parent_span_id == request.span_id
    # The killed worker could not report its span, but its context is in the log.
    (run,) = receiver.named("oncemore.run watched.slow")
    lost = otel_spans.parse_traceparent(killed.last_traceparent)
    assert lost is not None
    assert link_contexts(run) == [
        (submit.trace_id, submit.span_id),
        (lost.trace_id.to_bytes(16, "big"), lost.span_id.to_bytes(8, "big")),
    ]
    assert (run.trace_id, run.parent_span_id) != (submit.trace_id, submit.span_id)
    (attempt,) = receiver.named("oncemore.attempt watched.slow")
    assert attempt.parent_span_id == run.span_id
    check_retry_and_failure(receiver)


def check_retry_and_failure(receiver: OtlpReceiver) -> None:
    """Check the runs that a worker retried: a wait ends its span, and the next one is linked to it."""
    (submit,) = receiver.named("oncemore.submit watched.flaky")
    # The wait may be over when its end is read: the worker then goes on in the same span.
    first, *later = receiver.named("oncemore.run watched.flaky")
    assert link_contexts(first) == [(submit.trace_id, submit.span_id)]
    if later:
        assert attributes(first)["oncemore.outcome"] == "deferred"
        assert link_contexts(later[0]) == [*link_contexts(first), (first.trace_id, first.span_id)]
    assert {span.status.code for span in (first, *later)} == {0}
    last = receiver.named("oncemore.run watched.doomed")[-1]
    assert (last.status.code, attributes(last)["oncemore.outcome"]) == (ERROR, "failed")
    assert "hunter2" not in str(receiver.spans)
    attempts = {labels: point.as_int for labels, point in receiver.points("oncemore.attempts").items()}
    assert attempts[("CONNECTION_ERROR", "failed", "watched.doomed")] == 2
    assert attempts[("completed", "watched.slow")] == 1
    assert attempts[("lost", "watched.slow")] == 1


# Off, on, and broken --------------------------------------------------------------------------------


def test_without_tracing_nothing_is_stored(engine: oncemore.Engine) -> None:
    charge = make_step(7)
    charge()
    assert (charge.run().state.traceparent, charge.run().state.last_traceparent) == ("", "")


def test_a_second_export_replaces_the_first(engine: oncemore.Engine, receiver: OtlpReceiver) -> None:
    first = Reporting(receiver)
    second = Reporting(receiver)
    make_step(7)()
    first.close()
    second.close()
    assert len(receiver.named("oncemore.run shop.charge")) == 1
    assert {point.as_int for point in receiver.points("oncemore.runs").values()} == {1}


def test_without_an_sdk_it_costs_nothing_but_itself(engine: oncemore.Engine) -> None:
    export = enable_opentelemetry()
    try:
        charge = make_step(7)
        assert charge() == 7
        assert charge.run().state.traceparent == ""
    finally:
        export.disable()
        export.disable()


class BrokenSampler(Sampler):
    """A sampler that fails for spans of some name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def should_sample(self, context: Any, trace_id: int, name: str, *values: Any, **named: Any) -> Any:
        if name.startswith(self.name):
            raise ZeroDivisionError("a bug")
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        return ALWAYS_ON.should_sample(context, trace_id, name, *values, **named)

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("name", ["oncemore.run", "oncemore.attempt"])
def test_an_sdk_that_fails_disturbs_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    export = enable_opentelemetry(tracer_provider=TracerProvider(sampler=BrokenSampler(name)))
    try:
        with oncemore.open("memory:"):
            assert make_step(7)(1) == 7
            with pytest.raises(oncemore.StepFailed):
                make_step(ValueError("wrong"))(2)
    finally:
        export.disable()
    lines = [record.getMessage() for record in caplog.records if "span" in record.getMessage()]
    assert lines == [
        "oncemore: a span or a metric could not be reported: ZeroDivisionError; further errors are not logged"
    ]


@pytest.mark.parametrize(
    "text",
    ["", "00", "00-1-2-3", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'x' * 32}-{'1' * 16}-01", "0-1-2-3"],
)
def test_a_text_that_is_not_a_trace_context_gives_no_link(text: str) -> None:
    assert otel_spans.parse_traceparent(text) is None


def test_a_trace_context_is_written_and_read() -> None:
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    context = otel_spans.parse_traceparent(text)
    assert context is not None
    assert (context.is_remote, otel_spans.format_traceparent(context)) == (True, text)


def test_a_missing_package_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None; sys.modules['prometheus_client'] = None\n"
        "import oncemore\n"
        "from oncemore import telemetry\n"
        "for name in telemetry.__all__:\n"
        "    try: getattr(telemetry, name)()\n"
        "    except oncemore.MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "enable_opentelemetry() needs opentelemetry-api: pip install 'oncemore[otel]'",
        "enable_prometheus() needs prometheus-client: pip install 'oncemore[prometheus]'",
        "make_metrics_app() needs prometheus-client: pip install 'oncemore[prometheus]'",
    ]
