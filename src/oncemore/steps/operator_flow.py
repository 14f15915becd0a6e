"""Scripts beside a call: submit work for a worker, cancel it, run it again, settle an unknown outcome.

Each is a generator like `steps.flow.run_step` and runs on the same drivers. A write is a compare-and-set on
the head that was read; on a conflict the script reads again and decides again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.control.model import LOG_MOVED
from oncemore.log.record import RecordChange
from oncemore.policy.closing import OUTCOME_UNKNOWN, close_run
from oncemore.steps import refusals, transitions
from oncemore.steps.admission import ARTIFACT_EXISTS, NOW, step_names
from oncemore.steps.existing_run import allow_new_run, check_same_arguments, is_outdated
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    EndCall,
    LoadHead,
    PrepareSubmission,
    ReserveWorker,
)

if TYPE_CHECKING:
    from oncemore.steps.ops import CallIdentity, LoadedHead, ReconcileAnswer, Script, StepPlan


def reopen_run(plan: StepPlan, call: CallIdentity, reason: str, actor: str) -> Script:
    """Begin a new run of failed work because an operator asked for it; it then runs as usual."""
    while True:
        head = yield LoadHead(call.entity)
        now = yield NOW
        run = head.record
        refused = check_same_arguments(plan, call, run) or refusals.cannot_reopen(plan, call, run)
        if refused is not None:
            yield EndCall(None, refused)
            return
        terms = yield make(ReserveWorker, (plan.policy_name, plan.policy, plan.policy_source, None))
        decision = {"action": "rerun", "reason": reason, "actor": actor}
        body = {**transitions.opening_body(terms), "decision": decision}
        after = transitions.new_run(plan, call, terms, run, now)._replace(not_before=now)
        if (yield AppendChange(head, RecordChange(("PENDING",), run, after, body))) is not None:
            yield EndCall(None, None)
            return


def settle_run(
    plan: StepPlan, call: CallIdentity, answer: ReconcileAnswer, head: LoadedHead | None = None
) -> Script:
    """Record what an operator found out about an unknown outcome.

    Of two operators the second is refused: the run is no longer the one that was looked at.
    """
    head = head or (yield LoadHead(call.entity))
    now = yield NOW
    refused = check_same_arguments(plan, call, head.record)
    if refused is None:
        saved = None
        if head.record is not None and head.record.held_for == OUTCOME_UNKNOWN:
            change = transitions.build_reconciled(plan, head, answer, "decided", now)
            saved = yield AppendChange(head, change)
        refused = refusals.nothing_to_settle(plan, call) if saved is None else None
    yield EndCall(None, refused)


def note_redelivery(call: CallIdentity) -> Script:
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
    yield EndCall(None, None)


def submit_run(plan: StepPlan, call: CallIdentity, due_at: float) -> Script:
    """Create a run in PENDING for a worker, unless the key has a run already.

    An existing run stays as it is, in whatever state: the same work is submitted once. Only a finished run
    that a call would replace, because its version or config changed, makes room for a new one.

    due_at  the earliest time of the first attempt; 0 for now
    """
    while True:
        head = yield LoadHead(call.entity)
        now = yield NOW
        run = head.record
        ready: Any = EndCall(None, check_same_arguments(plan, call, run))
        if run is None or (ready.error is None and is_outdated(plan, call, run)):
            ready = allow_new_run(plan, call, head, now)
        if type(ready) is not EndCall:
            permission = yield AskPermission(step_names(plan, run), call.tenant, begins=False)
            if permission.stop == LOG_MOVED:
                ready = EndCall(None, refusals.switch_blocked(plan, call, permission))
        if type(ready) is EndCall:
            yield ready
            return
        terms = yield make(PrepareSubmission, (plan.policy_name, plan.policy, plan.policy_source))
        after = transitions.new_run(plan, call, terms, run, now)._replace(not_before=due_at or now)
        change = RecordChange(("PENDING",), run, after, transitions.opening_body(terms))
        if (yield AppendChange(head, change, guards=permission.guards)) is not None:
            yield EndCall(None, None)
            return


def cancel_run(plan: StepPlan, call: CallIdentity, reason: str, actor: str) -> Script:
    """Let no further attempt of the run begin.

    A waiting run ends at once. A running attempt is not interrupted: if it commits, the result stands; if it
    fails, it is not tried again.
    """
    remarks = {"decision": {"action": "cancel", "reason": reason, "actor": actor}}
    while True:
        head = yield LoadHead(call.entity)
        now = yield NOW
        run = head.record
        refused = check_same_arguments(plan, call, run) or refusals.cannot_cancel(plan, call, run)
        if refused is not None or run.cancelled_at:
            yield EndCall(None, refused)
            return
        if run.state == "RUNNING":
            change = RecordChange(("DECISION",), run, run._replace(cancelled_at=now), remarks)
        else:
            error = {**refusals.CANCELLED, "message": reason}
            closing = close_run(run, "cancelled", now)
            change = transitions.build_closing(plan, head, closing, error, remarks, cancelled_at=now)
            change = change._replace(marks=("HARD_FAIL", "DECISION", "ESCALATION"))
        if (yield AppendChange(head, change)) is not None:
            yield EndCall(None, None)
            return
