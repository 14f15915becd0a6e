"""The autonomy matrix in a durable call, and its state for operators.

Before the claim of an attempt, the script reads the record of the matrix and the signals, and decides
(`telemetry.autonomy_rules`). A changed level is an entry of its own, with its proof. Then the run obeys:

    run        the attempt begins
    slow       it takes one of few slots that all processes share; a retry waits longer
    pause      the run waits until the end of the pause, or for an approval; no attempt is counted
    escalate   the run is held for a person

With a carbon budget, the claim reserves the expected carbon in the record of the matrix, in the same write,
and the outcome replaces it by the measured one: two workers cannot both take the last part of a budget. What
is expected is the largest attempt so far, so that an attempt larger than all before it may go beyond the cap.
An attempt that is lost with its process stays reserved, and counts as spent when its run goes on; if nobody
continues it, its reservation is dropped at the second end of a period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.control.model import AUTONOMY_PAUSE, Approval, find_objection
from oncemore.control.permits import approval_entity
from oncemore.limits.queue_rules import StepQueue
from oncemore.log.record import LoadedHead, RecordChange
from oncemore.policy.closing import AUTONOMY_ESCALATION, close_run, closing_proof
from oncemore.steps import admission, refusals, transitions
from oncemore.steps.ops import AppendChange, EndCall, LoadHead
from oncemore.telemetry.autonomy_rules import (
    ESCALATE,
    PAUSE,
    SLOW,
    AutonomyRecord,
    act_by_priority,
    decide_level,
    describe_decision,
    receive_failure,
    reserve_carbon,
    settle_carbon,
    start_period,
)
from oncemore.telemetry.energy import build_snapshot
from oncemore.telemetry.signal_values import NAMES, NOT_CONFIGURED, describe_reading
from oncemore.telemetry.surroundings import ReadSignals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.policy.decide import Decision
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AttemptOutcome, AttemptTerms, Script
    from oncemore.steps.plan import StepPlan
    from oncemore.telemetry.autonomy_rules import StepAutonomy

#: Inputs of a decision about one run; the matrix decides for all runs of a policy, and its proof says so.
OF_A_RUN: dict[str, Any] = {
    name: {"unavailable": "a value of one run; the matrix decides for all runs of a policy"}
    for name in ("energy_kWh", "carbon_kgCO2e", "deadline_at", "sla_ms")
}
_MARKS: tuple[Any, ...] = ("AUTONOMY",)
_DECISION_MARKS: tuple[Any, ...] = ("AUTONOMY", "DECISION")


class AutonomyPass(NamedTuple):
    """The admission of an attempt by the matrix, and the passes of its other limits.

    approval  the version of the approval that lets it begin during a pause, by its entity
    """

    plan: StepPlan
    seen: LoadedHead
    inner: Any = None
    approval: Mapping[str, int] = {}

    def build_claim(
        self, head: LoadedHead, change: RecordChange, now: float, guards: Mapping[str, int], *, late: bool
    ) -> AppendChange:
        """Return the claim of the attempt; the store refuses it if the matrix has changed."""
        autonomy, guards = _autonomy_of(self.plan), {**guards, **self.approval}
        if self.inner is None:
            op = AppendChange(head, change, self.plan.effect != "pure", guards=guards, late=late)
        else:
            op = self.inner.build_claim(head, change, now, guards, late=late)
        if not autonomy.rules.cap_kg:
            return op._replace(guards={**op.guards, autonomy.entity: self.seen.version})
        reserved = RecordChange(_MARKS, self.seen.record, reserve_carbon(self.seen.record, head.entity))
        return op._replace(also=(*op.also, (self.seen, reserved)), late=False)


def _autonomy_of(plan: StepPlan) -> StepAutonomy:
    assert plan.autonomy is not None
    return plan.autonomy


def obey_matrix(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Return the plan with the limits of the level in force, the `AutonomyPass`, and the end of the call.

    All three are None if the run was changed: it waits now, or the matrix was changed by another process.
    """
    autonomy = _autonomy_of(plan)
    seen = yield from _update_level(autonomy, now)
    if seen is None:
        return None, None, None
    action = act_by_priority(seen.record.level, terms.priority)
    if action == SLOW:
        slowed = _slow_plan(plan, autonomy)
        return slowed, AutonomyPass(slowed, seen), None
    if action == ESCALATE and not _is_released(head):
        return (yield from _hold_run(plan, call, terms, head, seen, now))
    if action != PAUSE:
        return plan, AutonomyPass(plan, seen), None
    return (yield from _pause_run(plan, call, terms, head, seen, now))


def _pause_run(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, seen: LoadedHead, now: float
) -> Script:
    """Defer the run to the end of the pause, unless an operator has approved that it begins all the same."""
    run, _, _ = transitions.open_run(plan, call, terms, head.record, now)
    request = admission.build_approval_request(plan, call, run)
    approval = yield LoadHead(approval_entity(call.entity), Approval)
    if not find_objection(approval.record, request, now):
        # The guard: an approval that is revoked meanwhile does not let the attempt begin.
        return plan, AutonomyPass(plan, seen, approval={approval.entity: approval.version}), None
    until = max(seen.record.until, now + 0.001)
    change = transitions.build_deferral(
        plan, call, terms, head, now, mark="AUTONOMY", reason=AUTONOMY_PAUSE, until=until,
        body={"autonomy": describe_in_force(seen.record, PAUSE), "requested": request._asdict()},
    )  # fmt: skip
    yield AppendChange(head, change)
    return None, None, None


def _update_level(autonomy: StepAutonomy, now: float) -> Script:
    """Decide the level, and store it with its proof if it has changed; return the head of the matrix."""
    head = yield LoadHead(autonomy.entity, AutonomyRecord)
    readings = yield ReadSignals(now)
    described = dict(OF_A_RUN)
    for name in NAMES:
        has_source = name in readings
        described[name] = (
            describe_reading(readings[name], now) if has_source else {"unavailable": NOT_CONFIGURED}
        )
    before = head.record or AutonomyRecord(name=autonomy.name)
    after, proof = decide_level(autonomy.rules, before, described, now)
    if after == before:
        return head
    # A new period or the next end of a pause changes the record, and is not a decision.
    if after.number == before.number:
        return (yield AppendChange(head, RecordChange(_MARKS, head.record, after)))
    change = RecordChange(_DECISION_MARKS, head.record, after, {"proof": proof})
    return (yield AppendChange(head, change))


def _slow_plan(plan: StepPlan, autonomy: StepAutonomy) -> StepPlan:
    """Return the plan with few slots that all processes share; a queue of the step keeps its name."""
    few, own = autonomy.rules.slow_concurrency, plan.queue
    queue = StepQueue(f"autonomy-{autonomy.name}", few)
    if own is not None:
        queue = own._replace(concurrency=min(own.concurrency, few))
    return plan.copy_with(queue=queue)


def _is_released(head: LoadedHead) -> bool:
    """Return whether an operator has just released the run: one more attempt is what they decided."""
    return "decision" in (head.body or {})


def _hold_run(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, seen: LoadedHead, now: float
) -> Script:
    """Hold the run for a person, with an escalation; return the end of the call."""
    run, opening, body = transitions.open_run(plan, call, terms, head.record, now)
    held = transitions.end_attempt(run, run.state, AUTONOMY_ESCALATION)
    after = held._replace(held_for=AUTONOMY_ESCALATION)
    body = {
        **body,
        "error": {"type": "AutonomyEscalation", "message": describe_decision(seen.record)},
        "autonomy": describe_in_force(seen.record, ESCALATE),
        "proof": closing_proof(close_run(run, AUTONOMY_ESCALATION, now)),
    }
    body = transitions.add_escalation(body, run, now, plan, permanent=True)
    marks = (*(opening or (run.state,)), "ESCALATION")
    saved = yield AppendChange(head, RecordChange(marks, head.record, after, body))
    # Another process has changed the run: the call reads it again.
    return (None,) * 3 if saved is None else (plan, None, EndCall(None, refusals.run_held(plan, saved)))


def describe_in_force(record: AutonomyRecord, action: str) -> dict[str, Any]:
    """Return the decision in force, as the entries of runs name it."""
    fields = {"id": record.decision_id, "action": action, "reason": record.reason}
    return {**fields, "until": record.until} if action == PAUSE else fields


# Outcomes -------------------------------------------------------------------------------------------


def load_in_force(plan: StepPlan, priority: str) -> Script:
    """Return the decision in force as a proof names it (PROOF-5), with the factor of a slowed delay."""
    if plan.autonomy is None:
        return None
    head = yield LoadHead(plan.autonomy.entity, AutonomyRecord)
    record = head.record or AutonomyRecord(name=plan.autonomy.name)
    action = act_by_priority(record.level, priority)
    in_force: dict[str, Any] = {"id": record.decision_id, "action": action}
    if action == SLOW and plan.autonomy.rules.slow_factor != 1.0:
        in_force["slow_factor"] = plan.autonomy.rules.slow_factor
    return in_force


def settle_outcome(
    plan: StepPlan, outcome: AttemptOutcome, now: float, decision: Decision | None = None
) -> Script:
    """Return the change of the matrix to write with the outcome of an attempt; empty if nothing changes.

    decision  the decision about a failed attempt: a permanent failure goes to the inbox of the matrix
    """
    autonomy = plan.autonomy
    failed = decision is not None and decision.situation.verdict in ("TERMINAL", "QUARANTINE")
    if autonomy is None or not (autonomy.rules.cap_kg or failed):
        return ()
    head = yield LoadHead(autonomy.entity, AutonomyRecord)
    before = head.record or AutonomyRecord(name=autonomy.name)
    after = before
    if autonomy.rules.cap_kg:
        snapshot = build_snapshot({"usage": outcome.usage}, ends_attempt=True)
        # An attempt counts in the period in which it ends.
        after = start_period(autonomy.rules, before, now)
        after = settle_carbon(after, outcome.head.entity, snapshot["carbon_kgCO2e"] or 0.0)
    if failed and decision is not None:
        failure = {
            "run": outcome.head.entity.removeprefix("run/"), "step": outcome.head.record.step,
            "code": decision.situation.failure.code, "at": now, "policy": plan.escalation[0],
        }  # fmt: skip
        after = receive_failure(autonomy.rules, after, failure, now)
    return ((head, RecordChange(_MARKS, head.record, after)),)
