"""The export of spans and metrics through OpenTelemetry: switching it on and off, and its queue of reports.

A step starts the span of its run itself, because the context of that span is stored with the claim. All the
rest is a report: the queue (`telemetry.report_queue`) computes the events of a stored change, describes and
ends the spans (`telemetry.otel_spans`), with the times at which it happened, and counts the metrics.
`force_flush()` and `shutdown()` of the provider make the reports that wait first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from oncemore import events
from oncemore._listeners import add_listener
from oncemore._version import __version__
from oncemore.audit.recorder import set_trace_finder
from oncemore.errors import log_warning
from oncemore.steps.observers import set_trace_starter
from oncemore.steps.run_events import list_run_events
from oncemore.telemetry.metrics import MetricSource
from oncemore.telemetry.otel_metrics import SCHEMA_URL, OpenTelemetryBackend
from oncemore.telemetry.otel_spans import CallSpans
from oncemore.telemetry.report_queue import ReportQueue, flush_at_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from oncemore._listeners import EventSubscription
    from oncemore.events import ProcessEvent
    from oncemore.log.record import RecordChange, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.telemetry.otel_attempt import AttemptSpan

    #: Entity, change, time, and whether events may have the redacted text of an error.
    StoredChange = tuple[str, RecordChange, float, bool]


class OpenTelemetryExport:
    """The spans and metrics of this process, until `disable()`."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self.tracer: Tracer = trace.get_tracer("oncemore", __version__, tracer_provider, SCHEMA_URL)
        self._provider = tracer_provider
        self._backend = OpenTelemetryBackend(meter_provider, self.flush)
        self._metrics = MetricSource(self._backend)
        self.queue = ReportQueue(self._backend.apply_counts, self.log_once)
        self._detach: Callable[[], None] | None = None
        self._listener: EventSubscription | None = None
        self._has_failed = False

    def start_trace(
        self, call: PreparedCall, run: RunRecord | None, run_id: str, submits: bool
    ) -> CallSpans | None:
        """Start the spans of a call; return None if the SDK fails."""
        try:
            spans = CallSpans(self, call, run, run_id, submits=submits)
        except Exception as error:  # noqa: BLE001 - telemetry must not end the work
            self.log_once(error)
            return None
        # The program has set the global provider after it has enabled this export.
        if self._detach is None and spans.is_recorded:
            self._attach_provider()
        return spans

    def report_change(self, entity: str, change: RecordChange, now: float, shows_text: bool) -> None:
        """Report a stored change of a run that no call of this process has spans for."""
        self.queue.add_report(self.apply_change, (entity, change, now, shows_text), None)

    def apply_change(
        self,
        stored: StoredChange,
        spans: CallSpans | None,
        attempt: AttemptSpan | None = None,
        moment: int = 0,
    ) -> None:
        """Apply a stored change to the spans of its call and to the metrics; the queue calls this.

        attempt  the span of the attempt that begins with the change
        moment   when the change was stored, in nanoseconds since 1970
        """
        entity, change, now, shows_text = stored
        happened = list_run_events(entity, change, now, shows_text=shows_text)
        if spans is not None:
            if attempt is not None:
                spans.open_attempt(attempt)
            spans.apply_change(entity, change, happened, moment)
        for event in happened:
            self._metrics.apply_event(event)

    def _report_event(self, event: ProcessEvent) -> None:
        """Report an event that is not one of a run: of `oncemore.retry`, or of a breaker."""
        self.queue.add_report(self._metrics.apply_event, event)

    def flush(self) -> None:
        """Pass everything that has happened to the SDK; its own `force_flush()` does so too."""
        self.queue.flush()

    def _attach_provider(self) -> None:
        """Let the provider flush this export first; do nothing if there is no SDK yet."""
        provider = self._provider or trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):
            self._detach = flush_first(provider, self.flush)
            # Again, after the provider: its own handler must not come first.
            flush_at_exit()

    def find_trace_id(self) -> str | None:
        """Return the id of the current span's trace, as W3C Trace Context writes it; None outside a span."""
        try:
            context = trace.get_current_span().get_span_context()
        except Exception as error:  # noqa: BLE001 - telemetry must not end the work
            self.log_once(error)
            return None
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    def log_once(self, error: Exception) -> None:
        """Log the first error of the SDK."""
        if not self._has_failed:
            self._has_failed = True
            log_warning(
                f"a span or a metric could not be reported: {type(error).__name__}; "
                "further errors are not logged"
            )

    def enable(self) -> None:
        """Begin to report."""
        self._attach_provider()
        set_trace_starter(self.start_trace, self.report_change)
        set_trace_finder(self.find_trace_id)
        kinds = (events.AttemptFailed, events.BreakerChanged)
        self._listener = add_listener(self._report_event, kinds, hears_runs=False)

    def disable(self) -> None:
        """Stop reporting; calls in progress end their spans."""
        global _current
        if _current is self:
            _current = None
            set_trace_starter(None, None)
            set_trace_finder(None)
        if self._listener is not None:
            self._listener.unsubscribe()
            self._listener = None
        self.queue.close()
        self._backend.close()
        if self._detach is not None:
            self._detach()
            self._detach = None


def flush_first(provider: Any, flush: Callable[[], object]) -> Callable[[], None]:
    """Make `force_flush()` and `shutdown()` of a provider call `flush` first; return what undoes that.

    A span processor of ours would come too late: the SDK calls them in the order in which they were added,
    so that spans which it adds then would reach an exporter that has flushed, or is shut down. It could not
    be removed, either.
    """
    replaced: dict[str, tuple[Any, Any]] = {}

    def replace_method(name: str) -> None:
        method = getattr(provider, name)

        def flush_and_call(*values: Any, **named: Any) -> Any:
            flush()
            return method(*values, **named)

        replaced[name] = flush_and_call, method
        setattr(provider, name, flush_and_call)

    def restore_methods() -> None:
        for name, (function, method) in replaced.items():
            # Not if another library has replaced it since: its function calls ours.
            if getattr(provider, name) is function:
                setattr(provider, name, method)

    replace_method("force_flush")
    replace_method("shutdown")
    return restore_methods


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
