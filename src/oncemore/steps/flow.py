"""The script of a durable call, from the key to the value.

`run_step` is a generator: it yields the operations it wants done (`steps.ops`) and is sent their results. A
driver (`oncemore._driver`) performs them, blocking or awaiting. Nothing happens between two operations, so a
crash falls before or after one of them:

    before the claim is stored      nothing has begun; a stored claim counts as an attempt
    between claim and outcome       the effect may have happened: the next caller or worker finds RUNNING with
                                    a dead worker and closes the attempt by its effect class
    after the outcome is stored     everything has happened and is recorded

Every write is a compare-and-set on the head that was read. On a conflict nothing is written, and the script
reads and decides again. The parts that most calls do not need are in other modules: `existing_run` (the key
has a run already), `admission` (a check refuses), `failure` (the attempt failed or was lost).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.governance import gate
from oncemore.limits import breaker_step, cooldown_step, queue_step
from oncemore.log.entry_codec import is_plain_result
from oncemore.log.store import JoinedWriteFailed
from oncemore.policy.closing import close_run
from oncemore.steps import admission, failure, refusals, transitions
from oncemore.steps.existing_run import handle_existing_run
from oncemore.steps.ops import (
    CONFLICT,
    NOW,
    AppendChange,
    AskPermission,
    AttemptOutcome,
    CommitTransaction,
    EarnBudget,
    EndCall,
    LoadHead,
    LoadPolicy,
    ParkRequest,
    ReserveWorker,
    RunAttempt,
    SpillResult,
    VoidClaim,
)
from oncemore.steps.recorded_policies import needs_own_policy
from oncemore.telemetry import autonomy
from oncemore.workflows.parking import park_run

if TYPE_CHECKING:
    from oncemore.errors import ResultUnavailable
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AttemptTerms, Script
    from oncemore.steps.plan import StepPlan


def run_step(plan: StepPlan, call: PreparedCall, head: LoadedHead | None = None) -> Script:
    """Bring a call to its end: at most one COMMIT per key, and a bounded number of attempts.

    head  the head as the caller expects it, to save a read; a wrong guess costs one conflict
    """
    is_guess, step_plan = head is not None, plan
    while True:
        # The key: read its head, and take the policy that an open run began with.
        if head is None:
            head = yield LoadHead(call.entity)
        plan = step_plan
        if head.record is not None and needs_own_policy(plan, head.record):
            plan = yield from _plan_of_run(plan, head.record)
        now = yield NOW
        # A second call of the key: end, wait, or a head that may be claimed.
        if head.record is None:
            ready: Any = transitions.allow_new_run(plan, call, head, now) if call.deadline else head
        else:
            ready = yield from handle_existing_run(plan, call, head, now)
        head = None
        if ready is None:
            continue
        if type(ready) is EndCall:
            return (yield from _end_without_attempt(plan, ready))
        # Operators and governance: a switch, a dataset or a missing approval stops the attempt.
        is_plain = ready.record is None and not (plan.requires_approval or call.dataset or call.masking)
        approved, names, gated = ("", (plan.name,), None) if is_plain else _list_checks(plan, call, ready)
        request = (names, call.tenant, approved, plan.obeys_switches, plan.pipeline, gated or (), False)
        permission = yield make(AskPermission, request)
        refusal: Any = None
        if permission.stop or approved or gated is not None:
            refusal = yield from admission.check_permission(plan, call, ready, permission, now)
        # The worker that makes the attempt, and the limits that may defer it.
        if refusal is None:
            continued = None if ready.record is None else ready
            terms = yield make(ReserveWorker, (plan.policy_name, plan.policy, plan.policy_source, continued))
            breaker_pass: Any = None
            if plan.artifact or plan.breaker or plan.rate or plan.queue or plan.autonomy:
                limits = yield from _pass_limits(plan, call, terms, ready, now)
                if limits is None:
                    call.took_part = True
                    continue
                breaker_pass, now, refusal = limits
        # The claim is also the INTENT: counted before the attempt runs, under a new fence.
        guards = permission.guards
        if refusal is None:
            claim = transitions.build_claim(
                plan, call, terms, ready.record, now, approval=permission.approval, step_plan=step_plan
            )
            if plan.cooldown is not None:
                guards, refusal = yield from cooldown_step.guard_claim(plan.cooldown, ready, claim, guards)
        if refusal is not None:
            # A guessed head may hide a finished run: its value is returned, and the call not refused.
            if refusal is not CONFLICT and not is_guess:
                return (yield from _end_without_attempt(plan, refusal))
            is_guess = False
            continue
        if breaker_pass is None:
            fields = (ready, claim, plan.effect != "pure", (), None, (), guards, not approved)
            op = make(AppendChange, fields)
        else:
            op = breaker_pass.build_claim(ready, claim, now, guards, late=not approved)
        claimed = yield op
        if type(claimed) is VoidClaim:
            yield from failure.release_claim(plan, claimed.head, now)
        if claimed is None or type(claimed) is VoidClaim:
            continue
        # The attempt, and its outcome: COMMIT, or a failure with the decision about it.
        outcome = yield make(RunAttempt, (claimed, *transitions.attempt_limit(plan, claimed.record, now)))
        now = yield NOW
        end = yield from record_outcome(plan, outcome, now)
        if end is not None:
            return end
        call.took_part, step_plan = True, cooldown_step.mark_executed(step_plan)


def _list_checks(
    plan: StepPlan, call: PreparedCall, head: LoadedHead
) -> tuple[str, tuple[str, ...], tuple[str, ...] | None]:
    """Return the entity to approve, the names that switches stop it by, and the datasets to ask about."""
    names = transitions.step_names(plan, head.record)
    return transitions.approval_entity(plan, head), names, gate.list_gated_datasets(call, head.record)


def _plan_of_run(plan: StepPlan, run: RunRecord) -> Script:
    """Return the plan with the policy that the run began with, where the step has another one now (POL-12).

    Only the policy is pinned: switches, breakers, rates and budgets are those of the step as it is now.
    """
    policy = yield LoadPolicy(run.policy)
    return plan if policy is None else plan.copy_with(policy=policy, policy_name=run.policy)


def _end_without_attempt(plan: StepPlan, end: EndCall) -> Script:
    """Return the end of a call, with the cooldown of its resource as the error if that is the cause."""
    return end if plan.cooldown is None else (yield from cooldown_step.explain_end(plan.cooldown, end))


def _pass_limits(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: Any
) -> Script:
    """Check the artifact, the queue, the breaker and the rate limit.

    Return the pass of the breaker and the queue, the time, and the end of the call if a limit ends it; or
    None if the run was completed from its artifact, or deferred.
    """
    if plan.artifact and (yield from admission.complete_from_artifact(plan, call, terms, head, now)):
        return None
    breaker_pass: Any = None
    slot = end = matrix = None
    if plan.autonomy is not None:
        plan, matrix, end = yield from autonomy.obey_matrix(plan, call, terms, head, now)
        if plan is None or end is not None:
            return plan and (None, now, end)
    if plan.queue is not None:
        slot = yield from queue_step.wait_for_slot(plan, call, terms, head, now)
        if slot is None or type(slot) is EndCall:
            return slot and (None, now, slot)
        now = yield NOW
    if plan.breaker is not None:
        breaker_pass = yield from admission.pass_breaker(plan, call, terms, head, now)
        if breaker_pass is None:
            return None
    if plan.rate is not None:
        now, end = yield from admission.wait_for_rate(plan, call, terms, head, now)
        if now is None:
            return None
    if plan.queue is not None and end is None:
        breaker_pass = yield from queue_step.pass_queue(plan, slot, breaker_pass)
        if breaker_pass is None:
            return None
    if matrix is not None:
        breaker_pass = matrix._replace(inner=breaker_pass)
    return breaker_pass, now, end


# The outcome of an attempt --------------------------------------------------------------------------


def record_outcome(plan: StepPlan, outcome: AttemptOutcome, now: float) -> Script:
    """Append the outcome of an attempt; return the call's end, or None if the call continues."""
    while True:
        record = commit_result if outcome.error is None else failure.record_failure
        if type(outcome.value) is ParkRequest:
            record = park_run
        end = yield from record(plan, outcome, now)
        if end is not CONFLICT:
            return end
        head = yield LoadHead(outcome.head.entity)
        if head.record.state != "RUNNING" or head.record.fence != outcome.head.record.fence:
            break
        # The attempt still holds the run: a signal, or its own checkpoint with a lost acknowledgement, moved
        # the head.
        outcome = outcome._replace(head=head)
    # Another attempt took the run over. A `once` effect may have happened twice, so the caller must know.
    if outcome.error is None and plan.effect == "once":
        return EndCall(None, refusals.lease_lost(plan, outcome.head))
    # For every other effect the recorded outcome is the right one: the caller reads it.
    if outcome.error is None or isinstance(outcome.error, Exception):
        return None
    return EndCall(None, outcome.error)


def commit_result(plan: StepPlan, outcome: AttemptOutcome, now: float) -> Script:
    """Append the result; return the end of the call, or CONFLICT.

    A value that cannot be encoded fails a `pure` step. Any other effect has happened, so its run is COMPLETE
    without a value: running it again would do it twice.
    """
    # An earlier attempt committed in the user's database and lost its record here: its marker has the body.
    if outcome.applied is not None:
        return (yield from _append_commit(plan, outcome, *outcome.applied, now))
    head = outcome.head
    lost: ResultUnavailable | None = None
    try:
        is_plain = plan.stores_plain and is_plain_result(outcome.value)
        body = {"result": outcome.value if is_plain else plan.encode(outcome.value)}
    except Exception as fault:  # noqa: BLE001 - encoders of user types may raise anything
        lost = refusals.result_not_encodable(plan, head, fault, outcome.value)
        if plan.effect == "pure":
            return (yield from _fail_without_result(plan, outcome, lost, now))
        body = {"result_unavailable": str(lost)}
    events = outcome.events
    if lost is None and not is_plain and plan.is_large(body["result"]):
        body, events = yield from _spill_large_result(head, body, events)
    if outcome.artifacts:
        body["artifacts"] = outcome.artifacts
    # With the artifacts and the result, the edges of the run's lineage (LIN-5).
    if outcome.used:
        body["used"] = outcome.used
    if outcome.mark is not None:
        # The user's transaction commits first, with our marker in it. A crash after it is settled from there.
        transaction = yield CommitTransaction(head, outcome.mark, body, events)
        if transaction.error is not None:
            return (yield from failure.record_failure(plan, outcome._replace(error=transaction.error), now))
    return (yield from _append_commit(plan, outcome, body, events, now, lost))


def _append_commit(
    plan: StepPlan,
    outcome: AttemptOutcome,
    body: dict[str, Any],
    events: Any,
    now: float,
    lost: Exception | None = None,
) -> Script:
    """Append COMMIT with its events, and the breaker's and the resource's record where there are such."""
    head = outcome.head
    # To the microsecond, without the text that `round(…, 6)` formats and reads again.
    body["duration_s"] = round((now - head.record.started_at) * 1e6) / 1e6
    if outcome.usage is not None:
        body["usage"] = outcome.usage
    change = transitions.build_commit(head, body)
    other: tuple[Any, ...] = ()
    if plan.breaker is not None:
        other = yield from breaker_step.success_writes(plan, head, now)
    if plan.autonomy is not None:
        other = (*other, *(yield from autonomy.settle_outcome(plan, outcome, now)))
    if plan.cooldown is not None:
        other = (*other, *(yield from cooldown_step.resource_writes(plan.cooldown, head, change, events)))
    append: tuple[Any, ...] = (head, change, True, events, outcome.joined_write, other, {}, False)
    saved = yield make(AppendChange, append)
    if saved is None:
        return CONFLICT
    # The user's `on_commit` write failed and rolled the entry back: that is a failed attempt.
    if type(saved) is JoinedWriteFailed:
        return (yield from failure.record_failure(plan, outcome._replace(error=saved.__cause__), now))
    if plan.budget is not None:
        yield EarnBudget(plan.budget)
    if lost is not None:
        return EndCall(None, lost)
    return transitions.end_from_last_entry(plan, saved) or (
        yield from failure.end_from_stored_value(plan, saved)
    )


def _fail_without_result(
    plan: StepPlan, outcome: AttemptOutcome, lost: ResultUnavailable, now: float
) -> Script:
    """Fail a `pure` step because its value cannot be stored; return the end, or CONFLICT."""
    head = outcome.head
    closing, remarks = (
        close_run(head.record, "result_unavailable", now),
        transitions.measured_body(outcome, now),
    )
    error = plan.describe(lost, None)
    change = transitions.build_closing(plan, head, closing, error, remarks, permanent=True)
    breaker_writes = yield from breaker_step.success_writes(plan, head, now)
    saved = yield from cooldown_step.append_to_run(plan, head, change, also=breaker_writes)
    return CONFLICT if saved is None else EndCall(None, refusals.run_failed(plan, saved, lost, None))


def _spill_large_result(head: LoadedHead, body: dict[str, Any], events: tuple[Any, ...]) -> Script:
    """Store a large result as an artifact; return body and events with the reference to it.

    If the artifact store fails, the result stays in the body.
    """
    answer = yield SpillResult(head, body["result"])
    if answer is None:
        return body, events
    ref, artifact = answer
    spilled = {"ref": ref, "digest": artifact.digest, "size": artifact.size}
    return {"spilled": spilled}, (*events, (artifact, None))
