"""The script of a durable call, from the key to the value.

`run_step` is a generator: it yields the operations it wants done (`steps.ops`) and is sent their results. A
driver (`steps.driver`) performs them, blocking or awaiting. Nothing happens between two operations, so a
crash falls before or after one of them:

    before the claim is stored      nothing has begun; a stored claim counts as an attempt
    between claim and outcome       the effect may have happened: the next caller or worker finds RUNNING with
                                    a dead worker and closes the attempt by its effect class
    after the outcome is stored     everything has happened and is recorded

Every write is a compare-and-set on the head that was read. On a conflict nothing is written, and the script
reads and decides again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.steps import transitions
from oncemore.steps.admission import (
    NOW,
    approval_entity,
    check_permission,
    complete_from_artifact,
    pass_breaker,
    step_names,
    wait_for_rate,
)
from oncemore.steps.existing_run import WAITED, allow_new_run, handle_existing_run
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    AttemptOutcome,
    EndCall,
    LoadHead,
    LoadPolicy,
    ReserveWorker,
    RunAttempt,
    VoidClaim,
)
from oncemore.steps.outcome import CONFLICT, close_interrupted, record_outcome
from oncemore.steps.recorded_policies import needs_own_policy

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.steps.ops import AttemptTerms, CallIdentity, LoadedHead, Script, StepPlan


def run_step(plan: StepPlan, call: CallIdentity, head: LoadedHead | None = None) -> Script:
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
        ready: Any = allow_new_run(plan, call, head, now) if head.record is None else None
        if ready is None:
            ready = yield from handle_existing_run(plan, call, head, now)
        head = None
        if ready is WAITED:
            step_plan = _with_stored_failure(step_plan)
        if ready is None or ready is WAITED:
            continue
        if type(ready) is EndCall:
            yield ready
            return
        # Operators: a switch or a missing approval stops the attempt.
        approved = approval_entity(plan, ready)
        names = step_names(plan, ready.record)
        permission = yield make(AskPermission, (names, call.tenant, approved, plan.gated, plan.pipeline))
        if permission.stop or approved:
            refused = yield from check_permission(plan, call, ready, permission, now)
            if refused is CONFLICT or (refused is not None and is_guess):
                is_guess = False  # the guessed head may hide a finished run, whose value is not refused
                continue
            if refused is not None:
                yield refused
                return
        # The worker that makes the attempt, and the limits that may defer it.
        continued = None if ready.record is None else ready
        terms = yield make(ReserveWorker, (plan.policy_name, plan.policy, plan.policy_source, continued))
        breaker_pass: Any = None
        if plan.artifact or plan.barrier is not None or plan.beat is not None:
            passed = yield from _pass_limits(plan, call, terms, ready, now)
            if passed is None:
                step_plan = _with_stored_failure(step_plan)
                continue
            breaker_pass, now = passed
        # The claim and INTENT: counted before the attempt runs, under a new fence.
        claim = transitions.build_claim(plan, call, terms, ready.record, now, permission, step_plan)
        is_late = not approved
        if breaker_pass is None:
            guards, is_synced = permission.guards, plan.effect != "pure"
            claimed = yield AppendChange(ready, claim, is_synced, guards=guards, late=is_late)
        else:
            claimed = yield breaker_pass.build_claim(ready, claim, now, permission.guards, late=is_late)
        if type(claimed) is VoidClaim:
            yield from _release_claim(plan, claimed.seen, now)
            continue
        if claimed is None:
            continue
        # The attempt, and its outcome: COMMIT, or a failure with the decision about it.
        done = yield make(RunAttempt, (claimed, *transitions.attempt_limit(plan, claimed.record, now)))
        now = yield NOW
        ended = yield from record_outcome(plan, done, now)
        if ended is not None:
            yield ended
            return
        step_plan = _with_stored_failure(step_plan)


def _pass_limits(
    plan: StepPlan, call: CallIdentity, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Check the artifact, the breaker and the rate limit; return the breaker's pass and the time.

    Return None if the run was completed from its artifact, or deferred.
    """
    if plan.artifact and (yield from complete_from_artifact(plan, call, terms, head, now)):
        return None
    breaker_pass = None
    if plan.barrier is not None:
        breaker_pass = yield from pass_breaker(plan, call, terms, head, now)
        if breaker_pass is None:
            return None
    if plan.beat is not None:
        now = yield from wait_for_rate(plan, call, terms, head, now)
    return None if now is None else (breaker_pass, now)


def _plan_of_run(plan: StepPlan, run: RunRecord) -> Script:
    """Return the plan with the policy that the run began with, where the step has another one now (POL-12).

    Only the policy is pinned: switches, breakers, rates and budgets are those of the step as it is now.
    """
    policy = yield LoadPolicy(run.policy)
    return plan if policy is None else plan.copy_with(policy=policy, policy_name=run.policy)


def _with_stored_failure(plan: StepPlan) -> StepPlan:
    """Return the plan of a call that has taken part in a run: if that run fails, so does the call.

    Otherwise every caller that waits for failing work would begin a new run of it, one after the other.
    """
    return plan if plan.after_failure == "raise" else plan.copy_with(after_failure="raise")


def _release_claim(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Release a claim that may not begin; its number stays used, and it does not count as an attempt.

    Another process can change the run meanwhile, for example cancel it: then the release is tried again on
    the new head.
    """
    fence = head.record.fence
    while head.record.state == "RUNNING" and head.record.fence == fence:
        if (yield from close_interrupted(plan, AttemptOutcome(head, begun=False), now)) is not None:
            return
        head = yield LoadHead(head.entity)
