"""Log the events of runs with the logger `oncemore.steps`.

    WARNING   a failed attempt with the next one, a failed run, a held run, a take-over
    INFO      a run that waits or was released, an interrupted attempt
    DEBUG     everything else: a submission, the start of an attempt, a completed run

Each record has the fields of its event as attributes with the prefix `oncemore_`; the names are those of the
logger `oncemore.retry`. Texts of errors are redacted. No handler is added: the program decides about that.
In a program without any handler Python prints warnings to standard error, so that a failing step is not
silent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from oncemore import events
from oncemore.policy.explain import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.events import RunEvent

logger = logging.getLogger("oncemore.steps")
_NO_OUTPUT = logging.NullHandler()

#: The longest text of an error in a line; the field `oncemore_error` has it whole.
MAX_ERROR_CHARS = 200
#: Fields of events that the logger `oncemore.retry` has under another name.
_FIELD_NAMES = {
    "error_code": "error_class",
    "error_type": "exception",
    "error_kind": "kind",
    "error_message": "error",
}


def _describe_error(event: Any) -> str:
    """Return class, text and code of an error for a sentence."""
    text = event.error_type or "an error"
    if event.error_message:
        short = event.error_message[:MAX_ERROR_CHARS]
        text += f": {short}{'…' if short != event.error_message else ''}"
    return f"{text} ({event.error_code})" if event.error_code else text


def _describe_attempt(event: Any) -> str:
    return f"attempt {event.attempt} of {event.max_attempts}"


def _describe_position(event: Any) -> str:
    return f"after {_describe_attempt(event)}" if event.attempt else "before its first attempt"


def _describe_wait(event: Any) -> str:
    # Minutes are shown with whole seconds: 599.9 s is ten minutes.
    return format_seconds(round(event.delay_s) if event.delay_s >= 60 else event.delay_s)


def _describe_failure(event: Any) -> str:
    text = f"{_describe_attempt(event)} failed with {_describe_error(event)}"
    if event.action in ("retry", "defer"):
        return f"{text}; next attempt in {_describe_wait(event)}"
    return f"{text}; no further attempt: {event.reason}"


#: Level and sentence of each event. There is no default: a new event needs a row.
_LINES: dict[type, tuple[int, Callable[[Any], str]]] = {
    events.RunSubmitted: (logging.DEBUG, lambda event: "submitted for a worker"),
    events.RunStarted: (logging.DEBUG, lambda event: "started"),
    events.AttemptStarted: (logging.DEBUG, lambda event: f"{_describe_attempt(event)} started"),
    events.AttemptFailed: (logging.WARNING, _describe_failure),
    events.AttemptInterrupted: (
        logging.INFO,
        lambda event: f"{_describe_attempt(event)} was ended from outside: {event.reason}",
    ),
    events.RunTakenOver: (
        logging.WARNING,
        lambda event: (
            f"taken over from worker {event.worker}, which is gone; "
            f"{_describe_attempt(event)} is lost with it"
            + (f", crash {event.crash_count} of {event.max_crashes}" if event.max_crashes else "")
        ),
    ),
    events.RunDeferred: (
        logging.INFO,
        lambda event: f"waits {_describe_wait(event)} for its next attempt: {event.reason}",
    ),
    events.RunParked: (
        logging.DEBUG,
        lambda event: f"parked for at most {_describe_wait(event)}: {event.reason}",
    ),
    events.RunHeld: (
        logging.WARNING,
        lambda event: (
            f"held for an operator {_describe_position(event)}: {event.held_for}"
            + (f", {_describe_error(event)}" if event.error_type else "")
            + "; oncemore quarantine list shows it"
        ),
    ),
    events.RunReleased: (logging.INFO, lambda event: f"released by an operator, was held: {event.held_for}"),
    events.RunFailed: (
        logging.WARNING,
        lambda event: (
            f"failed {_describe_position(event)}, no further attempt: {event.reason}"
            + (f", {_describe_error(event)}" if event.error_type else "")
        ),
    ),
    events.RunCompleted: (
        logging.DEBUG,
        lambda event: (
            f"completed with {_describe_attempt(event)} in {format_seconds(event.attempt_duration_s)}"
        ),
    ),
}


#: Events that are logged at DEBUG: those of every run that succeeds at once.
QUIET_EVENTS = frozenset(kind for kind, (level, _) in _LINES.items() if level == logging.DEBUG)


def describe_event(event: RunEvent) -> tuple[int, str]:
    """Return the level and the sentence of an event."""
    level, describe = _LINES[type(event)]
    return level, describe(event)


def log_event(event: RunEvent) -> None:
    """Log an event of a run, if its level is enabled."""
    level, describe = _LINES[type(event)]
    # The run's own event follows, with the same error: one line is enough.
    if type(event) is events.AttemptFailed and event.action not in ("retry", "defer"):
        level = logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(level, "%s (%s): %s", event.step, event.key[:12], describe(event), extra=log_fields(event))


def keep_off_stderr() -> None:
    """Let Python not print these records where the program has no handler: a command prints its own text."""
    logger.addHandler(_NO_OUTPUT)


def log_fields(event: RunEvent) -> dict[str, object]:
    """Return the fields of an event as attributes of a log record, each with the prefix `oncemore_`."""
    fields = {f"oncemore_{_FIELD_NAMES.get(name, name)}": value for name, value in event._asdict().items()}
    return {"oncemore_event": type(event).__name__, **fields}
