"""Record an attempt that failed, was interrupted, or was lost with its worker.

These are parts of the script in `steps.flow`: generators that yield operations and are sent their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.control.permits import halt_pipeline
from oncemore.limits import breaker_step, budget_step, cooldown_step
from oncemore.policy.closing import OUTCOME_UNKNOWN, close_run
from oncemore.steps import refusals, transitions
from oncemore.steps.failure_decision import decide_failure
from oncemore.steps.ops import (
    CONFLICT,
    AskReconcile,
    AttemptOutcome,
    EndCall,
    FetchResult,
    LoadHead,
    ReadBody,
    ReconcileAnswer,
)
from oncemore.telemetry import autonomy
from oncemore.telemetry.surroundings import read_surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.log.record import LoadedHead
    from oncemore.steps.ops import Output, Script
    from oncemore.steps.plan import StepPlan

UNKNOWN = ReconcileAnswer("unknown")


def record_failure(plan: StepPlan, outcome: AttemptOutcome, now: float) -> Script:
    """Append a failed or interrupted attempt; return the end, None to continue, or CONFLICT."""
    if isinstance(outcome.error, Exception):
        return (yield from _fail_attempt(plan, outcome, outcome.error, now))
    saved = yield from close_interrupted(plan, outcome, now)
    # Ctrl-C and cancellation are raised again once the run is closed.
    return CONFLICT if saved is None else EndCall(None, outcome.error)


def _fail_attempt(plan: StepPlan, outcome: AttemptOutcome, error: Exception, now: float) -> Script:
    """Classify the error, decide, and append both; return the end, None to continue, or CONFLICT."""
    head, run = outcome.head, outcome.head.record
    in_force = yield from autonomy.load_in_force(plan, run.priority)
    around = yield from read_surroundings(plan, outcome, now, in_force)
    decision = decide_failure(plan, run, error, now, around)
    failure = decision.situation.failure
    described = plan.describe(error, failure)
    also: tuple[Any, ...] = ()
    remarks: dict[str, Any] = {}
    if plan.breaker is not None:
        head, decision, also, remarks = yield from breaker_step.apply_failure(
            plan, head, decision, described, now
        )
    payment: budget_step.BudgetPayment | None = None
    if plan.budget is not None:
        payment = yield from budget_step.pay_for_retry(plan, head.entity, decision)
        decision, also = payment.decision, (*also, *payment.also)
        if payment.budget_debt:
            head = head._replace(record=head.record._replace(budget_debt=payment.budget_debt))
    # What `on=` or `until=` of the step retries does not halt its pipeline.
    if plan.halts and decision.situation.verdict != "RETRYABLE":
        also = (*also, *(yield from halt_pipeline(plan, run, failure, now)))
    if decision.situation.verdict == "UNKNOWN":
        answer = (yield AskReconcile(head)) if plan.has_reconcile else UNKNOWN
        change = transitions.build_reconciled(plan, head, answer, OUTCOME_UNKNOWN, now, described)
    else:
        change = transitions.build_failure(plan, head, described, decision, now)
    if plan.autonomy is not None:
        also = (*also, *(yield from autonomy.settle_outcome(plan, outcome, now, decision)))
    measured = transitions.measured_body(outcome, now)
    # The next attempt must not work with other inputs (LIN-7).
    if outcome.used:
        remarks = {**remarks, "used": outcome.used}
    change = change._replace(before=run, body={**change.body, **measured, **remarks})
    saved = yield from cooldown_step.append_to_run(
        plan, outcome.head, change, events=outcome.evidence, also=also
    )
    if saved is None:
        yield from budget_step.refund_payment(payment)
        return CONFLICT
    # The provider asks for a longer wait than the policy allows: the resource cools down, and the call ends.
    if plan.cooldown is not None and saved.record.reason == cooldown_step.BEYOND:
        return (yield from cooldown_step.end_deferred(plan.cooldown, saved))
    if decision.action == "quarantine" and decision.situation.verdict != "UNKNOWN":
        return EndCall(None, refusals.run_held(plan, saved, error))
    # COMPLETE by reconcile, or waiting: the call reads the run again and does as any other caller would.
    if saved.record.state in ("COMPLETE", "SOFT_FAIL"):
        return None
    return EndCall(None, refusals.run_failed(plan, saved, error, None))


# An attempt that ended without an outcome -----------------------------------------------------------


def close_interrupted(plan: StepPlan, outcome: AttemptOutcome, now: float) -> Script:
    """Close the caller's own attempt after Ctrl-C or a cancellation; return the new head or None."""
    run = outcome.head.record
    breaker_writes = yield from breaker_step.release_writes(plan, outcome.head, now)
    if outcome.begun:
        return (
            yield from close_lost_attempt(
                plan, outcome.head, "interrupted", now, may_ask=False, evidence=outcome.evidence,
                also=breaker_writes, measured=transitions.measured_body(outcome, now),
            )
        )  # fmt: skip
    # The function was never called, so the attempt does not count.
    closing, error = close_run(run, "released", now), refusals.LOST["released"]
    change = transitions.build_closing(plan, outcome.head, closing, error)
    return (yield from cooldown_step.append_to_run(plan, outcome.head, change, also=breaker_writes))


def release_claim(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Release a claim that may not begin; its number stays used, and it does not count as an attempt.

    Another process can change the run meanwhile, for example cancel it: then the release is tried again on
    the new head.
    """
    fence = head.record.fence
    while head.record.state == "RUNNING" and head.record.fence == fence:
        if (yield from close_interrupted(plan, AttemptOutcome(head, begun=False), now)) is not None:
            return
        head = yield LoadHead(head.entity)


def close_lost_attempt(
    plan: StepPlan,
    head: LoadedHead,
    reason: str,
    now: float,
    *,
    may_ask: bool = True,
    evidence: tuple[Output, ...] = (),
    also: tuple[Any, ...] = (),
    measured: Mapping[str, Any] = transitions.NO_REMARKS,
) -> Script:
    """Close an attempt after its worker has died; return the new head, or None on a conflict.

    The effect class decides. A `once` effect may have happened: `reconcile` is asked, or the run is held.
    Every other effect is tried again, and the lost attempt counts (`count_lost_attempt`). If workers died
    until the budget is spent, the run may be the cause: it is held, and no policy begins a new run of it.
    """
    run, error = head.record, refusals.LOST[reason]
    if run.effect == "once":
        answer = (yield AskReconcile(head)) if plan.has_reconcile and may_ask else UNKNOWN
        change = transitions.build_reconciled(plan, head, answer, reason, now, error)
    else:
        change = transitions.build_closing(plan, head, close_run(run, reason, now), error)
    if measured:
        change = change._replace(body={**change.body, **measured})
    return (yield from cooldown_step.append_to_run(plan, head, change, events=evidence, also=also))


# Stored results -------------------------------------------------------------------------------------


def end_from_stored_value(plan: StepPlan, head: LoadedHead) -> Script:
    """Return the end with the value as it was stored.

    The first caller gets the decoded value too, so that the first call and every later one behave alike.
    """
    body = yield from read_entry_body(head, head.record.commit_version)
    if "result_unavailable" in body:
        return EndCall(None, refusals.result_unavailable(plan, head, body["result_unavailable"]))
    if "spilled" in body:
        encoded = yield FetchResult(body["spilled"])
        if isinstance(encoded, Exception):
            return EndCall(None, refusals.artifact_altered(plan, head, encoded))
        return EndCall(plan.decode(encoded), None)
    return EndCall(plan.decode(body["result"]), None)


def read_entry_body(head: LoadedHead, version: int) -> Script:
    """Return the body of an entry; the body of the last entry was read with the head."""
    if version == head.version and head.body is not None:
        return head.body
    return (yield ReadBody(head.entity, version))
