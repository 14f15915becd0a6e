"""Checks between the key and the claim: artifact, switches and approvals, breaker, rate.

These are parts of the script in `steps.flow`. A check that refuses leaves the run where an operator, a worker
or a later call finds it; no attempt is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.artifacts.artifact import tag_artifact
from oncemore.control.model import APPROVAL_NEEDED, ApprovalRequest, find_objection
from oncemore.governance import gate
from oncemore.limits import breaker_step, cooldown_step
from oncemore.limits.breaker import CIRCUIT_OPEN
from oncemore.log.record import RecordChange
from oncemore.policy.closing import close_run, closing_proof
from oncemore.steps import refusals, transitions
from oncemore.steps.ops import (
    CONFLICT,
    NOW,
    CheckArtifact,
    EndCall,
    PrepareSubmission,
    SleepSeconds,
    TakeRateSlot,
)
from oncemore.steps.transitions import CHECKSUM_MISMATCH, FINAL_STATES

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AttemptTerms, Permission, Script
    from oncemore.steps.plan import StepPlan

#: Why a run is COMPLETE that computed nothing: its artifact exists already.
ARTIFACT_EXISTS = "artifact_exists"
#: Why a run waits for its rate limit, and for how long after its slot it may still use that slot.
RATE_LIMITED, SLOT_VALID_S = "rate_limited", 1.0
#: A wait this short is slept through even where calls do not wait: parking the run would take as long.
SHORT_WAIT_S = 0.05


def complete_from_artifact(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Complete the run if its artifact exists; return whether the run was changed.

    Altered bytes are never overwritten: the run is held, and an operator decides (WAL-10).
    """
    check = yield CheckArtifact(call.entity, call.cfg_hash, plan.artifact)
    if check.state == "missing":
        return False
    run, opening, body = transitions.open_run(plan, call, terms, head.record, now)
    if check.state == "valid":
        after = transitions.end_attempt(run, "COMPLETE", ARTIFACT_EXISTS, commit_version=head.version + 1)
        result = {"result": plan.encode(check.artifact), "artifacts": [tag_artifact(check.artifact)]}
        change = RecordChange((*opening, "COMPLETE"), head.record, after, {**body, **result})
        yield from cooldown_step.append_to_run(plan, head, change)
        return True
    after = transitions.end_attempt(run, run.state, CHECKSUM_MISMATCH)._replace(held_for=CHECKSUM_MISMATCH)
    body = {
        **body,
        "error": plan.describe(check.error, plan.classify(check.error, now)),
        "quarantine": {"reason": CHECKSUM_MISMATCH, "artifact": check.ref},
        "proof": closing_proof(close_run(run, CHECKSUM_MISMATCH, now)),
    }
    body = transitions.add_escalation(body, run, now, plan, permanent=True)
    marks = (*(opening or (run.state,)), "ESCALATION")
    yield from cooldown_step.append_to_run(plan, head, RecordChange(marks, head.record, after, body))
    return True


# Operators: switches and approvals ------------------------------------------------------------------


def check_permission(
    plan: StepPlan, call: PreparedCall, head: LoadedHead, permission: Permission, now: float
) -> Script:
    """Return the end of the call if its attempt may not begin, None if it may, or CONFLICT.

    A switch leaves the run due: it continues when the switch is released. A run that the gate refuses and an
    unapproved run are quarantined; that also sends the configured notification.
    """
    if permission.stop:
        return EndCall(None, refusals.switch_blocked(plan, call, permission))
    refusal = yield from gate.check_gate(plan, call, head, permission, now)
    if refusal is not None or not transitions.approval_entity(plan, head):
        return refusal
    record = run = head.record
    opening: dict[str, Any] = {}
    if record is None or record.state in FINAL_STATES:
        terms = yield make(PrepareSubmission, (plan.policy_name, plan.policy, plan.policy_source))
        run, _, opening = transitions.open_run(plan, call, terms, record, now)
    request = build_approval_request(plan, call, run)
    objection = find_objection(permission.approval, request, now)
    if not objection:
        return None
    # The request is stored once: a caller that asks again must not make the log grow.
    if run.held_for != APPROVAL_NEEDED or (head.body or {}).get("requested") != request._asdict():
        body = {
            **opening,
            "error": {**refusals.UNAPPROVED, "message": objection},
            "requested": request._asdict(),
            "proof": closing_proof(close_run(run, APPROVAL_NEEDED, now)),
        }
        after = transitions.end_attempt(run, run.state, APPROVAL_NEEDED)._replace(held_for=APPROVAL_NEEDED)
        change = RecordChange((run.state, "ESCALATION"), record, after, body)
        saved = yield from cooldown_step.append_to_run(plan, head, change, guards=permission.guards)
        if saved is None:
            return CONFLICT
        run = after
    return EndCall(None, refusals.approval_missing(plan, call, run, objection))


def build_approval_request(plan: StepPlan, call: PreparedCall, run: RunRecord) -> ApprovalRequest:
    """Return the request that an approval of the run's next attempt must cover.

    Version and config are those of the code that would run. That code may be newer than the code that began
    the run, and an approval of the older code does not cover it.
    """
    return ApprovalRequest(
        run_entity=call.entity,
        step=run.step,
        effect=plan.effect,
        input_hash=run.input_hash,
        cfg_hash=call.code_hash or call.cfg_hash,
        policy=plan.policy.digest,
        attempt=run.attempt + 1,
    )


# Limits: breaker and rate ---------------------------------------------------------------------------


def pass_breaker(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Return the `BreakerPass` for the claim; None after deferring the run behind an open breaker."""
    answer = yield from breaker_step.ask_breaker(plan, call, now)
    if type(answer) is breaker_step.BreakerPass:
        return answer
    change = transitions.build_deferral(
        plan, call, terms, head, now, mark="BREAKER", reason=CIRCUIT_OPEN, until=answer.until,
        body=breaker_step.refusal_body(plan, answer),
    )  # fmt: skip
    yield from cooldown_step.append_to_run(plan, head, change)
    return None


def wait_for_rate(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Wait for the attempt's slot in the rate limit; return the time then, or None after deferring the run.

    The second result is the end of the call if its resource is cooling down: such a call does not wait.

    A run that was deferred to its slot uses that slot if it comes in time, and takes no second one.
    """
    assert plan.rate is not None
    run, rate_limit = head.record, plan.rate.limit
    valid_s = max(SLOT_VALID_S, rate_limit.interval_s)
    has_slot = run is not None and run.reason == RATE_LIMITED and now - run.not_before <= valid_s
    while (wait := (yield TakeRateSlot(plan.rate, has_slot))) <= max(plan.inline_wait_s, SHORT_WAIT_S):
        if wait <= 0 and has_slot:
            return now, None
        if wait > 0:
            if call.give_up and now + wait > call.give_up:
                break
            end = yield from cooldown_step.end_instead_of_waiting(plan.cooldown)
            if end is not None:
                return now, end
            yield SleepSeconds(wait)
            now = yield NOW
        # The slot is taken. The loop asks once more for the distance to attempts that started before.
        has_slot = True
    change = transitions.build_deferral(
        plan, call, terms, head, now, mark="QUOTA", reason=RATE_LIMITED, until=now + wait,
        body={"rate": f"{rate_limit.per} in {rate_limit.period_s:g} s", "of": plan.rate.name},
    )  # fmt: skip
    yield from cooldown_step.append_to_run(plan, head, change)
    return None, None
