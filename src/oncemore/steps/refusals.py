"""The ways a durable call can end without a value: each error says what happened, to which key, what next."""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from oncemore._time_spans import seconds
from oncemore.control.model import ALL, MOVED, NEEDED, PIPELINE, UNKNOWN
from oncemore.errors import (
    Blocked,
    Cancelled,
    ConfigChanged,
    CoolingDown,
    DeadlineExceeded,
    InProgress,
    KeyConflict,
    KeyExpired,
    LeaseLost,
    OutcomeUnknown,
    Parked,
    Quarantined,
    ResultUnavailable,
    RetriesExhausted,
    Terminal,
    UsageError,
)

if TYPE_CHECKING:
    from oncemore.log.record import Run
    from oncemore.steps.ops import Call, Permission, Plan, Seen

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


def out_of_time(run: Run, now: float) -> dict[str, Any]:
    """Return what the log says of a run whose next attempt could not end before its deadline."""
    left = run.deadline - now
    if left <= 0:
        return TOO_LATE
    text = f"only {seconds(left)} are left, and an attempt is expected to take {seconds(run.expected_s)}"
    return {**TOO_LATE, "message": text}


def _which(plan: Plan, entity: str) -> str:
    return f"{plan.name}: key {entity.removeprefix('run/')[:12]}"


def too_late(plan: Plan, call: Call) -> Exception:
    """Nothing was tried: there is no time left."""
    return DeadlineExceeded(f"{_which(plan, call.entity)} was not begun: its deadline has passed")


def other_arguments(plan: Plan, call: Call) -> Exception:
    """The key is taken."""
    return KeyConflict(
        f"{_which(plan, call.entity)} belongs to a call with other arguments; give this work another key, or "
        "leave what may differ out by ignore="
    )


def expired(plan: Plan, call: Call, run: Run) -> Exception:
    """It was done once, and its result is no longer kept."""
    how = "erased" if run.reason == "erased" else "pruned"
    return KeyExpired(
        f"{_which(plan, call.entity)} ended as {run.state} and its record was {how}; it is not run a second "
        "time; new work needs a new key"
    )


def config_changed(plan: Plan, call: Call) -> Exception:
    """The stored result was made under another version or config."""
    return ConfigChanged(
        f"{_which(plan, call.entity)} has a result of another version or config, and on_version_change is "
        "'fail'; choose 'reuse' or 'new'"
    )


def in_progress(plan: Plan, seen: Seen, until: float) -> Exception:
    """Somebody else has it."""
    worker = seen.run.worker
    return InProgress(
        f"{_which(plan, seen.entity)} is being worked on by {worker}, whose lease lasts until {until:.0f}; "
        "call again later",
        worker,
        until,
    )


def parked(plan: Plan, call: Call, run: Run, wait: float) -> Exception:
    """It is due later than this caller waits."""
    why = run.reason or "not yet due"
    return Parked(
        f"{_which(plan, call.entity)} is parked for {wait:.0f} s ({why}); a worker or a later call goes on",
        run.not_before,
    )


def stopped(plan: Plan, call: Call, permit: Permission) -> Exception:
    """Nothing was begun: somebody has stopped it, or nobody can tell whether they have."""
    return not_begun(_which(plan, call.entity), permit)


def not_begun(which: str, permit: Permission) -> Exception:
    """Say of anything that was not begun who has stopped it, or that nobody can tell."""
    if permit.stop == UNKNOWN:
        error = permit.error
        made = Blocked(
            f"{which} was not begun ({UNKNOWN}): whether somebody has stopped it cannot be read "
            f"({type(error).__name__}: {error}), and what is not known means no; call again when it can",
            UNKNOWN,
        )
        made.__cause__ = error
        return made
    if permit.stop == MOVED:
        return Blocked(
            f"{which} was not begun: this log has moved to {permit.name}; open that one instead", MOVED
        )
    told, what = permit.told, "" if permit.name == ALL else f" --{permit.name.replace(':', ' ', 1)}"
    who = f" by {told['by']}" if told.get("by") else ""
    why = f": {told['reason']}" if told.get("reason") else ""
    if permit.name.startswith(PIPELINE):
        pipeline = permit.name.removeprefix(PIPELINE)
        return Blocked(
            f"{which} was not begun: pipeline {pipeline} is halted{who}{why}; look at what failed "
            f"(oncemore quarantine list), then release the pipeline: oncemore switch off{what} --reason …",
            permit.stop,
        )
    how = f"in {told['kept_in']}" if "kept_in" in told else f"(oncemore switch off{what} --reason …)"
    return Blocked(
        f"{which} was not begun: the switch {permit.name} was thrown{who}{why}; it goes on when that is "
        f"released {how}",
        permit.stop,
    )


def unapproved(plan: Plan, call: Call, run: Run, why: str) -> Exception:
    """It waits for somebody to approve it."""
    return Blocked(
        f"{_which(plan, call.entity)} waits for an approval: {why}; look at it and approve it: "
        f"oncemore approve {run.run_id} --reason …",
        NEEDED,
    )


_SKIPPED: Final[dict[str, str]] = {
    "SKIPPED_DUPLICATE": "it is there already, and valid",
    "SKIPPED_QUARANTINED": "it is in quarantine; a person lets it go: oncemore cooldowns release {}",
    "SKIPPED_TERMINAL": "it failed in a way that does not pass; a person lets it go: "
    "oncemore cooldowns release {}",
    "SKIPPED_BACKOFF": "it failed before, and is left alone until {}; call again then",
}


def cooling(step: str, resource: str, why: str, until: float) -> CoolingDown:
    """Nobody was asked: what it asks for is left alone."""
    told = _SKIPPED[why].format(utc(until) if until else resource)
    return CoolingDown(f"{step}: {resource} was not asked for ({why}): {told}", why, resource, until)


def resting(step: str, resource: str, until: float) -> Parked:
    """It was asked, and wants to be left alone for longer than anybody waits here."""
    told = f"{step}: {resource} asks to be left alone until {utc(until)}"
    return Parked(f"{told}; a worker or a later call goes on", until)


def utc(moment: float) -> str:
    """Return a moment for people: UTC, to the second, never earlier than it is."""
    whole = datetime.fromtimestamp(ceil(moment), UTC)
    return whole.strftime("%Y-%m-%d %H:%M:%SZ")


def held(plan: Plan, seen: Seen, error: Exception | None = None) -> Exception:
    """It waits for a person: it may have happened and must not happen twice, or for another reason."""
    which, run = _which(plan, seen.entity), seen.run
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


def lease_lost(plan: Plan, seen: Seen) -> Exception:
    """The result came too late to be written."""
    return LeaseLost(
        f"{_which(plan, seen.entity)}: attempt {seen.run.attempt} took effect, but another worker had taken "
        "over before its result could be written; the key says what became of it"
    )


def unavailable(plan: Plan, seen: Seen, fault: Exception, value: object) -> ResultUnavailable:
    """The value has no form that could be kept."""
    done = "its result cannot be stored" if plan.effect == "pure" else "done, but its result cannot be stored"
    why = plan.describe(fault, None).get("message", "")  # it is stored too, and may quote the value
    made = ResultUnavailable(f"{_which(plan, seen.entity)}: {done}: {why}", value)
    made.__cause__ = fault
    return made


def kept_nothing(plan: Plan, seen: Seen, told: str) -> Exception:
    """It was done before, and its value could not be kept then."""
    return ResultUnavailable(told or f"{_which(plan, seen.entity)}: done, but its result was not stored")


def altered(plan: Plan, seen: Seen, fault: Exception) -> Exception:
    """It was done before, and the artifact that its value is in is not what it was."""
    made = ResultUnavailable(f"{_which(plan, seen.entity)}: done, but its value cannot be had: {fault}")
    made.__cause__ = fault
    return made


def failed(plan: Plan, seen: Seen, error: Exception | None, told: dict[str, Any] | None) -> Exception:
    """It failed for good; the work's own error is the cause, where it is at hand."""
    told = told or (seen.body or {}).get("error") or (plan.describe(error, None) if error else {})
    made = failure_of(_which(plan, seen.entity), seen.run, told)
    made.__cause__ = error
    return made


def failure_of(which: str, run: Run, told: dict[str, Any]) -> Exception:
    """Return the error of a run that failed for good, from what the log says of it.

    which  the step and the key, for the message
    """
    # An attempt that was cut off at the end of the whole run's time is no failure of the work.
    kind = DeadlineExceeded if told.get("code") == TOO_LATE["code"] else _KINDS.get(run.reason, Terminal)
    what = f"{told.get('type', '')}: {told.get('message', '')}".strip(": ")
    count = f"{run.tried} attempt{'s' if run.tried != 1 else ''}"
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


def cannot_reopen(plan: Plan, call: Call, run: Run | None) -> Exception | None:
    """Say why a new run cannot begin, or nothing if it can."""
    which = _which(plan, call.entity)
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
    if run.pruned:
        return expired(plan, call, run)
    return None


def cannot_cancel(plan: Plan, call: Call, run: Run | None) -> Exception | None:
    """Say why work cannot be cancelled, or nothing if it can, or is."""
    which = _which(plan, call.entity)
    if run is None:
        return UsageError(f"{which} was never called or submitted; there is nothing to cancel")
    if run.state == "COMPLETE":
        return UsageError(f"{which} is done; what has happened cannot be cancelled")
    if run.held_for == "outcome_unknown":
        return OutcomeUnknown(f"{which} may have taken effect; settle that first (step.settle)")
    if run.held_for:
        return Quarantined(f"{which} is in quarantine ({run.held_for}); engine.quarantine.reject ends it")
    if run.state == "HARD_FAIL" and not run.cancelled:
        return UsageError(f"{which} has failed already ({run.reason}); there is nothing to cancel")
    return None


def not_held(plan: Plan, call: Call) -> Exception:
    """There is nothing to settle."""
    return UsageError(f"{_which(plan, call.entity)} is not held; only an unknown outcome can be settled")
