"""Spans of runs through the OpenTelemetry API; the SDK is the program's own choice.

    oncemore.run <step>         one span per call that makes attempts of a run
    └ oncemore.attempt <step>   one child per attempt; spans that the function starts are its children
    oncemore.submit <step>      the span of a submission

A call inside a span is a child of it. A process that continues a run of another process begins a trace of its
own, with links to the span that opened the run and to the last one that claimed it: both contexts are in the
log. So no span stays open while a run waits for hours.

An error that was retried is on its attempt only; the run has an error if the run itself failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from oncemore import events
from oncemore._version import __version__
from oncemore.errors import Deferred, log_warning
from oncemore.steps.observers import set_trace_starter
from oncemore.telemetry.metrics import MetricSource
from oncemore.telemetry.otel_metrics import SCHEMA_URL, OpenTelemetryBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from oncemore.events import RunEvent
    from oncemore.log.record import RunRecord
    from oncemore.steps.call import PreparedCall


# Trace context --------------------------------------------------------------------------------------


def format_traceparent(context: SpanContext) -> str:
    """Return a span's context as a W3C `traceparent`; an empty text if it is not valid."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the context of a stored `traceparent`; None if the text is not one."""
    version, _, rest = text.partition("-")
    parts = rest.split("-")
    if len(version) != 2 or [len(part) for part in parts] != [32, 16, 2]:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts)
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


# Spans ----------------------------------------------------------------------------------------------


class CallSpans:
    """The spans of one call: of its run in this process, and of each attempt.

    Errors of the SDK never reach the work: the methods that the call uses catch them.
    """

    def __init__(
        self, tracer: Tracer, call: PreparedCall, run: RunRecord | None, run_id: str, *, submits: bool
    ) -> None:
        self._tracer, self._step = tracer, call.plan.name
        # Stands for no span: its methods do nothing.
        self._attempt: Span = trace.INVALID_SPAN
        self._outcome = ""
        # All at once: setting one later costs as much as these four.
        attributes = {
            "oncemore.step.name": self._step,
            "oncemore.key": call.key,
            "oncemore.run.id": run_id,
            "oncemore.policy.name": call.plan.policy_name,
        }
        self._run = tracer.start_span(
            f"oncemore.{'submit' if submits else 'run'} {self._step}",
            kind=SpanKind.PRODUCER if submits else SpanKind.INTERNAL,
            attributes=attributes,
            links=_list_links(run),
        )
        self.traceparent = format_traceparent(self._run.get_span_context())

    def wrap_attempt(self, context: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """Return the context of an attempt, in which the attempt's span is the current one."""
        is_missing = self._attempt is trace.INVALID_SPAN
        return context if is_missing else AttemptSpanContext(self._attempt, context)

    def add_usage(self, attributes: dict[str, Any]) -> None:
        """Add energy, carbon and cost to the span of the attempt that is about to end."""
        _call_safely(self._attempt.set_attributes, attributes)

    def apply_event(self, event: RunEvent) -> None:
        """Start, describe or end a span."""
        handler = _SPAN_HANDLERS.get(type(event))
        if handler is not None:
            _call_safely(handler, self, event)

    def end_call(self, error: BaseException | None) -> None:
        """End the spans with the call; one whose outcome is not stored says so."""
        _call_safely(CallSpans._end_spans, self, error)

    def _end_spans(self, error: BaseException | None) -> None:
        # The outcome was not stored: another worker took the run over, or the store failed.
        self._attempt.set_attribute("oncemore.outcome", "unrecorded")
        self._end_attempt()
        outcome = self._outcome or ("deferred" if isinstance(error, Deferred) else "unrecorded")
        # A span without an outcome and without an error is one that completed, as in all of OpenTelemetry.
        if outcome != "completed":
            self._run.set_attribute("oncemore.outcome", outcome)
        self._run.end()

    def start_attempt(self, event: events.AttemptStarted) -> None:
        """Start the span of an attempt as a child of the run's."""
        self._outcome = ""
        # The sampler has dropped the run, and would drop its attempt: the run's context is enough for spans
        # that the function starts, which follow the same decision.
        if not self._run.is_recording():
            self._attempt = self._run
            return
        # By its own context: the caller's span, not the run's, is the current one in this thread.
        self._attempt = self._tracer.start_span(
            f"oncemore.attempt {self._step}",
            trace.set_span_in_context(self._run),
            attributes={
                "oncemore.attempt.number": event.attempt,
                "oncemore.attempt.limit": event.max_attempts,
            },
        )

    def fail_attempt(self, event: events.AttemptFailed) -> None:
        """End the span of a failed attempt with its error and the decision about it."""
        self._outcome = "deferred"
        attributes = {
            "oncemore.outcome": "failed",
            "error.type": event.error_type or "_OTHER",
            "oncemore.error.class": event.error_code,
            "oncemore.action": event.action,
            "oncemore.reason": event.reason,
        }
        if event.action in ("retry", "defer"):
            attributes["oncemore.attempt.delay"] = event.delay_s  # type: ignore[assignment]
        self._attempt.set_attributes(attributes)
        self._attempt.add_event(
            "exception", {"exception.type": event.error_type, "exception.message": event.error_message}
        )
        self._attempt.set_status(Status(StatusCode.ERROR, event.error_message))
        self._end_attempt()

    def interrupt_attempt(self, event: events.AttemptInterrupted) -> None:
        """End the span of an attempt that was ended from outside."""
        self._outcome = "interrupted"
        self._attempt.set_attribute("oncemore.outcome", event.reason)
        self._end_attempt()

    def complete_run(self, event: events.RunCompleted) -> None:
        """End the span of the attempt that succeeded."""
        self._outcome = "completed"
        self._end_attempt()

    def fail_run(self, event: events.RunFailed) -> None:
        """Mark the run's span as failed."""
        self._outcome = "failed"
        self._run.set_attributes(
            {
                "error.type": event.error_type or "_OTHER",
                "oncemore.error.class": event.error_code,
                "oncemore.reason": event.reason,
            }
        )
        self._run.set_status(Status(StatusCode.ERROR, event.error_message or event.reason))

    def hold_run(self, event: events.RunHeld) -> None:
        """Mark the run's span as held for an operator."""
        self._outcome = "held"
        self._run.set_attribute("oncemore.reason", event.held_for)
        self._run.set_attribute("error.type", event.error_type or "_OTHER")
        self._run.set_status(Status(StatusCode.ERROR, event.error_message or event.held_for))

    def defer_run(self, event: events.RunDeferred) -> None:
        """Mark the run's span as deferred."""
        self._outcome = "deferred"
        self._run.set_attribute("oncemore.reason", event.reason)

    def park_run(self, event: events.RunParked) -> None:
        """End the span of an attempt of a workflow that waits from here on."""
        self._outcome = "parked"
        self._attempt.set_attribute("oncemore.outcome", "parked")
        self._end_attempt()

    def submit_run(self, event: events.RunSubmitted) -> None:
        """Mark the span of a submission as done."""
        self._outcome = "submitted"

    def _end_attempt(self) -> None:
        attempt, self._attempt = self._attempt, trace.INVALID_SPAN
        attempt.end()


#: The effect of an event on the spans of its call. A take-over comes before the call has any.
_SPAN_HANDLERS: dict[type, Callable[[CallSpans, Any], None]] = {
    events.AttemptStarted: CallSpans.start_attempt,
    events.AttemptFailed: CallSpans.fail_attempt,
    events.AttemptInterrupted: CallSpans.interrupt_attempt,
    events.RunCompleted: CallSpans.complete_run,
    events.RunFailed: CallSpans.fail_run,
    events.RunHeld: CallSpans.hold_run,
    events.RunDeferred: CallSpans.defer_run,
    events.RunParked: CallSpans.park_run,
    events.RunSubmitted: CallSpans.submit_run,
}


class AttemptSpanContext:
    """The context of an attempt with its span as the current one, for spans that the function starts."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, context: AbstractContextManager[None]) -> None:
        self._span, self._context = span, context

    def __enter__(self) -> None:
        self._token = otel_context.attach(trace.set_span_in_context(self._span))
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        otel_context.detach(self._token)


def _list_links(run: RunRecord | None) -> list[Link]:
    """Return links to the span that opened a run and to the last one that claimed it, if they are known."""
    if run is None:
        return []
    contexts = (parse_traceparent(text) for text in (run.traceparent, run.last_traceparent) if text)
    return [Link(context) for context in contexts if context is not None]


_has_failed: list[bool] = []


def _call_safely(function: Callable[..., None], *values: Any) -> None:
    """Call a function of the tracing; log its first error, and never raise one."""
    try:
        function(*values)
    except Exception as error:  # noqa: BLE001 - telemetry must not end the work
        _log_once(error)


def _log_once(error: Exception) -> None:
    if not _has_failed:
        _has_failed.append(True)
        log_warning(f"a span could not be reported: {type(error).__name__}; further errors are not logged")


# Switching on and off -------------------------------------------------------------------------------


class OpenTelemetryExport:
    """The spans and metrics of this process, until `disable()`."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self._tracer = trace.get_tracer("oncemore", __version__, tracer_provider, SCHEMA_URL)
        self._metrics = MetricSource(OpenTelemetryBackend(meter_provider))

    def start_trace(
        self, call: PreparedCall, run: RunRecord | None, run_id: str, submits: bool
    ) -> CallSpans | None:
        """Start the spans of a call; return None if the SDK fails."""
        try:
            return CallSpans(self._tracer, call, run, run_id, submits=submits)
        except Exception as error:  # noqa: BLE001 - telemetry must not end the work
            _log_once(error)
            return None

    def enable(self) -> None:
        """Begin to report."""
        set_trace_starter(self.start_trace)
        self._metrics.enable()

    def disable(self) -> None:
        """Stop reporting; calls in progress end their spans."""
        global _current
        if _current is self:
            _current = None
            set_trace_starter(None)
        self._metrics.disable()


_current: OpenTelemetryExport | None = None


def enable_export(
    tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
) -> OpenTelemetryExport:
    """Report through these providers instead of earlier ones."""
    global _current
    if _current is not None:
        _current.disable()
    _current = OpenTelemetryExport(tracer_provider, meter_provider)
    _current.enable()
    return _current
