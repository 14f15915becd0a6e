"""Spans that are reported after the step: the function and the provider see them as if they were at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags

import oncemore
from oncemore.telemetry import enable_opentelemetry, report_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan


class Tracing:
    """An SDK that keeps its spans in memory, and the export of this process to it."""

    def __init__(self, *, batches: bool = False) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        processor = BatchSpanProcessor if batches else SimpleSpanProcessor
        self.provider.add_span_processor(processor(self.kept))
        self.tracer = self.provider.get_tracer("test")
        self.export = enable_opentelemetry(tracer_provider=self.provider, meter_provider=MeterProvider())

    def spans(self) -> dict[str, ReadableSpan]:
        """Return the spans that have ended, by name."""
        self.provider.force_flush()
        return {span.name: span for span in self.kept.get_finished_spans()}


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    tracing = Tracing()
    yield tracing
    tracing.export.disable()


@pytest.fixture
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a flush makes reports in this test."""
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 600.0)


def call_step(function: Callable[[], object], **options: Any) -> Any:
    return oncemore.step(effect="idempotent", name="work", **options)(function)()


def parent_id(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


# The function and its attempt's span ----------------------------------------------------------------


@pytest.mark.usefixtures("_no_thread", "engine")
def test_a_function_that_does_not_look_at_its_span_starts_none(tracing: Tracing) -> None:
    started: list[str] = []

    class Watching(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            started.append(span.name)

    tracing.provider.add_span_processor(Watching())
    call_step(lambda: None)
    assert started == ["oncemore.run work"]
    assert tracing.spans().keys() == {"oncemore.run work", "oncemore.attempt work"}
    assert started == ["oncemore.run work", "oncemore.attempt work"]


@pytest.mark.usefixtures("_no_thread", "engine")
def test_times_are_those_of_the_attempt_and_not_of_the_report(tracing: Tracing) -> None:
    inside: list[int] = []
    call_step(lambda: inside.append(time.time_ns()))
    after = time.time_ns()
    spans = tracing.spans()
    run, attempt = spans["oncemore.run work"], spans["oncemore.attempt work"]
    times = [run.start_time, attempt.start_time, inside[0], attempt.end_time, run.end_time, after]
    assert times == sorted(times)  # type: ignore[type-var]


@pytest.mark.usefixtures("_no_thread", "engine")
def test_a_function_may_write_to_its_span(tracing: Tracing) -> None:
    other = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))

    def work() -> None:
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("shop.order", 7)
        span.set_attributes({"shop.lines": 2})
        span.add_event("reserved", {"lines": 2})
        span.add_link(other)
        span.record_exception(ValueError("ignored"))
        span.set_status(StatusCode.OK)
        span.update_name("reserve")

    call_step(work)
    attempt = tracing.spans()["reserve"]
    assert attempt.attributes is not None
    assert (attempt.attributes["shop.order"], attempt.attributes["shop.lines"]) == (7, 2)
    assert attempt.attributes["oncemore.attempt.number"] == 1
    assert [event.name for event in attempt.events] == ["reserved", "exception"]
    assert [link.context for link in attempt.links] == [other]
    assert attempt.status.status_code is StatusCode.OK


@pytest.mark.usefixtures("_no_thread", "engine")
def test_a_request_of_the_function_carries_the_context_of_the_attempt(tracing: Tracing) -> None:
    headers: dict[str, str] = {}
    call_step(lambda: propagate.inject(headers))
    attempt = tracing.spans()["oncemore.attempt work"]
    assert headers["traceparent"].split("-")[2] == f"{attempt.context.span_id:016x}"


@pytest.mark.usefixtures("_no_thread", "engine")
def test_threads_of_a_function_share_one_span(tracing: Tracing) -> None:
    class SlowStart(SpanProcessor):
        """A processor that lets the other threads ask for the span while it is started."""

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if span.name == "oncemore.attempt work":
                threading.Event().wait(0.05)

    tracing.provider.add_span_processor(SlowStart())

    def work() -> None:
        here = context.get_current()

        def child(number: int) -> None:
            together.wait()
            tracing.tracer.start_span(f"child {number}", here).end()

        together = threading.Barrier(8)
        threads = [threading.Thread(target=child, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    call_step(work)
    spans = tracing.spans()
    attempt = spans["oncemore.attempt work"].context.span_id
    assert {parent_id(spans[f"child {number}"]) for number in range(8)} == {attempt}
    assert sum(span.name == "oncemore.attempt work" for span in tracing.kept.get_finished_spans()) == 1


@pytest.mark.usefixtures("_no_thread", "engine")
def test_attempts_of_tasks_have_their_own_spans(tracing: Tracing) -> None:
    @oncemore.step(effect="idempotent", name="work")
    async def work(number: int) -> None:
        await asyncio.sleep(0)
        tracing.tracer.start_span(f"child {number}").end()

    async def both() -> None:
        await asyncio.gather(work(1), work(2))

    asyncio.run(both())
    spans = tracing.spans()
    attempts = {
        span.context.span_id
        for span in tracing.kept.get_finished_spans()
        if span.name == "oncemore.attempt work"
    }
    assert {parent_id(spans["child 1"]), parent_id(spans["child 2"])} == attempts
    assert len(attempts) == 2


@pytest.mark.usefixtures("_no_thread", "engine")
def test_what_a_function_leaves_behind_cannot_write_to_the_ended_attempt(tracing: Tracing) -> None:
    left: list[Any] = []
    call_step(lambda: left.append(trace.get_current_span()))
    (span,) = left
    assert not span.is_recording()
    for write in (
        lambda: span.set_attribute("late", 1),
        lambda: span.set_attributes({"late": 1}),
        lambda: span.add_event("late"),
        lambda: span.add_link(SpanContext(1, 2, is_remote=True)),
        lambda: span.update_name("late"),
        lambda: span.set_status(StatusCode.ERROR),
        lambda: span.record_exception(ValueError()),
    ):
        write()
    attempt = tracing.spans()["oncemore.attempt work"]
    assert attempt.attributes is not None
    assert "late" not in attempt.attributes
    assert (attempt.events, attempt.links, attempt.status.status_code) == ((), (), StatusCode.UNSET)
    # Its context is still that of the attempt: a span that begins after it is a child of it.
    assert span.get_span_context().span_id == attempt.context.span_id


@pytest.mark.usefixtures("_no_thread", "engine")
def test_a_checkpoint_does_not_end_the_span_of_its_attempt(tracing: Tracing) -> None:
    def work() -> None:
        oncemore.current().checkpoint(1)
        trace.get_current_span().set_attribute("after", 1)

    call_step(work)
    attributes = tracing.spans()["oncemore.attempt work"].attributes
    assert attributes is not None
    assert attributes["after"] == 1


@pytest.mark.usefixtures("_no_thread", "engine")
def test_a_function_may_end_its_span(tracing: Tracing) -> None:
    def work() -> None:
        trace.get_current_span().end()
        assert not trace.get_current_span().is_recording()

    call_step(work)
    assert tracing.spans().keys() == {"oncemore.run work", "oncemore.attempt work"}


@pytest.mark.usefixtures("_no_thread", "engine")
def test_baggage_of_the_caller_reaches_the_processors(tracing: Tracing) -> None:
    seen: list[tuple[str, object]] = []

    class Watching(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            seen.append((span.name, baggage.get_baggage("shop", parent_context)))

    tracing.provider.add_span_processor(Watching())
    token = context.attach(baggage.set_baggage("shop", "north"))
    try:
        call_step(lambda: None)
    finally:
        context.detach(token)
    tracing.spans()
    assert seen[1] == ("oncemore.attempt work", "north")


@pytest.mark.usefixtures("engine")
def test_a_forked_child_of_a_function_has_the_span_of_its_parent(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "MAX_WAIT_S", 600.0)
    read, write = os.pipe()

    def work() -> None:
        child = os.fork()
        if child == 0:
            os.write(write, f"{trace.get_current_span().get_span_context().span_id:x}".encode())
            os._exit(0)
        os.waitpid(child, 0)

    call_step(work)
    assert int(os.read(read, 100), 16) == tracing.spans()["oncemore.attempt work"].context.span_id


# The provider ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_thread", "engine")
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("end", ["force_flush", "shutdown"])
def test_the_provider_has_all_spans_before_it_flushes_or_shuts_down(batches: bool, end: str) -> None:
    tracing = Tracing(batches=batches)
    call_step(lambda: None)
    assert tracing.kept.get_finished_spans() == ()
    getattr(tracing.provider, end)()
    assert [span.name for span in tracing.kept.get_finished_spans()] == [
        *("oncemore.attempt work", "oncemore.run work")
    ]
    tracing.export.disable()


@pytest.mark.usefixtures("_no_thread", "engine")
def test_disabling_passes_all_spans_on_and_leaves_the_provider_as_it_was() -> None:
    tracing = Tracing()
    call_step(lambda: None)
    tracing.export.disable()
    assert len(tracing.kept.get_finished_spans()) == 2
    # No function of ours is left that would keep the export alive, or call it.
    assert tracing.provider.force_flush == tracing.provider.__class__.force_flush.__get__(tracing.provider)
    assert tracing.provider.shutdown == tracing.provider.__class__.shutdown.__get__(tracing.provider)


@pytest.mark.usefixtures("_no_thread", "engine")
def test_a_method_that_another_library_has_replaced_since_stays() -> None:
    tracing = Tracing()
    own: Any = tracing.provider.shutdown
    tracing.provider.shutdown = other = lambda: own()  # type: ignore[method-assign]
    tracing.export.disable()
    assert tracing.provider.shutdown is other
    tracing.provider.shutdown()


@pytest.mark.usefixtures("engine")
def test_a_call_in_progress_ends_its_spans_after_the_export_was_disabled() -> None:
    tracing = Tracing()
    call_step(lambda: tracing.export.disable())
    assert {span.name for span in tracing.kept.get_finished_spans()} == {
        *("oncemore.run work", "oncemore.attempt work")
    }


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "provider.shutdown()"])
def test_a_process_that_ends_reports_its_last_step(ending: str) -> None:
    """Also where the provider was set after the export was enabled, and after a first step."""
    program = (
        "import sys\n"
        "import oncemore\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
        "from oncemore.telemetry import enable_opentelemetry, report_queue\n"
        "report_queue.MAX_WAIT_S = 600.0\n"
        "enable_opentelemetry()\n"
        "work = oncemore.step(effect='idempotent', name='work')(lambda n: n)\n"
        "engine = oncemore.open('memory:')\n"
        "work(1)\n"
        "provider = TracerProvider()\n"
        "show = ConsoleSpanExporter(formatter=lambda span: span.name + '\\n')\n"
        "provider.add_span_processor(BatchSpanProcessor(show))\n"
        "trace.set_tracer_provider(provider)\n"
        "work(2)\n"
        f"{ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["oncemore.attempt work", "oncemore.run work"], done.stderr


def test_an_sdk_that_fails_leaves_an_audit_event_without_a_trace(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Any:
        raise RuntimeError("the SDK is shut down")

    monkeypatch.setattr(trace, "get_current_span", fail)
    assert tracing.export.find_trace_id() is None
    assert "could not be reported: RuntimeError" in caplog.text
