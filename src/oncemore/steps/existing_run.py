"""Handle a call of a key that has a run already: one handler per state of the run.

Each function returns an `EndCall`, a head that may be claimed, or None (read the head again).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.control.model import APPROVAL_NEEDED
from oncemore.events import ConfigDrifted
from oncemore.governance.gate import find_open_review
from oncemore.limits import budget_step, cooldown_step
from oncemore.log.record import RecordChange
from oncemore.policy.closing import OUTCOME_UNKNOWN, close_run
from oncemore.retries.loop import EMPTY
from oncemore.steps import refusals, transitions
from oncemore.steps.failure import UNKNOWN, close_lost_attempt, end_from_stored_value, read_entry_body
from oncemore.steps.ops import (
    AskReconcile,
    CheckArtifact,
    EndCall,
    NotifyListeners,
    ReadLease,
    SleepSeconds,
    WatchEntity,
)
from oncemore.steps.stored_failure import begins_new_run, build_stored_failure, find_failure_time
from oncemore.workflows.journal import WAITING_FOR

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import Script
    from oncemore.steps.plan import StepPlan

#: How much later than its latest start an attempt may begin, in seconds: timers end a little late.
START_TOLERANCE_S = 1.0
#: How often a call looks at a workflow that waits for a signal, in seconds.
SIGNAL_POLL_S = 0.1


def handle_existing_run(plan: StepPlan, call: PreparedCall, head: LoadedHead, now: float) -> Script:
    """Return the next move of the call, by the state of the key's last run."""
    run = head.record
    conflict = transitions.check_same_arguments(plan, call, run)
    if conflict is not None:
        return EndCall(None, conflict)
    if run.pruned_at and not (run.state == "HARD_FAIL" and begins_new_run(plan, call, run, 0.0)):
        return EndCall(None, refusals.key_expired(plan, call, run))
    if run.state not in transitions.FINAL_STATES:
        call.took_part = True
    return (yield from BY_STATE[run.state](plan, call, head, now))


def is_outdated(plan: StepPlan, call: PreparedCall, run: RunRecord) -> bool:
    """Return whether a finished run gives way to a new one because its version or config changed."""
    if run.state not in transitions.FINAL_STATES or run.pruned_at or run.cancelled_at:
        return False
    may_repeat = plan.effect != "once" if run.state == "HARD_FAIL" else _version_change_action(plan) == "new"
    return run.cfg_hash != call.cfg_hash and may_repeat


def _version_change_action(plan: StepPlan) -> str:
    """Return "new", "reuse" or "fail": the action after a complete run of another version or config."""
    # By default only `pure` work is repeated: a version bump must not repeat an effect.
    return plan.on_version_change or ("new" if plan.effect == "pure" else "reuse")


def _on_complete(plan: StepPlan, call: PreparedCall, head: LoadedHead, now: float) -> Script:
    """Return the stored value, unless the version or the artifact changed since."""
    run = head.record
    if run.cfg_hash != call.cfg_hash:
        action = _version_change_action(plan)
        if action == "new":
            return transitions.allow_new_run(plan, call, head, now)
        if action == "fail":
            return EndCall(None, refusals.config_changed(plan, call))
        fields = (run.run_id, run.tenant, run.correlation_id, run.policy, run.cfg_hash)
        yield NotifyListeners(ConfigDrifted(run.step, call.key, *fields))
    if plan.artifact:
        check = yield CheckArtifact(call.entity, run.cfg_hash, plan.artifact)
        # A pure step computes a missing artifact again; an altered one is held by the new run's own check.
        if check.state != "valid" and plan.effect == "pure" and run.cfg_hash == call.cfg_hash:
            return transitions.allow_new_run(plan, call, head, now)
        if check.state == "altered":
            return EndCall(None, refusals.artifact_altered(plan, head, check.error))
    return (yield from end_from_stored_value(plan, head))


def _on_hard_fail(plan: StepPlan, call: PreparedCall, head: LoadedHead, now: float) -> Script:
    """Raise the stored failure again, or begin a new run where the policy or a new version says so."""
    run = head.record
    body = {} if run.pruned_at else (yield from read_entry_body(head, run.failure_version))
    failed_at = find_failure_time(run, body)
    if begins_new_run(plan, call, run, failed_at):
        review = yield from find_open_review(run)
        if review:
            return EndCall(None, refusals.review_missing(plan, head, review))
        return transitions.allow_new_run(plan, call, head, now)
    if call.took_part:
        return EndCall(None, refusals.run_failed(plan, head, None, body.get("error")))
    return EndCall(None, build_stored_failure(plan, call, head, body.get("error"), failed_at))


def _on_running(plan: StepPlan, call: PreparedCall, head: LoadedHead, now: float) -> Script:
    """Wait for the worker that holds the run, or close the attempt of a worker that is gone."""
    until = yield ReadLease(head.record.worker, head.entity, head.record.fence)
    if until <= now:
        yield from close_lost_attempt(plan, head, "lease_expired", now)
        return None
    if plan.if_running == "raise" or (call.give_up and now >= call.give_up):
        return EndCall(None, refusals.in_progress(plan, head, until))
    wait = (min(until, call.give_up) if call.give_up else until) - now
    yield WatchEntity(head.entity, head.version, wait)
    return None


def _on_waiting(plan: StepPlan, call: PreparedCall, head: LoadedHead, now: float) -> Script:
    """Continue a run that waits for an operator, for its time, or for a caller."""
    run = head.record
    # A missing approval is checked again before the claim: it may have been given since.
    if run.held_for and run.held_for != APPROVAL_NEEDED:
        return (yield from _reconcile_held_run(plan, head, now))
    # The cancellation came while an attempt ran, and that attempt failed.
    if run.cancelled_at:
        closing = close_run(run, "cancelled", now)
        change = transitions.build_closing(plan, head, closing, refusals.CANCELLED)
        yield from cooldown_step.append_to_run(plan, head, change)
        return None
    if is_too_late(run, now):
        closing, error = close_run(run, "deadline_passed", now), refusals.out_of_time(run, now)
        yield from cooldown_step.append_to_run(
            plan, head, transitions.build_closing(plan, head, closing, error)
        )
        return None
    wait, budget = run.not_before - now, plan.budget if run.budget_debt else None
    # The next attempt is paid for before it is claimed: a failed withdrawal must not leave it running.
    if wait <= 0:
        return head if budget is None else (yield from _pay_for_retry(plan, head, now))
    parks = budget is not None and budget.budget.at_empty == "park"
    if parks or wait > plan.inline_wait_s or (call.give_up and run.not_before > call.give_up):
        return EndCall(None, refusals.run_deferred(plan, call, run, wait))
    end = yield from cooldown_step.end_instead_of_waiting(plan.cooldown)
    if end is not None:
        return end
    # A signal can end the wait of a workflow before its time.
    yield SleepSeconds(min(wait, SIGNAL_POLL_S) if run.reason.startswith(WAITING_FOR) else wait)
    return None


def is_too_late(run: RunRecord, now: float) -> bool:
    """Return whether an attempt that begins now is expected to end after the run's deadline (TIME-5)."""
    tolerance = min(START_TOLERANCE_S, 0.1 * run.expected_duration_s)
    return bool(run.deadline) and now >= run.deadline - run.expected_duration_s + tolerance


def _pay_for_retry(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Pay the retry budget for the next attempt; without a token the run waits on, up to a limit."""
    run = head.record
    last = yield from read_entry_body(head, head.version)
    payment = yield from budget_step.pay_debt(plan, head, now)
    body = budget_step.budget_body(plan, last)
    if payment.over:
        closing = close_run(run, EMPTY, now)
        change = transitions.build_closing(plan, head, closing, body["last_error"], budget_debt=0.0)
    else:
        after = run._replace(budget_debt=payment.budget_debt, not_before=payment.until)
        change = RecordChange(("QUOTA",), run, after, body)
    if (yield from cooldown_step.append_to_run(plan, head, change, also=payment.also)) is None:
        yield from budget_step.refund_payment(payment)


def _reconcile_held_run(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Ask `reconcile` about an unknown outcome again; a run without an answer stays held."""
    may_ask = plan.has_reconcile and head.record.held_for == OUTCOME_UNKNOWN
    answer = (yield AskReconcile(head)) if may_ask else UNKNOWN
    if answer.outcome == "unknown":
        return EndCall(None, refusals.run_held(plan, head))
    change = transitions.build_reconciled(plan, head, answer, "reconciled", now)
    yield from cooldown_step.append_to_run(plan, head, change)
    return None


#: One handler per state of a run. There is no default: a new state needs a row.
BY_STATE: dict[str, Any] = {
    "COMPLETE": _on_complete,
    "HARD_FAIL": _on_hard_fail,
    "RUNNING": _on_running,
    "PENDING": _on_waiting,
    "SOFT_FAIL": _on_waiting,
}
