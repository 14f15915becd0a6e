"""Scripts beside a call: submit work for a worker, cancel it, run it again, settle an unknown outcome.

Each is a generator like `steps.flow.run_step` and runs on the same drivers. A write is a compare-and-set on
the head that was read; on a conflict the script reads again and decides again. Decisions of operators are
refused in a log that has been moved to another store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.control.model import LOG_MOVED
from oncemore.control.moved_log import append_decision, refuse_if_moved
from oncemore.governance.gate import check_not_blocked, find_open_review
from oncemore.limits import cooldown_step
from oncemore.log.record import RecordChange
from oncemore.policy.canonical_json import hash_bytes
from oncemore.policy.closing import OUTCOME_UNKNOWN, close_run
from oncemore.steps import refusals, transitions
from oncemore.steps.admission import ARTIFACT_EXISTS
from oncemore.steps.existing_run import is_outdated
from oncemore.steps.ops import (
    NOW,
    AppendChange,
    AskPermission,
    EndCall,
    LoadHead,
    PrepareSubmission,
    ReserveWorker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.record import LoadedHead
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import ReconcileAnswer, Script
    from oncemore.steps.plan import StepPlan

    DecisionMaker = Callable[[LoadedHead, float], dict[str, Any]]


def describe_answer(answer: ReconcileAnswer, encode: Callable[[Any], Any]) -> dict[str, Any]:
    """Return an operator's answer for the record of the decision: the outcome, and a digest of the value.

    Raises for a value that cannot be encoded.
    """
    if answer.outcome != "applied":
        return {"outcome": answer.outcome}
    # The value itself may be large; its digest is what a signature over the decision covers.
    digest = hash_bytes(bytes(encode(answer.value))).hex()
    return {"outcome": answer.outcome, "result_sha256": digest}


def reopen_run(plan: StepPlan, call: PreparedCall, decide: DecisionMaker) -> Script:
    """Begin a new run of failed work because an operator asked for it; it then runs as usual.

    decide  head and time → the record of the decision
    """
    refused = yield from refuse_if_moved(plan.name)
    while refused is None:
        head = yield LoadHead(call.entity)
        now = yield NOW
        run = head.record
        error = transitions.check_same_arguments(plan, call, run) or refusals.cannot_reopen(plan, call, run)
        guards: Mapping[str, int] = {}
        if error is None:
            error, guards = yield from check_not_blocked(run)
        if error is None and (review := (yield from find_open_review(run))):
            error = refusals.review_missing(plan, head, review)
        if error is not None:
            return EndCall(None, error)
        terms = yield make(ReserveWorker, (plan.policy_name, plan.policy, plan.policy_source, None))
        body = {**transitions.opening_body(terms), "decision": decide(head, now)}
        after = transitions.new_run(plan, call, terms, run, now)._replace(not_before=now)
        change = RecordChange(("PENDING",), run, after, body)
        # The resource is released in the same write, or the new run would be skipped at once.
        also = yield from cooldown_step.release_writes(plan, body)
        saved = yield from append_decision(plan.name, AppendChange(head, change, also=also, guards=guards))
        if saved is not None:
            refused = saved if type(saved) is EndCall else EndCall(None, None)
    return refused


def settle_run(
    plan: StepPlan, call: PreparedCall, answer: ReconcileAnswer, head: LoadedHead | None = None
) -> Script:
    """Record an operator's answer about an unknown outcome.

    Of two operators the second is refused: the run is no longer the one that was looked at.
    """
    moved = yield from refuse_if_moved(plan.name)
    if moved is not None:
        return moved
    head = head or (yield LoadHead(call.entity))
    now = yield NOW
    error = transitions.check_same_arguments(plan, call, head.record)
    if error is None:
        saved = None
        # No second try after a conflict: the operator answered about the run that was read.
        if head.record is not None and head.record.held_for == OUTCOME_UNKNOWN:
            change = transitions.build_reconciled(plan, head, answer, "decided", now)
            saved = yield from append_decision(plan.name, AppendChange(head, change))
        if type(saved) is EndCall:
            return saved
        error = refusals.nothing_to_settle(plan, call) if saved is None else None
    return EndCall(None, error)


def note_redelivery(call: PreparedCall) -> Script:
    """Record that a delivered message found its work done (LEASE-5): COMPLETE, `artifact_exists`.

    Once per run, so that a queue that redelivers for ever does not make the log grow for ever. The result
    stays in the COMMIT. A run of another config is left to the call itself.
    """
    saved = None
    while saved is None:
        head = yield LoadHead(call.entity)
        run = head.record
        is_complete = run is not None and run.state == "COMPLETE" and not run.pruned_at
        if not is_complete or run.cfg_hash != call.cfg_hash or run.reason == ARTIFACT_EXISTS:
            break
        after = run._replace(reason=ARTIFACT_EXISTS)
        saved = yield AppendChange(head, RecordChange(("COMPLETE",), run, after))
    return EndCall(None, None)


def submit_run(plan: StepPlan, call: PreparedCall, due_at: float) -> Script:
    """Create a run in PENDING for a worker, unless the key has a run already.

    An existing run stays as it is, in any state: the same work is submitted once. Only a finished run
    that a call would replace, because its version or config changed, makes room for a new one.

    due_at  the earliest time of the first attempt; 0 for now
    """
    while True:
        submission = yield from build_submission(plan, call, due_at)
        if type(submission) is EndCall:
            return submission
        if (yield submission) is not None:
            return EndCall(None, None)


def build_submission(plan: StepPlan, call: PreparedCall, due_at: float) -> Script:
    """Return the `AppendChange` that creates the run of a submission, or the end if there is none to create.

    The end has an error if the submission is refused, and none if the key has a run already.
    """
    head = yield LoadHead(call.entity)
    now = yield NOW
    run = head.record
    ready: Any = EndCall(None, transitions.check_same_arguments(plan, call, run))
    if run is None or (ready.error is None and is_outdated(plan, call, run)):
        ready = transitions.allow_new_run(plan, call, head, now)
    if type(ready) is not EndCall:
        names = transitions.step_names(plan, run)
        permission = yield AskPermission(names, call.tenant, begins=False)
        # A switch stops attempts, and not submissions; a moved log accepts neither.
        if permission.stop == LOG_MOVED:
            ready = EndCall(None, refusals.switch_blocked(plan, call, permission))
    if type(ready) is EndCall:
        return ready
    terms = yield make(PrepareSubmission, (plan.policy_name, plan.policy, plan.policy_source))
    after = transitions.new_run(plan, call, terms, run, now)._replace(not_before=due_at or now)
    change = RecordChange(("PENDING",), run, after, transitions.opening_body(terms))
    return AppendChange(head, change, guards=permission.guards)


def cancel_run(plan: StepPlan, call: PreparedCall, reason: str, decide: DecisionMaker) -> Script:
    """Let no further attempt of the run begin.

    A waiting run ends at once. A running attempt is not interrupted: if it commits, the result stands; if it
    fails, it is not tried again.
    """
    refused = yield from refuse_if_moved(plan.name)
    while refused is None:
        head = yield LoadHead(call.entity)
        now = yield NOW
        run = head.record
        error = transitions.check_same_arguments(plan, call, run) or refusals.cannot_cancel(plan, call, run)
        if error is not None or run.cancelled_at:
            return EndCall(None, error)
        remarks = {"decision": decide(head, now)}
        # The running attempt reads this at its next checkpoint or when its failure is recorded.
        if run.state == "RUNNING":
            change = RecordChange(("DECISION",), run, run._replace(cancelled_at=now), remarks)
        else:
            record = {**refusals.CANCELLED, "message": reason}
            closing = close_run(run, "cancelled", now)
            change = transitions.build_closing(plan, head, closing, record, remarks, cancelled_at=now)
            change = change._replace(marks=("HARD_FAIL", "DECISION", "ESCALATION"))
        also: tuple[Any, ...] = ()
        if plan.cooldown is not None:
            also = yield from cooldown_step.resource_writes(plan.cooldown, head, change, ())
        saved = yield from append_decision(plan.name, AppendChange(head, change, also=also))
        if saved is not None:
            refused = saved if type(saved) is EndCall else EndCall(None, None)
    return refused
