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

import time
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from oncemore import events
from oncemore.errors import Deferred
from oncemore.log.record import RunRecord
from oncemore.telemetry.otel_attempt import AttemptSpan, AttemptSpanContext
from oncemore.telemetry.records import build_span_attributes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from oncemore.events import RunEvent
    from oncemore.log.record import RecordChange
    from oncemore.steps.call import PreparedCall
    from oncemore.telemetry.otel import OpenTelemetryExport


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

    The thread of the call starts the run's span and makes the attempt's the current one. The queue of the
    export calls `apply_change` and `end_spans`, in the order of the call; `_open_attempt`, `_outcome` and the
    attributes are used there only. Attributes are collected and set once, which is cheaper.

    traceparent  the context of the run's span, as the run stores it; empty without an SDK
    is_recorded  whether the sampler has kept the trace
    """

    def __init__(
        self,
        export: OpenTelemetryExport,
        call: PreparedCall,
        run: RunRecord | None,
        run_id: str,
        *,
        submits: bool,
    ) -> None:
        self._export, self._step = export, call.plan.name
        # Without attributes, a third of the cost of a start: the queue sets them. A sampler has the name.
        self._run = export.tracer.start_span(
            f"oncemore.{'submit' if submits else 'run'} {self._step}",
            kind=SpanKind.PRODUCER if submits else SpanKind.INTERNAL,
            links=_list_links(run),
        )
        self.is_recorded = self._run.is_recording()
        self._run_attributes: dict[str, Any] = {
            "oncemore.step.name": self._step,
            "oncemore.key": call.key,
            "oncemore.run.id": run_id,
            "oncemore.policy.name": call.plan.policy_name,
        }
        self.traceparent = format_traceparent(self._run.get_span_context())
        # Stands for no span: its methods do nothing.
        self._attempt: Span = trace.INVALID_SPAN
        self._open_attempt: Span = trace.INVALID_SPAN
        self._attempt_attributes: dict[str, Any] = {}
        self._outcome = ""

    # In the thread of the call ------------------------------------------------------------------------

    def wrap_attempt(self, context: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """Return the context of an attempt, in which the attempt's span is the current one."""
        is_missing = self._attempt is trace.INVALID_SPAN
        return context if is_missing else AttemptSpanContext(self._attempt, context)

    def report_change(self, entity: str, change: RecordChange, now: float, shows_text: bool) -> None:
        """Report a stored change of the run; the span of an attempt begins with its INTENT."""
        moment, attempt = time.time_ns(), None
        if "INTENT" in change.marks:
            # The sampler has dropped the run, and would drop its attempt: the run's context is enough for
            # spans that the function starts, which follow the same decision.
            self._attempt = self._run
            if self.is_recorded:
                self._attempt = attempt = AttemptSpan(self._start_attempt, moment)
        elif type(change.after) is RunRecord and change.after.state != "RUNNING":
            self._leave_attempt()
        stored = (entity, change, now, shows_text)
        self._export.queue.add_report(self._export.apply_change, stored, self, attempt, moment)

    def end_call(self, error: BaseException | None) -> None:
        """End the spans with the call; one whose outcome is not stored says so."""
        self._leave_attempt()
        outcome = "deferred" if isinstance(error, Deferred) else "unrecorded"
        self._export.queue.add_report(self.end_spans, outcome, time.time_ns())

    def _leave_attempt(self) -> None:
        if type(self._attempt) is AttemptSpan:
            self._attempt.mark_ended()
        self._attempt = trace.INVALID_SPAN

    def _start_attempt(self, context: Context, start_time: int) -> Span:
        """Start the span of an attempt as a child of the run's; the function of the step may do so too."""
        try:
            # By its own context: the caller's span, not the run's, is the current one in that thread.
            return self._export.tracer.start_span(
                f"oncemore.attempt {self._step}",
                trace.set_span_in_context(self._run, context),
                start_time=start_time,
            )
        except Exception as error:  # noqa: BLE001 - telemetry must not end the work
            self._export.log_once(error)
            return trace.INVALID_SPAN

    # In the queue -------------------------------------------------------------------------------------

    def end_spans(self, outcome: str, moment: int) -> None:
        """End the spans; `outcome` is that of a call whose run has none."""
        # The outcome was not stored: another worker took the run over, or the store failed.
        self._attempt_attributes["oncemore.outcome"] = "unrecorded"
        self._end_attempt(moment)
        outcome = self._outcome or outcome
        # A span without an outcome and without an error is one that completed, as in all of OpenTelemetry.
        if outcome != "completed":
            self._run_attributes["oncemore.outcome"] = outcome
        self._run.set_attributes(self._run_attributes)
        self._run.end(moment)

    def open_attempt(self, attempt: AttemptSpan) -> None:
        """Begin to describe the span of an attempt."""
        self._open_attempt = attempt.load_span()

    def apply_change(self, entity: str, change: RecordChange, happened: list[RunEvent], moment: int) -> None:
        """Describe or end the spans that a stored change concerns."""
        if "usage" in change.body:
            run: Any = change.after
            usage = build_span_attributes(run.run_id, run.attempt, entity[4:], change.body)
            self._attempt_attributes |= usage
        for event in happened:
            handler = _SPAN_HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, moment)

    def start_attempt(self, event: events.AttemptStarted, moment: int) -> None:
        """Describe the span of an attempt that has begun."""
        self._outcome = ""
        self._attempt_attributes = {
            "oncemore.attempt.number": event.attempt,
            "oncemore.attempt.limit": event.max_attempts,
        }

    def fail_attempt(self, event: events.AttemptFailed, moment: int) -> None:
        """End the span of a failed attempt with its error and the decision about it."""
        self._outcome = "deferred"
        self._attempt_attributes |= {
            "oncemore.outcome": "failed",
            "error.type": event.error_type or "_OTHER",
            "oncemore.error.class": event.error_code,
            "oncemore.action": event.action,
            "oncemore.reason": event.reason,
        }
        if event.action in ("retry", "defer"):
            self._attempt_attributes["oncemore.attempt.delay"] = event.delay_s
        attempt = self._open_attempt
        error = {"exception.type": event.error_type, "exception.message": event.error_message}
        attempt.add_event("exception", error, moment)
        attempt.set_status(Status(StatusCode.ERROR, event.error_message))
        self._end_attempt(moment)

    def interrupt_attempt(self, event: events.AttemptInterrupted, moment: int) -> None:
        """End the span of an attempt that was ended from outside."""
        self._outcome = "interrupted"
        self._attempt_attributes["oncemore.outcome"] = event.reason
        self._end_attempt(moment)

    def complete_run(self, event: events.RunCompleted, moment: int) -> None:
        """End the span of the attempt that succeeded."""
        self._outcome = "completed"
        self._end_attempt(moment)

    def fail_run(self, event: events.RunFailed, moment: int) -> None:
        """Mark the run's span as failed."""
        self._outcome = "failed"
        self._run_attributes |= {
            "error.type": event.error_type or "_OTHER",
            "oncemore.error.class": event.error_code,
            "oncemore.reason": event.reason,
        }
        self._run.set_status(Status(StatusCode.ERROR, event.error_message or event.reason))

    def hold_run(self, event: events.RunHeld, moment: int) -> None:
        """Mark the run's span as held for an operator."""
        self._outcome = "held"
        self._run_attributes |= {
            "oncemore.reason": event.held_for,
            "error.type": event.error_type or "_OTHER",
        }
        self._run.set_status(Status(StatusCode.ERROR, event.error_message or event.held_for))

    def defer_run(self, event: events.RunDeferred, moment: int) -> None:
        """Mark the run's span as deferred."""
        self._outcome = "deferred"
        self._run_attributes["oncemore.reason"] = event.reason

    def park_run(self, event: events.RunParked, moment: int) -> None:
        """End the span of an attempt of a workflow that waits from here on."""
        self._outcome = "parked"
        self._attempt_attributes["oncemore.outcome"] = "parked"
        self._end_attempt(moment)

    def submit_run(self, event: events.RunSubmitted, moment: int) -> None:
        """Mark the span of a submission as done."""
        self._outcome = "submitted"

    def _end_attempt(self, moment: int) -> None:
        attempt, self._open_attempt = self._open_attempt, trace.INVALID_SPAN
        attempt.set_attributes(self._attempt_attributes)
        attempt.end(moment)


#: The effect of an event on the spans of its call. A take-over comes before the call has any.
_SPAN_HANDLERS: dict[type, Callable[[CallSpans, Any, int], None]] = {
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


def _list_links(run: RunRecord | None) -> list[Link]:
    """Return links to the span that opened a run and to the last one that claimed it, if they are known."""
    if run is None:
        return []
    contexts = (parse_traceparent(text) for text in (run.traceparent, run.last_traceparent) if text)
    return [Link(context) for context in contexts if context is not None]
