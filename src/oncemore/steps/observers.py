"""Report what a call does: to the log, to the listeners of the process and the engine, and to its trace.

A change is reported after it is stored. Without a listener, a trace and a logger for DEBUG, a call that
succeeds at once passes two comparisons here, and nothing is built.

A *trace* belongs to one call. `oncemore.telemetry` sets `start_trace`, which makes it when the call reserves
a worker or prepares a submission; its context is stored with the run, so that a process that continues the
run can link its own trace to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import _listeners
from oncemore.steps.run_events import list_run_events
from oncemore.steps.step_log import QUIET_EVENTS, log_event, logger
from oncemore.steps.transitions import FINAL_STATES
from oncemore.telemetry.records import build_span_attributes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Protocol

    from oncemore.events import RunEvent
    from oncemore.log.record import LoadedHead, RecordChange, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AttemptTerms

    class CallTrace(Protocol):
        """The trace of one call; its methods never raise.

        traceparent  its context as W3C Trace Context writes it, stored with the run; empty if there is none
        """

        traceparent: str

        def wrap_attempt(self, context: AbstractContextManager[None]) -> AbstractContextManager[None]:
            """Return the context of an attempt, in which the attempt's span is the current one."""

        def add_usage(self, attributes: dict[str, Any]) -> None:
            """Add energy, carbon and cost to the span of the attempt that is about to end."""

        def apply_event(self, event: RunEvent) -> None:
            """Apply an event of the call's run."""

        def end_call(self, error: BaseException | None) -> None:
            """End the trace with the call, whatever became of the run."""

    TraceStarter = Callable[[PreparedCall, RunRecord | None, str, bool], CallTrace | None]

#: Makes the trace of a call, from the call, the run that it continues if there is one, the id of the run, and
#: whether the call only submits it; None without tracing.
start_trace: TraceStarter | None = None

_DEBUG = 10
_QUIET_STATES = ("COMPLETE", "RUNNING")


def set_trace_starter(starter: TraceStarter | None) -> None:
    """Set the function that makes the traces of calls; None ends tracing."""
    global start_trace
    start_trace = starter


def begin_trace(
    call: PreparedCall, terms: AttemptTerms, head: LoadedHead | None, *, submits: bool = False
) -> AttemptTerms:
    """Start the trace of a call at its first attempt or submission; return the terms with its context."""
    assert start_trace is not None
    if call.trace is None:
        run = None if head is None or head.record.state in FINAL_STATES else head.record
        call.trace = start_trace(call, run, terms.run_id if run is None else run.run_id, submits)
    return terms if call.trace is None else terms._replace(traceparent=call.trace.traceparent)


def is_observed(call: PreparedCall, change: RecordChange) -> bool:
    """Return whether the events of a stored change reach anything: a listener, a trace, or the log."""
    if _listeners.listeners or call.trace is not None:
        return True
    # A run that starts or completes is logged at DEBUG only.
    state = change.after.state
    return state not in _QUIET_STATES or logger.isEnabledFor(_DEBUG)


def report_change(
    engine: Engine, entity: str, change: RecordChange, now: float, trace: CallTrace | None = None
) -> None:
    """Report the events of a stored change; to the trace of the call that made it, if it has one."""
    logs_all = logger.isEnabledFor(_DEBUG)
    if trace is not None and "usage" in change.body:
        run: Any = change.after
        trace.add_usage(build_span_attributes(run.run_id, run.attempt, entity[4:], change.body))
    for event in list_run_events(entity, change, now, shows_text=engine.cipher is None):
        if logs_all or type(event) not in QUIET_EVENTS:
            log_event(event)
        if trace is not None:
            trace.apply_event(event)
        _listeners.publish_event(event)
