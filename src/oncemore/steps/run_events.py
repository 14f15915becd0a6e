"""Build the events of a stored change of a run. Pure: nothing here reads or writes.

The events follow from the record before the change, the record after it, and the body of its entry, so that
every kind of change is reported, whichever script made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    RunCompleted,
    RunDeferred,
    RunFailed,
    RunHeld,
    RunParked,
    RunReleased,
    RunStarted,
    RunSubmitted,
    RunTakenOver,
)
from oncemore.log.record import RunRecord
from oncemore.policy.closing import LEASE_EXPIRED
from oncemore.steps.refusals import LOST

if TYPE_CHECKING:
    from oncemore.events import RunEvent
    from oncemore.log.record import RecordChange

    #: The fields that all events of a run begin with.
    CommonFields = tuple[Any, ...]

_NO_RUN = RunRecord()


def list_run_events(
    entity: str, change: RecordChange, now: float, *, shows_text: bool = True
) -> list[RunEvent]:
    """Return the events of a stored change, in the order in which they happened.

    shows_text  whether events may hold the redacted text of an error; not where the store encrypts it
    """
    run, before = change.after, change.before
    if type(run) is not RunRecord:
        return []
    common = (
        *(run.step, entity[4:], run.run_id, run.attempt_count, run.max_attempts),
        *(run.tenant, run.correlation_id, run.provider, run.policy, now),
    )
    is_same_run = type(before) is RunRecord and before.run_id == run.run_id
    last: Any = before if is_same_run else _NO_RUN
    if "INTENT" in change.marks:
        started = make(AttemptStarted, common)
        return [started] if last.started_at else [make(RunStarted, common), started]
    if run.state == "RUNNING" or (last.state == run.state and last.state in ("COMPLETE", "HARD_FAIL")):
        return []
    body = change.body
    if run.state == "COMPLETE":
        duration, whole = body.get("duration_s", 0.0), max(0.0, now - run.created_at)
        return [make(RunCompleted, (*common, run.reason, duration, whole))]
    error = _read_error(body, shows_text)
    ended = _end_of_attempt(common, change, last, error, now) if last.state == "RUNNING" else []
    return [*ended, *_state_events(common, change, last, error, now)]


def _end_of_attempt(
    common: CommonFields, change: RecordChange, last: RunRecord, error: tuple[str, ...], now: float
) -> list[RunEvent]:
    """Return the event of an attempt that ended without success."""
    run, body = change.after, change.body
    assert type(run) is RunRecord
    # An attempt that was lost or released does not count any more: its number is the one that it had.
    common = (*common[:3], last.attempt_count, *common[4:])
    if run.state == "PENDING":
        return [make(RunParked, (*common, run.reason, max(0.0, run.not_before - now)))]
    proof = body.get("proof", {})
    inputs = proof.get("inputs", {})
    event = "" if "DECISION" in change.marks else inputs.get("event", "")
    if event == LEASE_EXPIRED:
        return [make(RunTakenOver, (*common, last.worker, run.crash_count, run.max_crashes))]
    if event in LOST:
        return [make(AttemptInterrupted, (*common, event))]
    action = proof.get("action", "stop")
    # As it was decided: a part of it has passed while the decision was stored.
    delay = max(0.0, run.not_before - inputs.get("now", now)) if action in ("retry", "defer") else 0.0
    duration = max(0.0, now - last.started_at) if "duration_s" not in body else body["duration_s"]
    return [make(AttemptFailed, (*common, action, run.reason, delay, *error, duration))]


def _state_events(
    common: CommonFields, change: RecordChange, last: RunRecord, error: tuple[str, ...], now: float
) -> list[RunEvent]:
    """Return the event of the state that a run is in after a change: failed, held, or waiting."""
    run = change.after
    assert type(run) is RunRecord
    kind, code, _, message = error
    if run.state == "HARD_FAIL":
        whole = max(0.0, now - run.created_at)
        return [make(RunFailed, (*common, run.reason, kind, code, message, whole))]
    if run.held_for:
        is_new = run.held_for != last.held_for
        return [make(RunHeld, (*common, run.held_for, kind, code, message))] if is_new else []
    if last.held_for:
        return [make(RunReleased, (*common, last.held_for))]
    if change.marks == ("PENDING",):
        return [make(RunSubmitted, (*common, run.not_before))]
    if last.state != "RUNNING" and run.not_before > now and run.not_before != last.not_before:
        return [make(RunDeferred, (*common, run.reason, run.not_before - now))]
    return []


def _read_error(body: Any, shows_text: bool) -> tuple[str, str, str, str]:
    """Return class, code, kind and text of the error in the body of an entry; empty texts without one."""
    error = body.get("error") or body.get("last_error") or {}
    message = str(error.get("message", "")) if shows_text else ""
    return error.get("type", ""), error.get("code", ""), error.get("kind", ""), message
