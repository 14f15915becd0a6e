"""Reports the events of runs to Sentry: breadcrumbs of attempts and waits, and one event per failed run.

    AttemptStarted, AttemptFailed, RunDeferred, …   a breadcrumb
    RunFailed, RunHeld                              an event, with the breadcrumbs before it

An exception that is retried is never sent, because it is handled. A failed run is sent after the failure is
stored, also if the program catches its error; the error of the same run that the SDK finds uncaught later is
dropped, so that a failure is one event. Texts of errors are redacted as in the log; the text of the exception
itself is not.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger, unignore_logger

from oncemore import events
from oncemore._listeners import add_listener
from oncemore.errors import Error
from oncemore.steps.step_log import describe_event, logger

if TYPE_CHECKING:
    from typing import Self

    from oncemore._listeners import EventSubscription

#: The number of reported runs that are remembered, to recognise their errors.
MAX_REPORTED_RUNS = 1000
#: The deepest chain of causes that is searched for an error of ours.
MAX_CHAIN = 20
#: The events that become breadcrumbs. The start of a run is left out: its first attempt says the same.
BREADCRUMB_EVENTS = frozenset(
    (events.RunSubmitted, events.AttemptStarted, events.AttemptFailed, events.AttemptInterrupted,
     events.RunDeferred, events.RunParked, events.RunTakenOver, events.RunReleased, events.RunCompleted)
)  # fmt: skip
FAILURE_EVENTS = frozenset((events.RunFailed, events.RunHeld))
_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}
_TAGS = ("step", "run_id", "policy", "provider", "tenant")


class SentryReport:
    """Sends the events of this process to Sentry until `disable()`, or until the end of a `with` block."""

    def __init__(self) -> None:
        self._reported: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()
        self._subscription: EventSubscription | None = None

    def enable(self) -> None:
        """Begin to report."""
        # Its records say the same as the breadcrumbs; the SDK would add them a second time.
        ignore_logger(logger.name)
        self._subscription = add_listener(self._report_event, BREADCRUMB_EVENTS | FAILURE_EVENTS)

    def disable(self) -> None:
        """Stop reporting; a second call does nothing."""
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None
            unignore_logger(logger.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.disable()

    def _report_event(self, event: Any) -> None:
        level, text = describe_event(event)
        if type(event) in FAILURE_EVENTS:
            self._remember_run(event.run_id)
            sentry_sdk.capture_event(build_sentry_event(event, text))  # type: ignore[arg-type]
        else:
            sentry_sdk.add_breadcrumb(
                category="oncemore", message=f"{event.step}: {text}", level=_LEVELS[level],
                data={"run_id": event.run_id, "attempt": event.attempt, "key": event.key},
            )  # fmt: skip

    def _remember_run(self, run_id: str) -> None:
        with self._lock:
            self._reported[run_id] = None
            if len(self._reported) > MAX_REPORTED_RUNS:
                self._reported.popitem(last=False)

    def filter_exception(self, sentry_event: Any, hint: Any) -> Any:
        """Return an event of the SDK, tagged with its run; None for a run that was reported."""
        if self._subscription is None:
            return sentry_event
        run_id = find_run_id((hint or {}).get("exc_info"))
        if run_id and run_id in self._reported:
            return None
        if run_id:
            sentry_event.setdefault("tags", {})["oncemore.run_id"] = run_id
        return sentry_event


def find_run_id(exc_info: Any) -> str:
    """Return the run of the first error of ours in a chain of causes, or an empty string."""
    error = exc_info[1] if exc_info else None
    for _ in range(MAX_CHAIN):
        if error is None:
            return ""
        if isinstance(error, Error) and error.run is not None:
            return str(getattr(error.run, "run_id", ""))
        error = error.__cause__ or error.__context__
    return ""


def build_sentry_event(event: Any, text: str) -> dict[str, Any]:
    """Return the Sentry event of a failed or held run."""
    is_held = type(event) is events.RunHeld
    reason = event.held_for if is_held else event.reason
    tags = {f"oncemore.{name}": getattr(event, name) for name in _TAGS}
    tags |= {"oncemore.reason": reason, "oncemore.error_code": event.error_code}
    sentry_event: dict[str, Any] = {
        "level": "warning" if is_held else "error",
        "logger": "oncemore",
        "tags": {name: value for name, value in tags.items() if value},
        "contexts": {
            "oncemore": {
                "key": event.key, "attempt": event.attempt, "max_attempts": event.max_attempts,
                "correlation_id": event.correlation_id, "reason": reason,
            }
        },
        # All failures of a step for the same reason are one issue, with any text.
        "fingerprint": ["oncemore", event.step, event.error_type, reason],
        "transaction": event.step,
    }  # fmt: skip
    if event.error_type:
        # As an exception, so that Sentry shows its type as the title.
        mechanism = {"type": "oncemore", "handled": True}
        value = event.error_message or text
        sentry_event["exception"] = {
            "values": [{"type": event.error_type, "value": value, "mechanism": mechanism}]
        }
    else:
        sentry_event["logentry"] = {"message": f"{event.step}: {text}"}
    return sentry_event


_report = SentryReport()
_lock = Lock()
_has_processor = False


def enable_report() -> SentryReport:
    """Return the report of this process, enabled."""
    global _has_processor
    with _lock:
        if not _has_processor:
            _has_processor = True
            sentry_sdk.get_global_scope().add_event_processor(
                lambda sentry_event, hint: _report.filter_exception(sentry_event, hint)
            )
        _report.disable()
        _report.enable()
    return _report
