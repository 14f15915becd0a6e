"""Report what a call does: to the log, to the listeners of the process and the engine, and to its trace.

A change is reported after it is stored. Without a listener, a trace and a logger for DEBUG, a call that
succeeds at once passes two comparisons here, and nothing is built.

A *trace* belongs to one call. `oncemore.telemetry` sets `start_trace`, which makes it when the call reserves
a worker or prepares a submission; its context is stored with the run, so that a process that continues the
run can link its own trace to it. The trace gets the stored change itself and computes its events later, in
another thread; the log and the listeners get the events at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore import _listeners
from oncemore.steps.run_events import list_run_events
from oncemore.steps.step_log import QUIET_EVENTS, log_event, logger
from oncemore.steps.transitions import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Protocol

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

        def report_change(self, entity: str, change: RecordChange, now: float, shows_text: bool) -> None:
            """Report a stored change of the call's run; `shows_text`: with the redacted text of its error."""

        def end_call(self, error: BaseException | None) -> None:
            """End the trace with the call, whatever became of the run."""

    TraceStarter = Callable[[PreparedCall, RunRecord | None, str, bool], CallTrace | None]
    ChangeReporter = Callable[[str, RecordChange, float, bool], None]

#: Makes the trace of a call, from the call, the run that it continues if there is one, the id of the run, and
#: whether the call only submits it; None without tracing.
start_trace: TraceStarter | None = None
#: The same as the trace's method for changes that no call with a trace has made.
report_untraced: ChangeReporter | None = None

_DEBUG = 10
_QUIET_STATES = ("COMPLETE", "RUNNING")


def set_trace_starter(starter: TraceStarter | None, reporter: ChangeReporter | None) -> None:
    """Set the functions that make the traces of calls and report other changes; None ends tracing."""
    global start_trace, report_untraced
    start_trace, report_untraced = starter, reporter


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
    if _listeners.run_listeners or call.trace is not None or report_untraced is not None:
        return True
    # A run that starts or completes is logged at DEBUG only.
    return change.after.state not in _QUIET_STATES or logger.isEnabledFor(_DEBUG)


def report_change(
    engine: Engine, entity: str, change: RecordChange, now: float, trace: CallTrace | None = None
) -> None:
    """Report the events of a stored change; to the trace of the call that made it, if it has one."""
    shows_text = engine.cipher is None
    report = report_untraced if trace is None else trace.report_change
    if report is not None:
        report(entity, change, now, shows_text)
    logs_all = logger.isEnabledFor(_DEBUG)
    if not (logs_all or _listeners.run_listeners) and change.after.state in _QUIET_STATES:
        return
    for event in list_run_events(entity, change, now, shows_text=shows_text):
        if logs_all or type(event) not in QUIET_EVENTS:
            log_event(event)
        _listeners.publish_run_event(event)
