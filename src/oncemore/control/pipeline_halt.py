"""Halts a pipeline after an error that is not retryable (`halt_scope: pipeline`, CLASS-3).

The halt is the switch `pipeline:NAME` of the log (`control.model`). It is written in the same batch as the
outcome of the failed attempt, so that a crash leaves both or neither, and it stops every process that shares
the store: the switches are a guard of every INTENT. An operator releases it with
`oncemore switch off --pipeline NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.control.model import SWITCHES_ENTITY, SwitchBoard, halted
from oncemore.log.record import RecordChange
from oncemore.policy.verdict import decide_verdict
from oncemore.steps.ops import LoadHead

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.policy.model import Failure
    from oncemore.steps.ops import Script
    from oncemore.steps.plan import StepPlan


def halt(plan: StepPlan, run: RunRecord, failure: Failure, now: float) -> Script:
    """Return the change that halts the step's pipeline; empty if the error is retryable or it is halted.

    A `once` step with an unknown outcome halts its pipeline too if its error is not retryable.
    """
    # "pure" instead of the step's effect, so that the error class alone decides.
    if decide_verdict(failure, plan.policy, "pure") == "RETRYABLE":
        return ()
    head = yield LoadHead(SWITCHES_ENTITY, SwitchBoard)
    by = f"policy {plan.policy.name} {plan.policy.version}"
    reason = f"{plan.name} failed with {failure.code or failure.kind}, which is not retryable"
    before: SwitchBoard | None = head.record
    after, name = halted(before or SwitchBoard(), plan.pipeline, {"by": by, "reason": reason, "at": now})
    if after == before:
        return ()
    decision = {"action": "on", "switch": name, "reason": reason, "actor": by, "run_id": run.run_id}
    return ((head, RecordChange(("CONTROL", "DECISION"), before, after, {"decision": decision})),)
