"""Record what an attempt came to: the result, a failure with its decision, or an interruption.

These are parts of the script in `steps.flow`: generators that yield operations and are sent their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.control import pipeline_halt
from oncemore.limits import breaker_step, budget_step
from oncemore.log.store import JoinedWriteFailed
from oncemore.policy.closing import OUTCOME_UNKNOWN, close_run
from oncemore.steps import refusals, transitions
from oncemore.steps.ops import (
    AppendChange,
    AskReconcile,
    CommitTransaction,
    EarnBudget,
    EndCall,
    FetchResult,
    LoadHead,
    ReadBody,
    ReconcileAnswer,
    SpillResult,
)

if TYPE_CHECKING:
    from oncemore.errors import ResultUnavailable
    from oncemore.steps.ops import AttemptOutcome, Given, LoadedHead, Script, StepPlan

UNKNOWN = ReconcileAnswer("unknown")
#: A compare-and-set failed: the run changed after it was read, and nothing was written.
CONFLICT = object()


def record_outcome(plan: StepPlan, done: AttemptOutcome, now: float) -> Script:
    """Append the outcome of an attempt; return the call's end, or None if the call continues."""
    while True:
        ended = yield from (commit_result if done.error is None else record_failure)(plan, done, now)
        if ended is not CONFLICT:
            return ended
        head = yield LoadHead(done.seen.entity)
        if head.record.state != "RUNNING" or head.record.fence != done.seen.record.fence:
            break
        # The attempt still holds the run: its own checkpoint, whose acknowledgement was lost, moved the head.
        done = done._replace(seen=head)
    # Another attempt took the run over. A `once` effect may have happened twice, so the caller must know.
    if done.error is None and plan.effect == "once":
        return EndCall(None, refusals.lease_lost(plan, done.seen))
    # For every other effect the recorded outcome is the right one: the caller reads it.
    if done.error is None or isinstance(done.error, Exception):
        return None
    return EndCall(None, done.error)


def record_failure(plan: StepPlan, done: AttemptOutcome, now: float) -> Script:
    """Append a failed or interrupted attempt; return the end, None to continue, or CONFLICT."""
    if isinstance(done.error, Exception):
        return (yield from _fail_attempt(plan, done, done.error, now))
    saved = yield from close_interrupted(plan, done, now)
    # Ctrl-C and cancellation are raised again once the run is closed.
    return CONFLICT if saved is None else EndCall(None, done.error)


# A result -------------------------------------------------------------------------------------------


def commit_result(plan: StepPlan, done: AttemptOutcome, now: float) -> Script:
    """Append the result; return the end of the call, or CONFLICT.

    A value that cannot be encoded fails a `pure` step. Any other effect has happened, so its run is COMPLETE
    without a value: running it again would do it twice.
    """
    # An earlier attempt committed in the user's database and lost its record here: its marker has the body.
    if done.applied is not None:
        return (yield from _append_commit(plan, done, *done.applied, now))
    head, run = done.seen, done.seen.record
    lost: ResultUnavailable | None = None
    try:
        body = {"result": plan.encode(done.value)}
    except Exception as fault:  # noqa: BLE001 - encoders of user types may raise anything
        lost = refusals.result_not_encodable(plan, head, fault, done.value)
        if plan.effect == "pure":
            closing = close_run(run, "result_unavailable", now)
            change = transitions.build_closing(plan, head, closing, plan.describe(lost, None), permanent=True)
            breaker_writes = yield from breaker_step.success_writes(plan, head, now)
            saved = yield AppendChange(head, change, also=breaker_writes)
            return CONFLICT if saved is None else EndCall(None, refusals.run_failed(plan, saved, lost, None))
        body = {"result_unavailable": str(lost)}
    events = done.events
    if lost is None and plan.large(body["result"]):
        body, events = yield from _spill_large_result(head, body, events)
    if done.artifacts:
        body["artifacts"] = done.artifacts
    if done.mark is not None:
        # The user's transaction commits first, with our marker in it. A crash after it is settled from there.
        finished = yield CommitTransaction(head, done.mark, body, events)
        if finished.error is not None:
            return (yield from record_failure(plan, done._replace(error=finished.error), now))
    return (yield from _append_commit(plan, done, body, events, now, lost))


def _append_commit(
    plan: StepPlan,
    done: AttemptOutcome,
    body: dict[str, Any],
    events: Any,
    now: float,
    lost: Exception | None = None,
) -> Script:
    """Append COMMIT with its events, and the breaker's record where the provider has a breaker."""
    head = done.seen
    body["duration_s"] = round(now - head.record.started_at, 6)
    breaker_writes = () if plan.barrier is None else (yield from breaker_step.success_writes(plan, head, now))
    saved = yield AppendChange(
        head, transitions.build_commit(head, body), True, events, done.also, breaker_writes
    )
    if saved is None:
        return CONFLICT
    # The user's `on_commit` write failed and rolled the entry back: that is a failed attempt.
    if type(saved) is JoinedWriteFailed:
        return (yield from record_failure(plan, done._replace(error=saved.__cause__), now))
    if plan.purse is not None:
        yield EarnBudget(plan.purse)
    if lost is not None:
        return EndCall(None, lost)
    return end_from_last_entry(plan, saved) or (yield from end_from_stored_value(plan, saved))


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


def end_from_last_entry(plan: StepPlan, head: LoadedHead) -> EndCall | None:
    """Return the end with the stored value if the head's last entry holds it; None otherwise."""
    body = head.body
    if not body or "result" not in body:
        return None
    return make(EndCall, (plan.decode(body["result"]), None))


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


# A failure ------------------------------------------------------------------------------------------


def _fail_attempt(plan: StepPlan, done: AttemptOutcome, error: Exception, now: float) -> Script:
    """Classify the error, decide, and append both; return the end, None to continue, or CONFLICT."""
    head, run = done.seen, done.seen.record
    decision = transitions.decide_failure(plan, run, error, now)
    failure = decision.situation.failure
    described = plan.describe(error, failure)
    also: tuple[Any, ...] = ()
    remarks: dict[str, Any] = {}
    if plan.barrier is not None:
        head, decision, also, remarks = yield from breaker_step.apply_failure(
            plan, head, decision, described, now
        )
    payment: budget_step.BudgetPayment | None = None
    if plan.purse is not None:
        payment = yield from budget_step.pay_for_retry(plan, head.entity, decision)
        decision, also = payment.decision, (*also, *payment.also)
        if payment.budget_debt:
            head = head._replace(record=head.record._replace(budget_debt=payment.budget_debt))
    if plan.halts:
        also = (*also, *(yield from pipeline_halt.halt(plan, run, failure, now)))
    if decision.situation.verdict == "UNKNOWN":
        answer = (yield AskReconcile(head)) if plan.asks else UNKNOWN
        change = transitions.build_reconciled(plan, head, answer, OUTCOME_UNKNOWN, now, described)
    else:
        change = transitions.build_failure(plan, head, described, decision, now)
    if remarks or head is not done.seen:
        change = change._replace(before=run, body={**change.body, **remarks})
    saved = yield AppendChange(done.seen, change, True, done.evidence, also=also)
    if saved is None:
        yield from budget_step.refund_payment(payment)
        return CONFLICT
    if decision.action == "quarantine" and decision.situation.verdict != "UNKNOWN":
        return EndCall(None, refusals.run_held(plan, saved, error))
    # COMPLETE by reconcile, or waiting: the call reads the run again and does as any other caller would.
    if saved.record.state in ("COMPLETE", "SOFT_FAIL"):
        return None
    return EndCall(None, refusals.run_failed(plan, saved, error, None))


# An attempt that ended without an outcome -----------------------------------------------------------


def close_interrupted(plan: StepPlan, done: AttemptOutcome, now: float) -> Script:
    """Close the caller's own attempt after Ctrl-C or a cancellation; return the new head or None."""
    run = done.seen.record
    breaker_writes = yield from breaker_step.release_writes(plan, done.seen, now)
    if done.begun:
        return (
            yield from close_lost_attempt(
                plan, done.seen, "interrupted", now, may_ask=False, evidence=done.evidence,
                also=breaker_writes,
            )
        )  # fmt: skip
    # The function was never called, so the attempt does not count.
    closing, error = close_run(run, "released", now), refusals.LOST["released"]
    change = transitions.build_closing(plan, done.seen, closing, error, attempt_count=run.attempt_count - 1)
    return (yield AppendChange(done.seen, change, also=breaker_writes))


def close_lost_attempt(
    plan: StepPlan,
    head: LoadedHead,
    reason: str,
    now: float,
    *,
    may_ask: bool = True,
    evidence: tuple[Given, ...] = (),
    also: tuple[Any, ...] = (),
) -> Script:
    """Close an attempt whose worker is gone; return the new head, or None on a conflict.

    The effect class decides. A `once` effect may have happened: `reconcile` is asked, or the run is held.
    Every other effect is tried again, and the lost attempt counts. A run whose workers died until no attempt
    is left may be the cause of their death: it is held, and no policy begins a new run of it.
    """
    run, error = head.record, refusals.LOST[reason]
    if run.effect == "once":
        answer = (yield AskReconcile(head)) if plan.asks and may_ask else UNKNOWN
        change = transitions.build_reconciled(plan, head, answer, reason, now, error)
    else:
        change = transitions.build_closing(plan, head, close_run(run, reason, now), error)
    return (yield AppendChange(head, change, True, evidence, also=also))
