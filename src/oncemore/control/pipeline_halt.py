"""Halts a pipeline after an error that is not retryable (`halt_scope: pipeline`, CLASS-3).

The halt is the switch `pipeline:NAME` of the log (`control.model`). It is written in the same batch as the
outcome of the failed attempt, so that a crash leaves both or neither, and it stops every process that shares
the store: the switches are a guard of every INTENT. An operator releases it with
`oncemore switch off --pipeline NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.classifiers.verdict import verdict
from oncemore.control.model import CONTROL, Control, halted
from oncemore.log.record import Change
from oncemore.steps.ops import Load

if TYPE_CHECKING:
    from oncemore.log.record import Run
    from oncemore.policy.model import Failure
    from oncemore.steps.ops import Plan, Script


def halt(plan: Plan, run: Run, failure: Failure, now: float) -> Script:
    """Return the change that halts the step's pipeline; nothing if the error is retryable or it is halted.

    The class of the error decides, not the effect of the step: a `once` step whose outcome is unknown halts
    its pipeline too if its error is not retryable.
    """
    if verdict(failure, plan.policy, "pure") == "RETRYABLE":
        return ()
    seen = yield Load(CONTROL, Control)
    by = f"policy {plan.policy.name} {plan.policy.version}"
    reason = f"{plan.name} failed with {failure.code or failure.kind}, which is not retryable"
    before: Control | None = seen.run
    after, name = halted(before or Control(), plan.pipeline, {"by": by, "reason": reason, "at": now})
    if after == before:
        return ()
    decision = {"what": "on", "switch": name, "reason": reason, "actor": by, "run_id": run.run_id}
    return ((seen, Change(("CONTROL", "DECISION"), before, after, {"decision": decision})),)
