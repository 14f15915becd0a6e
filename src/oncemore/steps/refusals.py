"""The errors of durable calls: each message says what happened, to which key, and what to do next."""

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
from oncemore.policy.explain import format_seconds

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import Permission
    from oncemore.steps.plan import StepPlan

#: What the log says of an attempt that nobody brought to its end, by reason.
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
    """Nothing was tried: there is no time left."""
    return DeadlineExceeded(f"{_describe_key(plan, call.entity)} was not begun: its deadline has passed")


def key_conflict(plan: StepPlan, call: PreparedCall) -> Exception:
    """The key is taken."""
    return KeyConflict(
        f"{_describe_key(plan, call.entity)} belongs to a call with other arguments; give this work "
        "another key, or "
        "leave what may differ out by ignore="
    )


def key_expired(plan: StepPlan, call: PreparedCall, run: RunRecord) -> Exception:
    """It was done once, and its result is no longer kept."""
    how = "erased" if run.reason == "erased" else "pruned"
    return KeyExpired(
        f"{_describe_key(plan, call.entity)} ended as {run.state} and its record was {how}; it is not run "
        "a second "
        "time; new work needs a new key"
    )


def config_changed(plan: StepPlan, call: PreparedCall) -> Exception:
    """The stored result was made under another version or config."""
    return ConfigChanged(
        f"{_describe_key(plan, call.entity)} has a result of another version or config, and "
        "on_version_change is "
        "'fail'; choose 'reuse' or 'new'"
    )


def in_progress(plan: StepPlan, seen: LoadedHead, until: float) -> Exception:
    """Return the error for a run that another worker holds."""
    worker = seen.record.worker
    return InProgress(
        f"{_describe_key(plan, seen.entity)} is being worked on by {worker}, whose lease lasts until "
        f"{until:.0f}; "
        "call again later",
        worker,
        until,
    )


def run_deferred(plan: StepPlan, call: PreparedCall, run: RunRecord, wait: float) -> Exception:
    """It is due later than this caller waits."""
    why = run.reason or "not yet due"
    return Deferred(
        f"{_describe_key(plan, call.entity)} is parked for {wait:.0f} s ({why}); a worker or a later "
        "call goes on",
        run.not_before,
    )


def switch_blocked(plan: StepPlan, call: PreparedCall, permit: Permission) -> Exception:
    """Return the error for an attempt that a switch or an unreadable control state stops."""
    return describe_block(_describe_key(plan, call.entity), permit)


def describe_block(which: str, permit: Permission) -> Exception:
    """Describe the switch or the unreadable control state that stops the work."""
    if permit.stop == SWITCHES_UNKNOWN:
        error = permit.error
        made = NotPermitted(
            f"{which} was not begun ({SWITCHES_UNKNOWN}): whether somebody has stopped it cannot be read "
            f"({type(error).__name__}: {error}), and what is not known means no; call again when it can",
            SWITCHES_UNKNOWN,
        )
        made.__cause__ = error
        return made
    if permit.stop == LOG_MOVED:
        return NotPermitted(
            f"{which} was not begun: this log has moved to {permit.name}; open that one instead", LOG_MOVED
        )
    told, what = (
        permit.details,
        "" if permit.name == ALL_EXECUTION else f" --{permit.name.replace(':', ' ', 1)}",
    )
    who = f" by {told['by']}" if told.get("by") else ""
    why = f": {told['reason']}" if told.get("reason") else ""
    if permit.name.startswith(PIPELINE):
        pipeline = permit.name.removeprefix(PIPELINE)
        return NotPermitted(
            f"{which} was not begun: pipeline {pipeline} is halted{who}{why}; look at what failed "
            f"(oncemore quarantine list), then release the pipeline: oncemore switch off{what} --reason …",
            permit.stop,
        )
    how = f"in {told['kept_in']}" if "kept_in" in told else f"(oncemore switch off{what} --reason …)"
    return NotPermitted(
        f"{which} was not begun: the switch {permit.name} was thrown{who}{why}; it goes on when that is "
        f"released {how}",
        permit.stop,
    )


def approval_missing(plan: StepPlan, call: PreparedCall, run: RunRecord, why: str) -> Exception:
    """Return the error for an attempt that is not approved."""
    return NotPermitted(
        f"{_describe_key(plan, call.entity)} waits for an approval: {why}; look at it and approve it: "
        f"oncemore approve {run.run_id} --reason …",
        APPROVAL_NEEDED,
    )


_SKIPPED: Final[dict[str, str]] = {
    "SKIPPED_DUPLICATE": "it is there already, and valid",
    "SKIPPED_QUARANTINED": "it is in quarantine; a person lets it go: oncemore cooldowns release {}",
    "SKIPPED_TERMINAL": "it failed in a way that does not pass; a person lets it go: "
    "oncemore cooldowns release {}",
    "SKIPPED_BACKOFF": "it failed before, and is left alone until {}; call again then",
}


def resource_cooling_down(step: str, resource: str, why: str, until: float) -> CoolingDown:
    """Return the error for a resource in its cooldown."""
    told = _SKIPPED[why].format(format_utc(until) if until else resource)
    return CoolingDown(f"{step}: {resource} was not asked for ({why}): {told}", why, resource, until)


def resource_deferred(step: str, resource: str, until: float) -> Deferred:
    """Return the error for a provider that asks for a longer wait than the policy allows."""
    told = f"{step}: {resource} asks to be left alone until {format_utc(until)}"
    return Deferred(f"{told}; a worker or a later call goes on", until)


def format_utc(moment: float) -> str:
    """Return a moment for people: UTC, to the second, never earlier than it is."""
    whole = datetime.fromtimestamp(ceil(moment), UTC)
    return whole.strftime("%Y-%m-%d %H:%M:%SZ")


def run_held(plan: StepPlan, seen: LoadedHead, error: Exception | None = None) -> Exception:
    """It waits for a person: it may have happened and must not happen twice, or for another reason."""
    which, run = _describe_key(plan, seen.entity), seen.record
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(
            f"{which}: attempt {run.attempt} may have taken effect ({run.reason}), "
            "and a step declared once is never repeated blindly; look whether it did, then settle it "
            "(step.settle, or a reconcile= function)"
        )
    told = (seen.body or {}).get("error") or {}
    what = f"{told.get('type', '')}: {told.get('message', '')}".strip(": ")
    made = Quarantined(
        f"{which} is in quarantine ({run.held_for}){f': {what}' if what else ''}; a person decides: "
        f"oncemore quarantine show {run.run_id}"
    )
    made.__cause__ = error
    return made


def lease_lost(plan: StepPlan, seen: LoadedHead) -> Exception:
    """The result came too late to be written."""
    return LeaseLost(
        f"{_describe_key(plan, seen.entity)}: attempt {seen.record.attempt} took effect, but another worker "
        "had taken "
        "over before its result could be written; the key says what became of it"
    )


def result_not_encodable(
    plan: StepPlan, seen: LoadedHead, fault: Exception, value: object
) -> ResultUnavailable:
    """The value has no form that could be kept."""
    done = "its result cannot be stored" if plan.effect == "pure" else "done, but its result cannot be stored"
    why = plan.describe(fault, None).get("message", "")  # it is stored too, and may quote the value
    made = ResultUnavailable(f"{_describe_key(plan, seen.entity)}: {done}: {why}", value)
    made.__cause__ = fault
    return made


def result_unavailable(plan: StepPlan, seen: LoadedHead, told: str) -> Exception:
    """It was done before, and its value could not be kept then."""
    return ResultUnavailable(
        told or f"{_describe_key(plan, seen.entity)}: done, but its result was not stored"
    )


def artifact_altered(plan: StepPlan, seen: LoadedHead, fault: Exception) -> Exception:
    """Return the error for a stored value whose artifact was altered."""
    made = ResultUnavailable(
        f"{_describe_key(plan, seen.entity)}: done, but its value cannot be had: {fault}"
    )
    made.__cause__ = fault
    return made


def run_failed(
    plan: StepPlan, seen: LoadedHead, error: Exception | None, told: dict[str, Any] | None
) -> Exception:
    """It failed for good; the work's own error is the cause, where it is at hand."""
    told = told or (seen.body or {}).get("error") or (plan.describe(error, None) if error else {})
    made = failure_of(_describe_key(plan, seen.entity), seen.record, told)
    made.__cause__ = error
    return made


def failure_of(which: str, run: RunRecord, told: dict[str, Any]) -> Exception:
    """Return the error of a run that failed for good, from what the log says of it.

    which  the step and the key, for the message
    """
    # An attempt that was cut off at the end of the whole run's time is no failure of the work.
    kind = (
        DeadlineExceeded if told.get("code") == TOO_LATE["code"] else _KINDS.get(run.reason, PermanentFailure)
    )
    what = f"{told.get('type', '')}: {told.get('message', '')}".strip(": ")
    count = f"{run.attempt_count} attempt{'s' if run.attempt_count != 1 else ''}"
    if run.reason == "cancelled":
        return Cancelled(
            f"{which} was cancelled after {count}: {told.get('message', '')}; "
            "step.rerun(…, reason=…) begins a new run"
        )
    text = f"{which} failed after {count} ({run.reason})"
    made: Exception = kind(f"{text}: {what}" if what else text)
    return made


_KINDS: Final[dict[str, Any]] = {
    "max_attempts_exceeded": RetriesExhausted,
    "retry_budget_empty": RetriesExhausted,
    "deadline_passed": DeadlineExceeded,
    "wait_beyond_deadline": DeadlineExceeded,
    "retry_after_beyond_deadline": DeadlineExceeded,
}


def cannot_reopen(plan: StepPlan, call: PreparedCall, run: RunRecord | None) -> Exception | None:
    """Say why a new run cannot begin, or nothing if it can."""
    which = _describe_key(plan, call.entity)
    if run is None:
        return UsageError(f"{which} was never run; call the step itself")
    if run.state == "COMPLETE" and plan.effect != "pure":
        return UsageError(f"{which} is done; running it again would apply it twice")
    if run.state == "RUNNING":
        return InProgress(f"{which} is being worked on by {run.worker}", run.worker)
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(f"{which} may have taken effect; settle that first (step.settle)")
    if run.held_for:
        return Quarantined(
            f"{which} is in quarantine ({run.held_for}); decide there: engine.quarantine.rerun, or release"
        )
    if run.state in ("PENDING", "SOFT_FAIL"):
        return UsageError(f"{which} is not over yet; call the step itself, it goes on")
    if run.pruned_at:
        return key_expired(plan, call, run)
    return None


def cannot_cancel(plan: StepPlan, call: PreparedCall, run: RunRecord | None) -> Exception | None:
    """Say why work cannot be cancelled, or nothing if it can, or is."""
    which = _describe_key(plan, call.entity)
    if run is None:
        return UsageError(f"{which} was never called or submitted; there is nothing to cancel")
    if run.state == "COMPLETE":
        return UsageError(f"{which} is done; what has happened cannot be cancelled")
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(f"{which} may have taken effect; settle that first (step.settle)")
    if run.held_for:
        return Quarantined(f"{which} is in quarantine ({run.held_for}); engine.quarantine.reject ends it")
    if run.state == "HARD_FAIL" and not run.cancelled_at:
        return UsageError(f"{which} has failed already ({run.reason}); there is nothing to cancel")
    return None


def nothing_to_settle(plan: StepPlan, call: PreparedCall) -> Exception:
    """There is nothing to settle."""
    return UsageError(
        f"{_describe_key(plan, call.entity)} is not held; only an unknown outcome can be settled"
    )
