"""Decisions about a recorded run without the code of its step: cancel it, or begin failed work again.

`oncemore runs cancel` and `rerun` import the step. An operator in front of a dashboard has only the log.
These two functions use what it recorded: the arguments, the policy and the counters of the run. A new run is
PENDING: a worker that knows the step makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.control.moved_log import append_decision, refuse_if_moved
from oncemore.control.quarantine import make_recorded_plan
from oncemore.control.review import check_reason
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.gate import check_not_blocked, find_open_review
from oncemore.governance.identity import authorize_run_decider
from oncemore.limits.cooldowns import release_resources_of_run
from oncemore.log.entry_codec import load_head, new_uuid7
from oncemore.log.record import RecordChange, RunRecord
from oncemore.log.store import HeadQuery
from oncemore.steps import operator_flow, refusals
from oncemore.steps.call import PreparedCall
from oncemore.steps.call_operations import run_decision
from oncemore.steps.history import find_opening
from oncemore.steps.ops import NOW, AppendChange, EndCall, LoadHead

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.operator_flow import DecisionMaker
    from oncemore.steps.ops import Script

#: Fields of a run that a new run of the key takes over; the remaining ones have their first values.
_KEPT_FIELDS = (
    *("step", "effect", "fence", "attempt", "input_hash", "cfg_hash", "seed", "tenant", "correlation_id"),
    *("policy", "dataset", "priority", "retain_s", "provider", "masking"),
)


def cancel_recorded_run(engine: Engine, entity: str, run_id: str, *, by: str, reason: str) -> RunRecord:
    """Let no further attempt of a run begin; return the run afterwards.

    run_id  the run that the operator has seen: a later run of the key is not cancelled
    """
    text, run = check_reason(reason), _load_run(engine, entity, run_id)
    # A resource has to record the end of its execution, which needs the options of the step.
    query = HeadQuery("resource", head_contains=entity.encode(), limit=1)
    if next(iter(engine.store.list_heads(query)), None) is not None:
        raise UsageError(
            f"{run.step} {run.run_id} requests a resource with a cooldown; cancel it with its code: "
            f"oncemore runs cancel MODULE --run {run.run_id} --reason …"
        )
    decider, plan = authorize_run_decider(engine, by, entity), make_recorded_plan(run)
    call = PreparedCall(entity, plan, cfg_hash=run.cfg_hash)
    script = operator_flow.cancel_run(
        plan, call, text, lambda head, now: decider.make_decision(head, "cancel", text, now)
    )
    run_decision(engine, script)
    record: RunRecord = load_head(engine.store, entity, engine.cipher).record
    return record


def reopen_recorded_run(engine: Engine, entity: str, run_id: str, *, by: str, reason: str) -> RunRecord:
    """Begin a new run of failed work, with its recorded arguments and policy; return the new run."""
    text, run = check_reason(reason), _load_run(engine, entity, run_id)
    opening = find_opening(engine.store.read_entries(entity), engine.cipher)
    command = f"oncemore runs rerun MODULE --run {run_id} --reason …"
    if "arguments" not in opening or opening.get("withheld"):
        raise UsageError(
            f"{run.step} {run_id}: its arguments are not in the log; run it with its code: {command}"
        )
    policy = engine.policies.find_policy(engine, run.policy)
    if policy is None:
        raise UsageError(
            f"{run.step} {run_id}: its policy {run.policy} is not in the log; run it with {command}"
        )
    decider = authorize_run_decider(engine, by, entity)
    decision = {"action": "rerun", "reason": text, "actor": decider.actor}
    # The caller of the failed run has ended or gone on; the new run belongs to the operator.
    kept: dict[str, Any] = {name: opening[name] for name in ("arguments", "workflow") if name in opening}
    body = {**kept, "actor": decider.actor}

    def decide(head: LoadedHead, now: float) -> dict[str, Any]:
        return decider.make_decision(head, "rerun", text, now)

    also = release_resources_of_run(engine, entity, {"decision": decision})
    record: RunRecord = run_decision(engine, _reopen_run(entity, run_id, body, also, decide, policy)).record
    return record


def _load_run(engine: Engine, entity: str, run_id: str) -> RunRecord:
    run: RunRecord | None = load_head(engine.store, entity, engine.cipher).record
    if run is None:
        raise UsageError(f"there is no {entity} in this store")
    if run.run_id != run_id:
        raise StaleDecision(
            f"run {run_id} has ended; the last run of its key is {run.run_id}: look at that one"
        )
    return run


def _reopen_run(
    entity: str,
    run_id: str,
    body: dict[str, Any],
    also: tuple[Any, ...],
    decide: DecisionMaker,
    policy: Policy,
) -> Script:
    """Append the first entry of a new run, if the failed run is still the last one of its key."""
    refused = yield from refuse_if_moved(entity)
    if refused is not None:
        return refused
    head: LoadedHead = yield LoadHead(entity)
    now = yield NOW
    run: RunRecord = head.record
    plan = make_recorded_plan(run)
    error = _find_reopen_fault(run, run_id) or refusals.cannot_reopen(plan, PreparedCall(entity, plan), run)
    guards: Any = {}
    if error is None:
        error, guards = yield from check_not_blocked(run)
    if error is None and (review := (yield from find_open_review(run))):
        error = refusals.review_missing(plan, head, review)
    if error is not None:
        return EndCall(None, error)
    after = RunRecord(
        **{name: getattr(run, name) for name in _KEPT_FIELDS},
        run_id=new_uuid7(now),
        run_number=run.run_number + 1,
        # From the policy: the budget of the failed run may have been raised by an operator.
        max_attempts=policy.max_attempts,
        max_crashes=policy.max_crashes or 0,
        created_at=now,
        not_before=now,
    )
    change = RecordChange(("PENDING",), run, after, {**body, "decision": decide(head, now)})
    saved = yield from append_decision(entity, AppendChange(head, change, also=also, guards=guards))
    if type(saved) is EndCall:
        return saved
    stale = (
        None
        if saved is not None
        else StaleDecision("nothing was decided: the run was changed in this very moment")
    )
    return EndCall(saved, stale)


def _find_reopen_fault(run: RunRecord, run_id: str) -> Exception | None:
    if run.run_id != run_id:
        return StaleDecision(
            f"run {run_id} has ended; the last run of its key is {run.run_id}: look at that one"
        )
    if run.state == "COMPLETE":
        return UsageError(f"{run.step} {run_id} is complete; only failed work is run again")
    return None
