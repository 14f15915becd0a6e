"""Reports of failed attempts: for hooks, for the log, and as a note and a decision on the error itself."""

from __future__ import annotations

import sys
import time

from oncemore import _listeners
from oncemore._values import Value
from oncemore.policy.explain import decision_sentence, format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.policy.decide import Decision

MOST_NOTES = 8
MOST_CAUSES = 32


class RetryReport(Value):
    """One failed attempt and the decision about it, as passed to the hooks."""

    name: str
    number: int
    attempts: int
    error: Exception | None
    value: object
    decision: Decision
    waited_s: float

    @property
    def delay_s(self) -> float:
        """Seconds until the next attempt."""
        return self.decision.delay_s

    def explain(self) -> str:
        """Return a paragraph that explains the decision."""
        return self.decision.explain()


def attach_decision(error: BaseException, decision: Decision) -> None:
    """Store the decision on the error."""
    # Through __dict__, because a frozen exception class refuses __setattr__.
    error.__dict__["__oncemore__"] = decision


def get_decision(error: BaseException) -> Decision | None:
    """Return the last decision about an error that `retry` raised, or None.

    Follows the causes of the error, so that it works for an error that wraps it.
    """
    current: BaseException | None = error
    # Bounded, because a chain of causes may be a cycle.
    for _ in range(MOST_CAUSES):
        if current is None:
            break
        decision = current.__dict__.get("__oncemore__")
        if decision is not None:
            return decision  # type: ignore[no-any-return]
        current = current.__cause__ or current.__context__
    return None


def add_error_note(error: BaseException, report: RetryReport) -> None:
    """Add a note for the traceback: the attempts, the reason of the end and the time to try again."""
    text = f"oncemore: {report.name}: {decision_sentence(report.decision)}"
    if report.waited_s:
        text += f" Waited {format_seconds(report.waited_s)} in all."
    if report.decision.not_before is not None and report.decision.reason != "wait_beyond_deadline":
        text += f" Worth trying again from {format_utc(report.decision.not_before)}."
    # One exception object may be raised by many calls: its notes must not grow without bound.
    notes = error.__dict__.setdefault("__notes__", [])
    if len(notes) < MOST_NOTES:
        notes.append(text)


def format_utc(posix: float) -> str:
    """Return a time as ISO 8601 in UTC; as a number if it is out of the calendar's range."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(posix))
    except (OverflowError, ValueError, OSError):
        return f"{posix:g}"


_logger: Any = None


def is_logged() -> bool:
    """Whether a log record of `oncemore.retry` would reach a handler.

    A program that has not imported `logging`, or has no handler, does not pay for log records.
    """
    global _logger
    if _logger is None:
        logging = sys.modules.get("logging")
        if logging is None:
            return False
        _logger = logging.getLogger("oncemore.retry")
    if not (_logger.handlers or _logger.parent.handlers or _logger.root.handlers):
        # The usual case, at half the cost of hasHandlers().
        return False
    return _logger.hasHandlers() and _logger.isEnabledFor(_WARNING)  # type: ignore[no-any-return]


_WARNING = 30  # logging.WARNING, without importing it


def log_report(report: RetryReport) -> None:
    """Log a warning with the logger `oncemore.retry`.

    The text of an exception may hold secrets (a URL, a token), so the record has its class only.
    """
    if is_logged():
        _logger.warning("%s: %s", report.name, decision_sentence(report.decision), extra=log_fields(report))


def publish_report(report: RetryReport) -> None:
    """Call the listeners of the process with the failed attempt, if there are any."""
    if not _listeners.listeners:
        return
    # Imported here: a program without listeners does not pay for the classes of the events.
    from oncemore._redact import error_class_name, masked_message
    from oncemore.events import AttemptFailed

    decision, failure = report.decision, report.decision.situation.failure
    _listeners.publish_event(
        AttemptFailed(
            step=report.name,
            key="",
            run_id="",
            attempt=report.number,
            max_attempts=report.attempts,
            tenant="",
            correlation_id="",
            provider="",
            policy=decision.policy.name,
            at=decision.situation.now,
            action=decision.action,
            reason=decision.reason,
            delay_s=decision.delay_s,
            # A value that `until` refuses is a failure without an exception.
            error_type="" if report.error is None else error_class_name(report.error),
            error_code=failure.code,
            error_kind=failure.kind,
            error_message=masked_message(report.error),
            duration_s=0.0,
        )
    )


def log_fields(report: RetryReport) -> dict[str, object]:
    """Return the extra fields of a log record, each with the prefix `oncemore_`."""
    failure = report.decision.situation.failure
    return {
        "oncemore_name": report.name,
        "oncemore_attempt": report.number,
        "oncemore_max_attempts": report.attempts,
        "oncemore_action": report.decision.action,
        "oncemore_reason": report.decision.reason,
        "oncemore_delay_s": report.decision.delay_s,
        "oncemore_waited_s": report.waited_s,
        "oncemore_error_class": failure.code,
        "oncemore_kind": failure.kind,
        "oncemore_rule": failure.rule,
        "oncemore_exception": "" if report.error is None else type(report.error).__qualname__,
        "oncemore_policy": report.decision.policy.name,
        "oncemore_policy_version": report.decision.policy.version,
    }
