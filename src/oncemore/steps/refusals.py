"""Build the errors of durable calls: each message names the event, the key and the next step.

The functions return the error instead of raising it: the script of a call ends with it (`EndCall`), and the
caller of the script raises it with the run attached.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from oncemore.control.model import ALL_EXECUTION, APPROVAL_NEEDED, LOG_MOVED, PIPELINE, SWITCHES_UNKNOWN
from oncemore.errors import (
    Cancelled,
    ConfigChanged,
    CoolingDown,
    DeadlineExceeded,
    Deferred,
    InProgress,
    KeyConflict,
    KeyExpired,
    LeaseLost,
    NotPermitted,
    OutcomeUnknown,
    PermanentFailure,
    Quarantined,
    ResultUnavailable,
    RetriesExhausted,
    UsageError,
)
from oncemore.policy.closing import POISON, describe_spent_budget
from oncemore.policy.explain import format_seconds
from oncemore.workflows.journal import NEVER

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import Permission
    from oncemore.steps.plan import StepPlan

# Error records of this module are stored in the log, where golden files and older readers expect them: these
# texts stay as they are.
#: The error record of an attempt without an outcome, by reason.
LOST: Final[dict[str, dict[str, Any]]] = {
    "lease_expired": {
        "type": "LeaseExpired",
        "code": "LEASE_EXPIRED",
        "message": "the worker that had it is gone",
    },
    "interrupted": {
        "type": "Interrupted",
        "code": "INTERRUPTED",
        "message": "it was cut off from outside: Ctrl-C, cancellation or the end of the program",
    },
    "released": {
        "type": "Released",
        "code": "RELEASED",
        "message": "it was cut off before the function's first line",
    },
}
CANCELLED: Final = {
    "type": "Cancelled",
    "code": "CANCELLED",
    "message": "somebody asked that no further attempt begin",
}
UNAPPROVED: Final = {"type": "ApprovalNeeded", "code": "APPROVAL_NEEDED"}
TOO_LATE: Final = {"type": "DeadlineExceeded", "code": "DEADLINE", "message": "its deadline has passed"}


def out_of_time(run: RunRecord, now: float) -> dict[str, Any]:
    """Return the error record of a run whose next attempt could not end before its deadline."""
    left = run.deadline - now
    # A run with some time left ends as well: an attempt that is cut off in the middle would waste it.
    if left <= 0:
        return TOO_LATE
    text = (
        f"only {format_seconds(left)} are left, and an attempt is expected to take "
        f"{format_seconds(run.expected_duration_s)}"
    )
    return {**TOO_LATE, "message": text}


def _describe_key(plan: StepPlan, entity: str) -> str:
    return f"{plan.name}: key {entity.removeprefix('run/')[:12]}"


def deadline_exceeded(plan: StepPlan, call: PreparedCall) -> Exception:
    """Return the error for a call whose deadline has passed before its first attempt."""
    return DeadlineExceeded(f"{_describe_key(plan, call.entity)} was not begun: its deadline has passed")


def key_conflict(plan: StepPlan, call: PreparedCall) -> Exception:
    """Return the error for a key that belongs to a call with other arguments."""
    return KeyConflict(
        f"{_describe_key(plan, call.entity)} belongs to a call with other arguments; give this work another "
        "key, or leave the arguments that may differ out of the key with ignore="
    )


def key_expired(plan: StepPlan, call: PreparedCall, run: RunRecord) -> Exception:
    """Return the error for a finished run whose result was pruned or erased."""
    action = "erased" if run.reason == "erased" else "pruned"
    return KeyExpired(
        f"{_describe_key(plan, call.entity)} ended as {run.state} and its record was {action}; it is not run "
        "a second time; new work needs a new key"
    )


def config_changed(plan: StepPlan, call: PreparedCall) -> Exception:
    """Return the error for a stored result of another version or config."""
    return ConfigChanged(
        f"{_describe_key(plan, call.entity)} has a result of another version or config, and "
        "on_version_change is 'fail'; choose 'reuse' or 'new'"
    )


def in_progress(plan: StepPlan, head: LoadedHead, until: float) -> Exception:
    """Return the error for a run that another worker holds."""
    worker = head.record.worker
    return InProgress(
        f"{_describe_key(plan, head.entity)} is being worked on by {worker}, whose lease lasts until "
        f"{until:.0f}; call again later",
        worker,
        until,
    )


def run_deferred(plan: StepPlan, call: PreparedCall, run: RunRecord, wait: float) -> Exception:
    """Return the error for a run that is due later than its caller waits."""
    reason = run.reason or "not yet due"
    if run.not_before >= NEVER:
        return Deferred(
            f"{_describe_key(plan, call.entity)} is {reason}; a worker or a later call goes on after it",
            run.not_before,
        )
    return Deferred(
        f"{_describe_key(plan, call.entity)} is parked for {wait:.0f} s ({reason}); a worker or a later call "
        "goes on",
        run.not_before,
    )


def queue_full(plan: StepPlan, call: PreparedCall, now: float) -> Exception:
    """Return the error for a run whose queue has no free slot for longer than its caller waits."""
    assert plan.queue is not None
    return Deferred(
        f"{_describe_key(plan, call.entity)} waits for the queue {plan.queue.name!r}, which runs "
        f"{plan.queue.concurrency} at once; a worker or a later call goes on",
        now,
    )


def switch_blocked(plan: StepPlan, call: PreparedCall, permit: Permission) -> Exception:
    """Return the error for an attempt that a switch or an unreadable control state stops."""
    return describe_block(_describe_key(plan, call.entity), permit)


def describe_block(subject: str, permit: Permission) -> Exception:
    """Return the error for work that a switch or an unreadable control state stops.

    subject  the stopped work, as the beginning of the message
    """
    if permit.stop == SWITCHES_UNKNOWN:
        cause = permit.error
        error = NotPermitted(
            f"{subject} was not begun ({SWITCHES_UNKNOWN}): the switches cannot be read "
            f"({type(cause).__name__}: {cause}), and no attempt begins without them; call again when they "
            "can be read",
            SWITCHES_UNKNOWN,
        )
        error.__cause__ = cause
        return error
    if permit.stop == LOG_MOVED:
        return NotPermitted(
            f"{subject} was not begun: this log has moved to {permit.name}; open that one instead", LOG_MOVED
        )
    details = permit.details
    option = "" if permit.name == ALL_EXECUTION else f" --{permit.name.replace(':', ' ', 1)}"
    actor = f" by {details['by']}" if details.get("by") else ""
    reason = f": {details['reason']}" if details.get("reason") else ""
    if permit.name.startswith(PIPELINE):
        pipeline = permit.name.removeprefix(PIPELINE)
        return NotPermitted(
            f"{subject} was not begun: pipeline {pipeline} is halted{actor}{reason}; look at what failed "
            f"(oncemore quarantine list), then release the pipeline: "
            f"oncemore control switch off{option} --reason …",
            permit.stop,
        )
    # A switch of an external source cannot be released with our command: the message names its source.
    is_external = "kept_in" in details
    place = f"in {details['kept_in']}" if is_external else f"(oncemore control switch off{option} --reason …)"
    return NotPermitted(
        f"{subject} was not begun: the switch {permit.name} was thrown{actor}{reason}; it goes on when that "
        f"is released {place}",
        permit.stop,
    )


def approval_missing(plan: StepPlan, call: PreparedCall, run: RunRecord, objection: str) -> Exception:
    """Return the error for an attempt that is not approved."""
    return NotPermitted(
        f"{_describe_key(plan, call.entity)} waits for an approval: {objection}; look at it and approve it: "
        f"oncemore control approve {run.run_id} --reason …",
        APPROVAL_NEEDED,
    )


_SKIPPED: Final[dict[str, str]] = {
    "SKIPPED_DUPLICATE": "it exists already, and is valid",
    "SKIPPED_QUARANTINED": "it is in quarantine; release it: oncemore limits cooldowns release {}",
    "SKIPPED_TERMINAL": "it failed permanently; release it: oncemore limits cooldowns release {}",
    "SKIPPED_BACKOFF": "it failed before, and is not requested until {}; call again then",
}


def resource_cooling_down(step: str, resource: str, reason: str, until: float) -> CoolingDown:
    """Return the error for a resource in its cooldown."""
    text = _SKIPPED[reason].format(format_utc(until) if until else resource)
    return CoolingDown(f"{step}: {resource} was not asked for ({reason}): {text}", reason, resource, until)


def resource_deferred(step: str, resource: str, until: float) -> Deferred:
    """Return the error for a provider that asks for a longer wait than the policy allows."""
    return Deferred(
        f"{step}: {resource} asks for no request before {format_utc(until)}; a worker or a later call goes "
        "on",
        until,
    )


def format_utc(moment: float) -> str:
    """Return a moment as text: UTC, in seconds, rounded up."""
    # Rounded down, the text would send callers back before the cooldown has ended.
    whole = datetime.fromtimestamp(ceil(moment), UTC)
    return whole.strftime("%Y-%m-%d %H:%M:%SZ")


def run_held(plan: StepPlan, head: LoadedHead, error: Exception | None = None) -> Exception:
    """Return the error for a run that waits for an operator: its outcome is unknown, or it is quarantined."""
    subject, run = _describe_key(plan, head.entity), head.record
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(
            f"{subject}: attempt {run.attempt} may have taken effect ({run.reason}), "
            "and a step declared once is never repeated blindly; look whether it did, then settle it "
            "(step.settle, or a reconcile= function)"
        )
    text = _describe_record((head.body or {}).get("error") or {})
    if run.held_for == POISON:
        text = f"{describe_spent_budget(run)}, so the work may be what ends its workers"
    held = Quarantined(
        f"{subject} is in quarantine ({run.held_for}){f': {text}' if text else ''}; a person decides: "
        f"oncemore quarantine show {run.run_id}"
    )
    held.__cause__ = error
    return held


def review_missing(plan: StepPlan, head: LoadedHead, escalation: str) -> Exception:
    """Return the error for a failed run of sensitive data that no person has reviewed yet (GOV-11)."""
    return Quarantined(
        f"{_describe_key(plan, head.entity)} failed on sensitive data (dataset {head.record.dataset}), and "
        f"is not run again before a person has decided: oncemore escalations ack {escalation} --reason …"
    )


def _describe_record(record: dict[str, Any]) -> str:
    """Return type and message of an error record; empty if the record has neither."""
    return f"{record.get('type', '')}: {record.get('message', '')}".strip(": ")


def lease_lost(plan: StepPlan, head: LoadedHead) -> Exception:
    """Return the error for an attempt that took effect after another worker had taken its run over."""
    return LeaseLost(
        f"{_describe_key(plan, head.entity)}: attempt {head.record.attempt} took effect, but another worker "
        "had taken over before its result could be written; the last run of the key has the recorded outcome"
    )


def result_not_encodable(
    plan: StepPlan, head: LoadedHead, fault: Exception, value: object
) -> ResultUnavailable:
    """Return the error for a value that cannot be encoded; it carries the value for its caller."""
    # A pure step has no effect: without its result, nothing is done.
    done = "its result cannot be stored" if plan.effect == "pure" else "done, but its result cannot be stored"
    # The redacted message: this text is stored too, and the original one may quote the value.
    message = plan.describe(fault, None).get("message", "")
    error = ResultUnavailable(f"{_describe_key(plan, head.entity)}: {done}: {message}", value)
    error.__cause__ = fault
    return error


def result_unavailable(plan: StepPlan, head: LoadedHead, message: str) -> Exception:
    """Return the error for a finished run whose value could not be stored; `message` is the recorded text."""
    return ResultUnavailable(
        message or f"{_describe_key(plan, head.entity)}: done, but its result was not stored"
    )


def artifact_altered(plan: StepPlan, head: LoadedHead, fault: Exception) -> Exception:
    """Return the error for a stored value that is an altered or missing artifact."""
    error = ResultUnavailable(
        f"{_describe_key(plan, head.entity)}: done, but its value cannot be read: {fault}"
    )
    error.__cause__ = fault
    return error


def run_failed(
    plan: StepPlan, head: LoadedHead, error: Exception | None, record: dict[str, Any] | None
) -> Exception:
    """Return the error of a run that failed permanently, with the work's own error as its cause.

    error   the error itself, if this process made the attempt
    record  the stored error record, if it was read from another entry than the last
    """
    record = record or (head.body or {}).get("error") or (plan.describe(error, None) if error else {})
    failure = failure_of(_describe_key(plan, head.entity), head.record, record)
    failure.__cause__ = error
    # The value that `until=` did not accept, for the caller of the last attempt.
    if isinstance(failure, RetriesExhausted) and error is not None:
        failure.value = getattr(error, "value", None)
    return failure


def failure_of(subject: str, run: RunRecord, record: dict[str, Any]) -> Exception:
    """Return the error of a run that failed permanently, from its stored error record.

    subject  the step and the key, for the message
    """
    # An attempt that was cut off at the end of the run's total time is not a failure of the work.
    is_timeout = record.get("code") == TOO_LATE["code"]
    kind = DeadlineExceeded if is_timeout else _KINDS.get(run.reason, PermanentFailure)
    count = f"{run.attempt_count} attempt{'s' if run.attempt_count != 1 else ''}"
    if run.reason == "cancelled":
        return Cancelled(
            f"{subject} was cancelled after {count}: {record.get('message', '')}; "
            "step.rerun(…, reason=…) begins a new run"
        )
    text, details = f"{subject} failed after {count} ({run.reason})", _describe_record(record)
    error: Exception = kind(f"{text}: {details}" if details else text)
    return error


#: The error class of a failed run, by its reason; `PermanentFailure` for every other reason.
_KINDS: Final[dict[str, Any]] = {
    "max_attempts_exceeded": RetriesExhausted,
    "retry_budget_empty": RetriesExhausted,
    "deadline_passed": DeadlineExceeded,
    "wait_beyond_deadline": DeadlineExceeded,
    "retry_after_beyond_deadline": DeadlineExceeded,
}


def cannot_reopen(plan: StepPlan, call: PreparedCall, run: RunRecord | None) -> Exception | None:
    """Return the error for a run that cannot begin again; None if it can."""
    subject = _describe_key(plan, call.entity)
    if run is None:
        return UsageError(f"{subject} was never run; call the step itself")
    # Only a pure step may repeat work that is done: it has no effect to apply twice.
    if run.state == "COMPLETE" and plan.effect != "pure":
        return UsageError(f"{subject} is done; running it again would apply it twice")
    if run.state == "RUNNING":
        return InProgress(f"{subject} is being worked on by {run.worker}", run.worker)
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(f"{subject} may have taken effect; settle that first (step.settle)")
    if run.held_for:
        return Quarantined(
            f"{subject} is in quarantine ({run.held_for}); decide there: engine.quarantine.rerun, or release"
        )
    if run.state in ("PENDING", "SOFT_FAIL"):
        return UsageError(f"{subject} is not over yet; call the step itself, it goes on")
    if run.pruned_at:
        return key_expired(plan, call, run)
    return None


def cannot_cancel(plan: StepPlan, call: PreparedCall, run: RunRecord | None) -> Exception | None:
    """Return the error for a run that cannot be cancelled; None if it can, or is cancelled already."""
    subject = _describe_key(plan, call.entity)
    if run is None:
        return UsageError(f"{subject} was never called or submitted; there is nothing to cancel")
    if run.state == "COMPLETE":
        return UsageError(f"{subject} is done; finished work cannot be cancelled")
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(f"{subject} may have taken effect; settle that first (step.settle)")
    # A quarantined run is decided where its evidence is shown, and not past it.
    if run.held_for:
        return Quarantined(f"{subject} is in quarantine ({run.held_for}); engine.quarantine.reject ends it")
    if run.state == "HARD_FAIL" and not run.cancelled_at:
        return UsageError(f"{subject} has failed already ({run.reason}); there is nothing to cancel")
    return None


def nothing_to_settle(plan: StepPlan, call: PreparedCall) -> Exception:
    """Return the error for a run without an unknown outcome."""
    return UsageError(
        f"{_describe_key(plan, call.entity)} is not held; only an unknown outcome can be settled"
    )
