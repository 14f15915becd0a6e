"""The gate: asks before every attempt whether its dataset permits it (GOV-1).

These are parts of the script in `steps.flow`. The datasets are read together with the switches
(`control.permits`), and their versions are guards of the INTENT: if a dataset changes after it was read, the
store refuses the claim, and the gate is asked again. Every path to an attempt is a claim in that script
(first call, retry, recovery, worker, release from quarantine, rerun, map, program), so that there is no path
around the gate. If a dataset cannot be read, no attempt begins (`control_state_unknown`).

A refused run is quarantined before an attempt, which is not counted. The entry names the dataset, its label
and the rule; in the same batch an escalation to the FAIR+CARE Council is opened (`governance.escalations`),
and the pipeline is halted where the policy says so.

    before that batch is stored   nothing has begun; the next caller asks the gate again
    after it is stored            the run is held, also if the dataset is released: a person decides

A run of sensitive data that has failed waits for its escalation to be acknowledged (GOV-11): until then it is
not run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.control.permits import halt_pipeline
from oncemore.errors import NotPermitted
from oncemore.governance.dataset_model import (
    CARE_ESCALATION,
    COUNCIL,
    GATE_HOLDS,
    OPEN,
    EscalationRecord,
    GateRequest,
    escalation_entity,
    find_block,
    find_gate_objection,
)
from oncemore.limits import cooldown_step
from oncemore.log.entry_codec import load_head
from oncemore.log.record import RecordChange
from oncemore.policy.closing import close_run, closing_proof
from oncemore.policy.model import Failure
from oncemore.steps import refusals, transitions
from oncemore.steps.ops import CONFLICT, AskPermission, EndCall, LoadHead, PrepareSubmission

if TYPE_CHECKING:
    from oncemore.governance.dataset_model import GateObjection
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Permission, Script
    from oncemore.steps.plan import StepPlan

#: The rule that errors of the gate name.
GATE_RULE = "oncemore:gate"


def list_gated_datasets(call: PreparedCall, run: RunRecord | None) -> tuple[str, ...] | None:
    """Return the datasets that the gate is asked about; None if it need not be asked.

    A key keeps the dataset of its last run: leaving `dataset=` out later does not lead around the gate.
    """
    if run is None:
        if call.dataset:
            return (call.dataset,)
        return () if call.masking else None
    if call.dataset or run.dataset:
        return tuple(sorted({call.dataset, run.dataset} - {""}))
    return () if call.masking or run.masking else None


def check_gate(
    plan: StepPlan, call: PreparedCall, head: LoadedHead, permission: Permission, now: float
) -> Script:
    """Return the end of a call that the gate refuses, None if it permits the attempt, or CONFLICT."""
    objection = find_objection(plan, call, head.record, permission)
    if objection is None:
        return None
    record = head.record
    run, marks = record, ()
    opening: dict[str, Any] = {}
    if record is None or record.state in transitions.FINAL_STATES:
        terms = yield make(PrepareSubmission, (plan.policy_name, plan.policy, plan.policy_source))
        run, marks, opening = transitions.open_run(plan, call, terms, record, now)
    assert run is not None
    change = build_hold(plan, call, run, objection, now)
    change = change._replace(
        marks=(*(marks or (run.state,)), "ESCALATION"), before=record, body={**opening, **change.body}
    )
    guards = permission.guards
    also: tuple[Any, ...] = ()
    if plan.halts:
        failure = Failure("permanent", "no", None, objection.code, GATE_RULE)
        also = yield from halt_pipeline(plan, run, failure, now)
    if also:
        # The batch changes the switches itself: their version is checked by that write.
        guards = {entity: version for entity, version in guards.items() if entity != SWITCHES_ENTITY}
    saved = yield from cooldown_step.append_to_run(plan, head, change, also=also, guards=guards)
    return CONFLICT if saved is None else EndCall(None, refusals.run_held(plan, saved))


def find_objection(
    plan: StepPlan, call: PreparedCall, run: RunRecord | None, permission: Permission
) -> GateObjection | None:
    """Return the first objection of the datasets that were read; None if the attempt may begin."""
    masked_before = 0 if run is None else run.masking
    request = make(GateRequest, (plan.operation, call.masking, masked_before, plan.policy.governed))
    gated = list_gated_datasets(call, run)
    if gated is None:
        return None
    for dataset, record in zip(gated, permission.datasets, strict=True) if gated else (("", None),):
        objection = find_gate_objection(dataset, record, request)
        if objection is not None:
            return objection
    return None


def build_hold(
    plan: StepPlan, call: PreparedCall, run: RunRecord, objection: GateObjection, now: float
) -> RecordChange:
    """Return the change that quarantines a run which the gate refuses."""
    held_for = GATE_HOLDS[objection.code]
    body: dict[str, Any] = {
        "error": {
            "type": "PolicyViolation",
            "code": objection.code,
            "kind": "permanent",
            "rule": GATE_RULE,
            "message": objection.text,
        },
        "gate": {
            "dataset": objection.dataset,
            "care_label": objection.care_label,
            "operation": plan.operation,
            "masking": call.masking,
            "masked_before": run.masking,
        },
        "proof": closing_proof(close_run(run, held_for, now)),
    }
    body = transitions.add_escalation(body, run, now, plan, permanent=True)
    body["escalation"] |= {"kind": CARE_ESCALATION, "role": COUNCIL}
    after = transitions.end_attempt(run, run.state, held_for)._replace(held_for=held_for)
    return RecordChange((run.state, "ESCALATION"), run, after, body)


def check_not_blocked(run: RunRecord | None) -> Script:
    """Return the error for a decision that lets a run of a blocked dataset continue (GOV-3), and the guards.

    Only the dataset is asked here; the claim asks about the operation and the masking level.
    """
    if run is None or not run.dataset:
        return None, {}
    # A refusal writes nothing, so that a cached block would outlive the release by another process.
    permission = yield AskPermission((), "", begins=False, datasets=(run.dataset,), reread=True)
    if permission.stop:
        return refusals.describe_block(f"a decision about {run.step}", permission), {}
    record = permission.datasets[0]
    code, text = ("", "") if record is None else find_block(record)
    if code:
        advice = "it is not processed again before the dataset is released (oncemore control dataset release)"
        return NotPermitted(f"{run.step} {run.run_id}: {text}; {advice}", code), {}
    return None, permission.guards


# The review of a failed run -------------------------------------------------------------------------


def review_entity(run: RunRecord) -> str:
    """Return the entity of the escalation that the failure of a run has opened, if it has opened one."""
    return escalation_entity(run.run_id, run.failure_version)


def find_open_review(run: RunRecord) -> Script:
    """Return the id of the escalation that a failed run waits for; empty if there is none."""
    if run.state != "HARD_FAIL" or not run.dataset:
        return ""
    head = yield LoadHead(review_entity(run), EscalationRecord)
    return _open_review_id(head.entity, head.record)


def load_open_review(engine: Engine, run: RunRecord) -> str:
    """Return the id of the escalation that a failed run waits for; empty if there is none."""
    if run.state != "HARD_FAIL" or not run.dataset:
        return ""
    head = load_head(engine.store, review_entity(run), engine.cipher, EscalationRecord)
    return _open_review_id(head.entity, head.record)


def _open_review_id(entity: str, record: EscalationRecord | None) -> str:
    if record is None or record.state != OPEN or not record.requires_review:
        return ""
    return entity.partition("/")[2]
