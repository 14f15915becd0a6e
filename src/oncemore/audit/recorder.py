"""Builds audit events from the outcomes of attempts, and writes them to sinks.

    retry loop ──record_failure, record_end──► AuditRecorder ──events──► SinkWriter ──► sink (any callable)

A failing sink never breaks the audited work: `SinkWriter` retries under the small policy `audit-sink`, and
then logs the event instead. Until the sink works again it gets one try per event, so that it does not slow
down every call.
"""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._redact import clean_text, error_class_name, mask_text, masked_message
from oncemore._values import Value
from oncemore.audit.events import (
    AuditEvent,
    CircuitChanged,
    ConfigDrift,
    RetryAttempt,
    RetryExhausted,
    RetryRefused,
    RetrySucceeded,
    StoreSize,
    format_rfc3339,
)
from oncemore.errors import AttemptTimeout, CircuitOpen, UsageError
from oncemore.events import BreakerChanged, ConfigDrifted, StoreSizeExceeded
from oncemore.policy.backoff import Schedule
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy, policy_name
from oncemore.retries.driver import wrap_function
from oncemore.retries.plan import RetryPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.events import ProcessEvent
    from oncemore.policy.decide import Decision
    from oncemore.retries.report import RetryReport

    Sink = Callable[[AuditEvent], object]

#: Three tries, at most 30 ms of waiting: events are written inline, and the work must not wait for them.
SINK_POLICY = Policy("audit-sink", max_attempts=3, schedule=Schedule("exponential", 0.01, cap=0.02))
SINK_CATEGORY = "RETRY_AUDIT_SINK"
MAX_NAME_LENGTH = 200

logger = logging.getLogger("oncemore.audit")


#: Returns the id of the trace in which the caller is; set while OpenTelemetry is on.
_find_trace_id: Callable[[], str | None] | None = None


def set_trace_finder(find_trace_id: Callable[[], str | None] | None) -> None:
    """Let events name the trace that the function returns; None ends that."""
    global _find_trace_id
    _find_trace_id = find_trace_id


def current_trace_id() -> str | None:
    """Return the id of the trace in which the caller is; None outside a span, and without OpenTelemetry."""
    return None if _find_trace_id is None else _find_trace_id()


class OperationIds(Value):
    """The tenant, correlation id and trace id of an operation, as its caller gave them."""

    tenant_id: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None

    def clean_ids(self) -> OperationIds:
        """Return the ids without control characters and with a bounded length."""
        tenant, *rest = (None if text is None else clean_text(str(text), MAX_NAME_LENGTH) for text in self)
        # Tenants are compared: two Unicode spellings of one name must be equal.
        return OperationIds(None if tenant is None else normalize_name(tenant), *rest)


class AuditRecorder:
    """Builds the events of one operation and passes them to a sink.

    All events share the category, the operation's name, the ids and the policy's name.
    """

    __slots__ = ("_category", "_ids", "_operation", "_sink", "policy")

    def __init__(
        self,
        sink: Sink,
        category: str,
        operation: str,
        ids: OperationIds = OperationIds(),  # noqa: B008
        policy: str | None = None,
    ) -> None:
        self._sink = sink
        self._category = clean_text(category, MAX_NAME_LENGTH)
        self._operation = mask_text(operation, MAX_NAME_LENGTH)
        self._ids = ids.clean_ids()
        self.policy = policy

    def record_failure(self, report: RetryReport) -> None:
        """Record a failed attempt, or the end of the operation if it was the last one."""
        decision, now = report.decision, report.decision.situation.now
        error_type, message = _error_type(report.error), masked_message(report.error)
        if _ended_before_start(decision):
            self.record_refusal(0, now, "deadline_passed", report.error)
        elif decision.action == "retry":
            self.emit_event(
                RetryAttempt,
                now,
                attempt_number=report.number,
                max_attempts=report.attempts,
                delay_seconds=decision.delay_s,
                exception_type=error_type,
                exception_message=message,
            )
        elif decision.reason == "max_attempts_exceeded":
            self.emit_event(
                RetryExhausted,
                now,
                total_attempts=report.number,
                final_exception_type=error_type,
                final_exception_message=message,
            )
        else:
            reason: str = "cancelled" if decision.situation.failure.code == "CANCELLED" else decision.reason
            # "held" only says that the decision was taken before; the stored reason says why.
            reason = decision.situation.hold_reason if reason == "held" else reason
            self.record_refusal(report.number, now, reason, report.error, decision.not_before)

    def record_end(self, number: int, now: float, error: BaseException | None) -> None:
        """Record a success, or an end that was caused from outside."""
        if error is None:
            self.emit_event(RetrySucceeded, now, total_attempts=number)
        else:
            until = error.until if isinstance(error, CircuitOpen) else None
            self.record_refusal(number, now, _refusal_reason(error), error, until)

    def record_refusal(
        self,
        number: int,
        now: float,
        reason: str,
        error: BaseException | None,
        not_before: float | None = None,
    ) -> None:
        """Record an end without success before the attempts were used up."""
        self.emit_event(
            RetryRefused,
            now,
            total_attempts=number,
            reason=reason,
            not_before=None if not_before is None else format_rfc3339(not_before),
            exception_type=_error_type(error),
            exception_message=masked_message(error),
        )

    def emit_event(self, event_class: type[AuditEvent], now: float, **own: object) -> None:
        """Build an event from the shared fields and its own fields, and pass it to the sink."""
        shared = {
            "retry_category": self._category,
            "operation": self._operation,
            "tenant_id": self._ids.tenant_id,
            "correlation_id": self._ids.correlation_id,
            "trace_id": self._ids.trace_id or current_trace_id(),
            "timestamp": format_rfc3339(now),
            "policy": self.policy,
        }
        self._sink(event_class(**shared, **own))  # type: ignore[arg-type]


def _ended_before_start(decision: Decision) -> bool:
    """Return whether the call's deadline had passed before its first attempt."""
    situation = decision.situation
    deadline, started_at = situation.deadline, situation.started_at
    return deadline is not None and started_at is not None and deadline <= started_at


def _error_type(error: BaseException | None) -> str:
    """Return the class name of an error as events show it."""
    if error is None:
        # The function returned, but the condition of `until=` did not hold.
        return "UntilNotMet"
    # Consumers know the standard class, of which `AttemptTimeout` is a subclass.
    return "TimeoutError" if isinstance(error, AttemptTimeout) else error_class_name(error)


def _refusal_reason(error: BaseException) -> str:
    """Return the reason code of an error that ended a call from outside."""
    if isinstance(error, CircuitOpen):
        return "circuit_open"
    if isinstance(error, Exception):
        return "hook_failed"
    if isinstance(error, GeneratorExit):
        return "abandoned"
    return "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "cancelled"


#: The writers that are active in this context. A sink may use `retry` itself; the events of those calls
#: must not reach the same sink again.
_active_writers: ContextVar[tuple[SinkWriter, ...]] = ContextVar("oncemore.delivering", default=())


class SinkWriter:
    """Writes events to one sink; never raises, and logs every event that the sink did not take.

    `lost_events` counts those events.
    """

    __slots__ = ("_is_down", "_name", "_write_once", "_write_with_retry", "lost_events")

    def __init__(self, sink: Sink) -> None:
        if not callable(sink):
            raise UsageError(f"{sink!r} is not a sink; pass a function that takes one event")
        self._name = clean_text(
            getattr(sink, "__qualname__", None) or type(sink).__qualname__, MAX_NAME_LENGTH
        )
        self._write_with_retry, self._write_once = (
            wrap_function(_make_sink_plan(self._name, policy), _refuse_async_sink(sink), "plain")
            for policy in (SINK_POLICY, SINK_POLICY.replace(max_attempts=1))
        )
        self._is_down = False
        self.lost_events = 0

    def __call__(self, event: AuditEvent) -> None:
        """Write one event to the sink; log the event if the sink fails."""
        active = _active_writers.get()
        if self in active:
            logger.warning(
                "the audit sink %s caused an event itself, which is only logged here: %s",
                self._name,
                event.to_json(),
            )
            return
        token = _active_writers.set((*active, self))
        try:
            (self._write_once if self._is_down else self._write_with_retry)(event)
            self._is_down = False
        except Exception:  # noqa: BLE001 - an error of a sink must not end the audited work
            self._is_down = True
            self.lost_events += 1
            logger.error(
                "the audit sink %s failed; the event is only logged here: %s", self._name, event.to_json()
            )
        finally:
            _active_writers.reset(token)


def _refuse_async_sink(sink: Sink) -> Sink:
    """Return the sink with a check that it did not return an awaitable."""

    def write_event(event: AuditEvent) -> None:
        result: Any = sink(event)
        if hasattr(type(result), "__await__"):
            # Closing a coroutine avoids the warning that it was never awaited.
            if hasattr(result, "close"):
                result.close()
            raise UsageError("the audit sink is async and cannot be awaited here; pass a plain function")

    return write_event


def _make_sink_plan(name: str, policy: Policy) -> RetryPlan:
    """Return the retry plan of a sink; it logs the end of the retries as an audit event."""

    def classify_error(error: BaseException, now: float) -> Failure:
        return Failure("transient", "maybe", None, f"EXC_{error_class_name(error)}", "audit:sink")

    def log_report(report: RetryReport) -> None:
        recorder = AuditRecorder(
            # Straight to the log: the sink itself has just failed.
            lambda event: logger.error("%s", event.to_json()),
            SINK_CATEGORY,
            f"write to {name}",
            policy=policy_name(policy),
        )
        recorder.record_failure(report)

    return RetryPlan(
        f"audit sink {name}", policy, lambda error, failure: True, classify_error, on_give_up=log_report
    )


def default_category(name: str) -> str:
    """Return the category of a function without one: RETRY_ and its name in capitals."""
    own = name.rpartition("<locals>.")[2]
    word = re.sub(r"[^A-Z0-9]+", "_", own.upper()).strip("_")
    return f"RETRY_{word[:MAX_NAME_LENGTH] or 'CALL'}"


def check_category(category: object) -> str:
    """Return a category that is valid in an event; raise `UsageError` for any other value."""
    if not isinstance(category, str) or not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", category):
        raise UsageError(f"category is {category!r}; it takes 1 to 100 letters, digits and _ . : -")
    return str.__str__(category)


def make_step_listener(on_event: Callable[[AuditEvent], object]) -> Callable[[ProcessEvent], object]:
    """Return the listener of an engine that passes some events of the process on as audit events."""

    def publish_event(event: ProcessEvent) -> None:
        convert = _CONVERTERS.get(type(event))
        audit_event = None if convert is None else convert(event)
        if audit_event is not None:
            on_event(audit_event)

    return publish_event


def _convert_store_size(event: StoreSizeExceeded) -> AuditEvent:
    return StoreSize(
        retry_category="STORE",
        operation=event.what,
        size_bytes=event.size_bytes,
        limit_bytes=event.limit_bytes,
        advice=event.advice,
        tenant_id=None,
        correlation_id=None,
        trace_id=current_trace_id(),
        timestamp=format_rfc3339(clocks.current.wall()),
    )


def _convert_breaker(event: BreakerChanged) -> AuditEvent | None:
    # A probe that was given back changes nothing about the provider.
    if event.change == "circuit_probe_released":
        return None
    is_open = event.state != "CLOSED"
    return CircuitChanged(
        retry_category="BREAKER",
        operation=event.provider,
        what=event.change,
        state=event.state,
        circuit_open=is_open,
        failures=event.failures,
        opens=event.open_count,
        error_class=event.error_code,
        until=format_rfc3339(event.until) if is_open else None,
        tenant_id=None,
        correlation_id=None,
        trace_id=current_trace_id(),
        timestamp=format_rfc3339(clocks.current.wall()),
    )


def _convert_drift(event: ConfigDrifted) -> AuditEvent:
    return ConfigDrift(
        retry_category="STEP",
        operation=event.step,
        idempotency_key=event.key,
        stored_cfg_hash=event.stored_cfg_hash,
        tenant_id=event.tenant or None,
        correlation_id=event.correlation_id or None,
        trace_id=current_trace_id(),
        timestamp=format_rfc3339(clocks.current.wall()),
        policy=event.policy or None,
    )


#: The audit event of an event of the process; all others are not passed on.
_CONVERTERS: dict[type, Callable[[Any], AuditEvent | None]] = {
    StoreSizeExceeded: _convert_store_size,
    BreakerChanged: _convert_breaker,
    ConfigDrifted: _convert_drift,
}
