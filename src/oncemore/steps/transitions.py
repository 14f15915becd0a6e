"""Build the changes that a call makes to its run. Pure: nothing here reads or writes.

Every function takes the head that was read and returns the `RecordChange` that the flow appends to it, or a
value that such a change is made of. The order of the changes is in `steps.flow`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.control.model import APPROVAL_NEEDED
from oncemore.log.entry_codec import PLAIN_TYPES
from oncemore.log.record import FIELD_POSITIONS, RecordChange, RunRecord
from oncemore.policy.closing import POISON, close_run, closing_proof, count_lost_attempt
from oncemore.policy.policy import ESCALATION, policy_id
from oncemore.policy.proof import build_recorded_proof
from oncemore.policy.verdict import MISMATCH_CODE
from oncemore.steps import refusals
from oncemore.steps.ops import EndCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.control.model import Approval
    from oncemore.log.record import LoadedHead
    from oncemore.policy.closing import ClosingDecision
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Effect, State
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AttemptOutcome, AttemptTerms, ReconcileAnswer
    from oncemore.steps.plan import StepPlan

#: The states of an ended run: the next call of its key begins a new run, or returns the stored outcome.
FINAL_STATES = ("COMPLETE", "HARD_FAIL")
#: Why a run is held: its artifact no longer has the recorded bytes.
CHECKSUM_MISMATCH = "checksum_mismatch"
NO_REMARKS: Mapping[str, Any] = MappingProxyType({})

_COMMIT_MARKS: tuple[Any, ...] = ("COMMIT", "COMPLETE")
_FAILURE_MARKS: tuple[Any, ...] = ("HARD_FAIL", "ESCALATION")
_NO_RUN = RunRecord()


# Attempts -------------------------------------------------------------------------------------------

_POSITIONS = FIELD_POSITIONS[RunRecord]
_STATE, _STEP, _EFFECT, _WORKER = map(RunRecord._fields.index, ("state", "step", "effect", "worker"))
_RUN_ID, _RUN_NUMBER, _MASKING = map(RunRecord._fields.index, ("run_id", "run_number", "masking"))
_FENCE, _ATTEMPT, _ATTEMPT_COUNT = map(RunRecord._fields.index, ("fence", "attempt", "attempt_count"))
_MAX_ATTEMPTS, _MAX_CRASHES = map(RunRecord._fields.index, ("max_attempts", "max_crashes"))
_CREATED_AT, _STARTED_AT, _DEADLINE = map(RunRecord._fields.index, ("created_at", "started_at", "deadline"))
_HELD_FOR, _REASON, _BUDGET_DEBT = map(RunRecord._fields.index, ("held_for", "reason", "budget_debt"))
_INPUT_HASH, _CFG_HASH, _SEED = map(RunRecord._fields.index, ("input_hash", "cfg_hash", "seed"))
_TENANT, _CORRELATION_ID = map(RunRecord._fields.index, ("tenant", "correlation_id"))
_POLICY, _DATASET, _PRIORITY = map(RunRecord._fields.index, ("policy", "dataset", "priority"))
_RETAIN_S, _PROVIDER, _TRACEPARENT = map(RunRecord._fields.index, ("retain_s", "provider", "traceparent"))


def begin_attempt(run: RunRecord, effect: Effect, worker: str, now: float) -> RunRecord:
    """Return the run with its next attempt started: counted, under a new fence, no longer held."""
    # By position, here and below: the names of `_replace(name=value)` are half of the cost.
    values: list[Any] = list(run)
    values[_STATE], values[_EFFECT], values[_WORKER], values[_STARTED_AT] = "RUNNING", effect, worker, now
    # A new fence for every attempt, so that the late result of a timed-out attempt is rejected even when
    # both attempts belong to the same worker.
    values[_FENCE] += 1
    values[_ATTEMPT] += 1
    values[_ATTEMPT_COUNT] += 1
    values[_HELD_FOR], values[_REASON], values[_BUDGET_DEBT] = "", "", 0.0
    return make(RunRecord, values)


def end_attempt(run: RunRecord, state: State, reason: str, **changes: Any) -> RunRecord:
    """Return the run with its attempt ended: it belongs to no worker and is not held."""
    values: list[Any] = list(run)
    values[_STATE], values[_REASON], values[_WORKER], values[_HELD_FOR] = state, reason, "", ""
    for name in changes:
        values[_POSITIONS[name]] = changes[name]
    return make(RunRecord, values)


# Before a claim -------------------------------------------------------------------------------------


def end_if_complete(plan: StepPlan, call: PreparedCall, head: LoadedHead) -> EndCall | None:
    """Return the end of the call if its result was read with the head; None if more is needed.

    Most repeated calls end here, before a script is made: this is the fast path of a duplicate call.
    """
    run = head.record
    if (
        run is None
        or run.state != "COMPLETE"
        or run.commit_version != head.version
        or run.cfg_hash != call.cfg_hash
        or plan.artifact  # its bytes must be verified first
    ):
        return None
    if call.input_hash and run.input_hash != call.input_hash:
        return None
    return end_from_last_entry(plan, head)


def end_from_last_entry(plan: StepPlan, head: LoadedHead) -> EndCall | None:
    """Return the end with the stored value if the head's last entry holds it; None otherwise."""
    body = head.body
    if not body or "result" not in body:
        return None
    plain = body["result"]
    is_plain = plan.stores_plain and type(plain) in PLAIN_TYPES
    return make(EndCall, (plain if is_plain else plan.decode(plain), None))


def check_same_arguments(plan: StepPlan, call: PreparedCall, run: RunRecord | None) -> Exception | None:
    """Return the `KeyConflict` if the key belongs to other arguments; None otherwise."""
    # An imported key may have no record of its arguments.
    if run is None or not call.input_hash or run.input_hash in (call.input_hash, ""):
        return None
    return refusals.key_conflict(plan, call)


def allow_new_run(plan: StepPlan, call: PreparedCall, head: LoadedHead, now: float) -> LoadedHead | EndCall:
    """Return the head to claim, or the end of the call if its deadline has passed already."""
    if call.deadline and now >= call.deadline:
        return EndCall(None, refusals.deadline_exceeded(plan, call))
    return head


def step_names(plan: StepPlan, run: RunRecord | None) -> tuple[str, ...]:
    """Return the names that switches may stop the run by: the step's, and the one that the run began with."""
    return (plan.name,) if run is None or run.step == plan.name else (plan.name, run.step)


def approval_entity(plan: StepPlan, head: LoadedHead) -> str:
    """Return the entity that must be approved for the attempt; empty if it needs no approval.

    A run that is held for an approval needs it even if the step no longer requires one.
    """
    is_held = head.record is not None and head.record.held_for == APPROVAL_NEEDED
    return head.entity if plan.requires_approval or is_held else ""


# Opening and claiming a run -------------------------------------------------------------------------


def new_run(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, last: RunRecord | None, now: float
) -> RunRecord:
    """Return a new run of a key in PENDING; fence and attempt numbers continue from the key's last run.

    A key keeps the step name that its first run had, also after the step was renamed: artifacts and markers
    in other databases are found by that name.
    """
    _, run_id, _, input_hash, seed, tenant, correlation_id, dataset, priority, retain_s, provider, *_ = terms
    policy = plan.policy
    values: list[Any] = list(_NO_RUN)
    values[_STEP], values[_EFFECT], values[_RUN_ID], values[_RUN_NUMBER] = plan.name, plan.effect, run_id, 1
    values[_MAX_ATTEMPTS], values[_MAX_CRASHES] = policy.max_attempts, policy.max_crashes or 0
    values[_CREATED_AT], values[_DEADLINE], values[_POLICY] = now, call.deadline, plan.policy_name
    values[_INPUT_HASH], values[_CFG_HASH], values[_SEED] = input_hash, call.cfg_hash, seed
    values[_TENANT], values[_CORRELATION_ID], values[_DATASET] = tenant, correlation_id, dataset
    values[_PRIORITY], values[_RETAIN_S], values[_PROVIDER] = priority, retain_s, provider
    values[_TRACEPARENT] = terms.traceparent
    if last is not None:
        values[_STEP], values[_RUN_NUMBER] = last.step or plan.name, last.run_number + 1
        # A new run may not mask less than the runs before it (GOV-4).
        values[_FENCE], values[_ATTEMPT], values[_MASKING] = last.fence, last.attempt, last.masking
    return make(RunRecord, values)


def opening_body(terms: AttemptTerms) -> dict[str, Any]:
    """Return the body of a run's first entry: all that another process needs to continue the run."""
    body = {"arguments": terms.arguments}
    if terms.actor:
        body["actor"] = terms.actor
    if terms.withheld:
        body["withheld"] = terms.withheld
    if terms.parent:
        body["parent"] = terms.parent
    if terms.is_workflow:
        body["workflow"] = True
    if terms.pipeline:
        body["pipeline"] = terms.pipeline
    return body


def open_run(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, record: RunRecord | None, now: float
) -> tuple[RunRecord, tuple[Any, ...], dict[str, Any]]:
    """Return the run that a change continues, with the marks and body that open it if it is new."""
    if record is None or record.state in FINAL_STATES:
        return new_run(plan, call, terms, record, now), ("PENDING",), opening_body(terms)
    return record, (), {}


def build_claim(
    plan: StepPlan,
    call: PreparedCall,
    terms: AttemptTerms,
    record: RunRecord | None,
    now: float,
    *,
    approval: Approval | None,
    step_plan: StepPlan,
) -> RecordChange:
    """Return RUNNING and INTENT as one entry; PENDING comes first where a new run begins.

    approval   the approval of its key, if there is one
    step_plan  the plan as the step defines it now; it differs from `plan` where the run keeps an earlier
               policy, and the entry then names both
    """
    run, opening, body = open_run(plan, call, terms, record, now)
    if plan is not step_plan:
        body = {**body, "policy": {"used": plan.policy_name, "current": step_plan.policy_name}}
    if approval is not None:
        body = {**body, "approval": approval._asdict()}
    after = begin_attempt(run, plan.effect, terms.worker, now)
    traceparent = terms.traceparent
    if traceparent and traceparent not in (run.traceparent, run.last_traceparent):
        after = after._replace(last_traceparent=traceparent)
    if call.masking and call.masking > run.masking:
        after = after._replace(masking=call.masking)
    return make(RecordChange, ((*opening, "RUNNING", "INTENT"), record, after, body))


def build_deferral(
    plan: StepPlan,
    call: PreparedCall,
    terms: AttemptTerms,
    head: LoadedHead,
    now: float,
    *,
    mark: Any,
    reason: str,
    until: float,
    body: dict[str, Any],
) -> RecordChange:
    """Return a run that waits until a time without an attempt, so that none is counted."""
    run, opening, opened = open_run(plan, call, terms, head.record, now)
    until = min(until, run.deadline) if run.deadline else until
    after = run._replace(not_before=until, reason=reason)
    return RecordChange((*opening, mark), head.record, after, {**opened, **body})


def attempt_limit(plan: StepPlan, run: RunRecord, now: float) -> tuple[float | None, bool]:
    """Return how long the attempt may take, and whether that is the rest of the whole run's time."""
    limit, left = plan.policy.timeout_s, run.deadline - now if run.deadline else None
    if left is None or (limit is not None and limit <= left):
        return limit, False
    return left, True


# Ending an attempt ----------------------------------------------------------------------------------


def build_commit(head: LoadedHead, body: dict[str, Any]) -> RecordChange:
    """Return COMMIT and COMPLETE as one entry; its body holds the result."""
    run = head.record
    after = end_attempt(run, "COMPLETE", "", commit_version=head.version + 1)
    return make(RecordChange, (_COMMIT_MARKS, run, after, body))


def measured_body(outcome: AttemptOutcome, now: float) -> dict[str, Any]:
    """Return the duration and the usage of an attempt, for the body of the entry that ends it."""
    body: dict[str, Any] = {"duration_s": round(now - outcome.head.record.started_at, 6)}
    return body if outcome.usage is None else {**body, "usage": outcome.usage}


def build_failure(
    plan: StepPlan, head: LoadedHead, error: dict[str, Any], decision: Decision, now: float
) -> RecordChange:
    """Return the run after the decision about its failed attempt, with the proof of that decision."""
    run = head.record
    proof = build_recorded_proof(decision, policy_id(plan.policy))
    body: dict[str, Any] = {"error": error, "proof": proof}
    changes: dict[str, Any] = {"expected_duration_s": decision.situation.expected_s or 0.0}
    if decision.action in ("retry", "defer"):
        reason = decision.situation.hold_reason if decision.reason == "held" else decision.reason
        after = end_attempt(run, "SOFT_FAIL", reason, not_before=decision.not_before or 0.0, **changes)
        return RecordChange(("SOFT_FAIL", "DECISION"), run, after, body)
    if decision.action == "quarantine":
        is_mismatch = decision.situation.failure.code == MISMATCH_CODE
        held_for = CHECKSUM_MISMATCH if is_mismatch else decision.reason
        after = end_attempt(run, "SOFT_FAIL", decision.reason, **changes)._replace(held_for=held_for)
    else:
        changes["failure_version"] = head.version + 1
        after = end_attempt(run, "HARD_FAIL", decision.reason, **changes)
    permanent = decision.situation.verdict != "RETRYABLE"
    body = add_escalation(body, run, now, plan, permanent=permanent)
    return RecordChange((after.state, "DECISION", "ESCALATION"), run, after, body)


def build_closing(
    plan: StepPlan,
    head: LoadedHead,
    decision: ClosingDecision,
    error: dict[str, Any],
    remarks: Mapping[str, Any] = NO_REMARKS,
    *,
    permanent: bool = False,
    **changes: Any,
) -> RecordChange:
    """Return the run after a decision that no failed attempt asked for: a lost worker, a cancellation."""
    run, now = head.record, decision.closing.now
    changes = {**count_lost_attempt(run, decision.closing.event), **changes}
    body = {"error": error, **remarks, "proof": closing_proof(decision)}
    if decision.action == "stop":
        after = end_attempt(run, "HARD_FAIL", decision.reason, failure_version=head.version + 1, **changes)
        body = add_escalation(body, run, now, plan, permanent=permanent)
        return RecordChange(_FAILURE_MARKS, run, after, body)
    if decision.action == "retry":
        after = end_attempt(run, "SOFT_FAIL", decision.reason, not_before=now, **changes)
        return RecordChange(("SOFT_FAIL",), run, after, body)
    after = end_attempt(run, "SOFT_FAIL", decision.reason, **changes)._replace(held_for=decision.held_for)
    if decision.held_for == POISON:
        return RecordChange(("SOFT_FAIL", "ESCALATION"), run, after, add_escalation(body, run, now, plan))
    return RecordChange(("SOFT_FAIL",), run, after, body)


def build_reconciled(
    plan: StepPlan,
    head: LoadedHead,
    answer: ReconcileAnswer,
    reason: str,
    now: float,
    error: dict[str, Any] | None = None,
) -> RecordChange:
    """Return the run after `reconcile` or an operator has answered about a lost `once` attempt."""
    run, error = head.record, error or refusals.LOST["lease_expired"]
    if answer.outcome == "applied":
        after = end_attempt(run, "COMPLETE", "reconciled", commit_version=head.version + 1)
        try:
            body = {"result": plan.encode(answer.value)}
        except Exception as fault:  # noqa: BLE001 - the effect is applied even if its value cannot be stored
            body = {"result_unavailable": str(refusals.result_not_encodable(plan, head, fault, None))}
        return RecordChange(_COMMIT_MARKS, run, after, {**body, **answer.decision_body})
    remarks = answer.decision_body if answer.outcome == "not_applied" else NO_REMARKS
    return build_closing(plan, head, close_run(run, reason, now, answer.outcome), error, remarks)


def add_escalation(
    body: dict[str, Any], run: RunRecord, now: float, plan: StepPlan | None = None, *, permanent: bool = False
) -> dict[str, Any]:
    """Return the body with an escalation record: the time and attempts left, and the policy (TIME-6).

    A policy file can name one escalation policy for permanent errors and one for exhaustion (GOV-10).
    """
    for_permanent, for_exhaustion = ESCALATION if plan is None else plan.escalation
    record = {
        "policy": for_permanent if permanent else for_exhaustion,
        "deadline": run.deadline or None,
        "left_s": round(run.deadline - now, 6) if run.deadline else None,
        "attempts": run.attempt_count,
    }
    return {**body, "escalation": record}
