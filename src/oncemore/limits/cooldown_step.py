"""The cooldown of a resource in a durable call.

Before an execution, the script reads the resource's record; a guard on its version makes the store refuse the
claim if the record changes meanwhile. At the end of an execution, the entry of the run carries the new
record: both are stored, or neither. If the worker dies before, the next worker counts the execution; after
it, the attempt number in the record prevents a second count.

An execution ends with a result, a permanent failure, a quarantine, or a `Retry-After` longer than the policy
waits; then the run stays open and the resource cools down until that time. A submitted run that may not
begin yet is deferred; one that is not needed any more ends.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.json import encode

from oncemore.errors import CoolingDown, Deferred, Quarantined
from oncemore.limits.cooldown_rules import (
    ResourceOutcome,
    ResourceRecord,
    after_execution,
    after_release,
    is_held,
    skip_reason,
)
from oncemore.log.record import ArtifactRecord, RecordChange, RunRecord
from oncemore.policy.closing import INTERRUPTED, LEASE_EXPIRED, close_run, closing_proof
from oncemore.steps import refusals
from oncemore.steps.ops import CONFLICT, NOW, AppendChange, EndCall, LoadHead
from oncemore.steps.transitions import end_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.limits.cooldown_rules import CooldownSchedule
    from oncemore.log.record import LoadedHead
    from oncemore.steps.ops import Output, Script
    from oncemore.steps.plan import StepPlan

MARK: tuple[Any, ...] = ("RESOURCE",)
DECIDED: tuple[Any, ...] = ("RESOURCE", "DECISION")
#: Reason codes of a run that waits for the cooldown of its resource.
BEYOND, COOLING = "retry_after_beyond_cap", "cooling_down"
#: Reason codes of a permanent failure; any other failure is transient.
FINAL = ("not_retryable", "result_unavailable")


class CooldownCall(NamedTuple):
    """The resource that a call requests, and its cooldown.

    rest          the schedule of the cooldown
    fingerprint   returns the fingerprint of the neutral record of an error
    has_executed  whether the call has made an attempt: its own cooldown does not end it any more
    """

    resource: str
    step: str
    provider: str
    rest: CooldownSchedule
    fingerprint: Callable[[dict[str, Any]], str]
    has_executed: bool = False

    @property
    def entity(self) -> str:
        """The entity of the resource's record in the log."""
        return resource_entity(self.resource)


def resource_entity(resource: str) -> str:
    """Return the entity of a resource's record in the log."""
    return f"resource/{resource}"


def mark_executed(plan: StepPlan) -> StepPlan:
    """Return the plan of a call that has made an attempt."""
    if plan.cooldown is None or plan.cooldown.has_executed:
        return plan
    return plan.copy_with(cooldown=plan.cooldown._replace(has_executed=True))


def append_to_run(
    plan: StepPlan,
    head: LoadedHead,
    change: RecordChange,
    *,
    events: tuple[Output, ...] = (),
    also: tuple[Any, ...] = (),
    guards: Mapping[str, int] = {},
) -> Script:
    """Append a change of a run, with the record of its resource if the change ends an execution."""
    if plan.cooldown is not None:
        also = (*also, *(yield from resource_writes(plan.cooldown, head, change, events)))
    return (yield AppendChange(head, change, events=events, also=also, guards=guards))


def resource_writes(
    cooling: CooldownCall, run_head: LoadedHead, change: RecordChange, events: tuple[Output, ...]
) -> Script:
    """Return the change of the resource's record at the end of an execution; empty at any other change."""
    if "INTENT" in change.marks or not _ends_execution(change):
        return ()
    head = yield LoadHead(cooling.entity, ResourceRecord)
    now = yield NOW
    if _is_counted(head.record, run_head.entity, change):
        return ()
    outcome = _execution_outcome(cooling, run_head.entity, change, events, now)
    after = after_execution(head.record, cooling.resource, outcome, cooling.rest)
    body = {"error": change.body["error"]} if "error" in change.body else {}
    return ((head, RecordChange(MARK, head.record, after, body)),)


def _begins_execution(change: RecordChange) -> bool:
    """Whether a claim is the first attempt of an execution."""
    before, after = change.before, change.after
    assert type(after) is RunRecord
    # Later attempts of an execution belong to the same request; after a cooldown a new execution begins.
    if type(before) is RunRecord and before.run_id == after.run_id:
        if before.reason in (LEASE_EXPIRED, INTERRUPTED):
            return False
        if before.reason in (BEYOND, COOLING):
            return True
    return after.attempt_count == 1


def _ends_execution(change: RecordChange) -> bool:
    """Whether an entry ends an execution that made at least one attempt."""
    after = change.after
    assert type(after) is RunRecord
    # A run that ends without an attempt has requested nothing: the resource does not count it.
    if not after.attempt_count and not after.crash_count:
        return False
    return after.state in ("COMPLETE", "HARD_FAIL") or bool(after.held_for) or after.reason == BEYOND


def _is_counted(resource: ResourceRecord | None, run_entity: str, change: RecordChange) -> bool:
    """Whether the resource has counted the execution already: the write before was stored after all."""
    run = change.after
    assert type(run) is RunRecord
    return resource is not None and (resource.run_entity, resource.attempt) == (run_entity, run.attempt)


# Before an execution --------------------------------------------------------------------------------


def guard_claim(
    cooling: CooldownCall, run_head: LoadedHead, claim: RecordChange, guards: Mapping[str, int]
) -> Script:
    """Return the guards of a claim with the version of the resource, and the end of a call that is skipped.

    The end is CONFLICT if the run has changed meanwhile: the script loads it again.
    """
    # Later attempts of an execution are not checked: they belong to the same request.
    if not _begins_execution(claim):
        return guards, None
    head = yield LoadHead(cooling.entity, ResourceRecord)
    now = yield NOW
    reason = skip_reason(head.record, now)
    if not reason:
        # Another run may end an execution of the same resource before this claim is stored.
        return {**guards, cooling.entity: head.version}, None
    refusal = _build_refusal(cooling, head.record, reason)
    is_waiting = run_head.record is not None and run_head.record.state in ("PENDING", "SOFT_FAIL")
    if is_waiting:
        saved = yield AppendChange(run_head, _defer_waiting_run(run_head, refusal, now))
        if saved is None:
            return guards, CONFLICT
    return guards, EndCall(None, refusal)


def _build_refusal(cooling: CooldownCall, resource: ResourceRecord, reason: str) -> CoolingDown:
    until = resource.next_eligible_attempt_at if reason == "SKIPPED_BACKOFF" else 0.0
    return refusals.resource_cooling_down(cooling.step, cooling.resource, reason, until)


def end_deferred(cooling: CooldownCall, run_head: LoadedHead) -> Script:
    """Return the end of a call whose provider asks for a longer wait than the policy allows."""
    # The write that has just been stored carried the record of the resource.
    head = yield LoadHead(cooling.entity, ResourceRecord)
    until = max(run_head.record.not_before, head.record.next_eligible_attempt_at)
    return EndCall(None, refusals.resource_deferred(cooling.step, cooling.resource, until))


def _defer_waiting_run(head: LoadedHead, refusal: CoolingDown, now: float) -> RecordChange:
    """Return the change of a waiting run that may not begin: a later time, or its end."""
    run = head.record
    error = {"type": "CoolingDown", "code": refusal.outcome, "message": str(refusal)}
    if refusal.until:
        after = run._replace(reason=COOLING, not_before=refusal.until)
        return RecordChange(("DECISION",), run, after, {"error": error})
    # No time ends this refusal: the data is valid already, or an operator has to decide.
    after = end_attempt(run, "HARD_FAIL", refusal.outcome.lower(), failure_version=head.version + 1)
    proof = closing_proof(close_run(run, after.reason, now))
    return RecordChange(("HARD_FAIL",), run, after, {"error": error, "proof": proof})


def end_instead_of_waiting(cooling: CooldownCall | None) -> Script:
    """Return the end of a call that would wait for a resource that is cooling down; None if it may wait.

    A call does not wait for a cooldown, it is skipped: a cooldown may last a day.
    """
    if cooling is None or cooling.has_executed:
        return None
    head = yield LoadHead(cooling.entity, ResourceRecord)
    now = yield NOW
    reason = skip_reason(head.record, now)
    return EndCall(None, _build_refusal(cooling, head.record, reason)) if reason else None


def explain_end(cooling: CooldownCall, end: EndCall) -> Script:
    """Return the end of a call without an attempt, with the cooldown as its error if that is the cause."""
    if isinstance(end.error, Deferred | Quarantined):
        return (yield from end_instead_of_waiting(cooling)) or end
    return end


# After an execution ---------------------------------------------------------------------------------


def _execution_outcome(
    cooling: CooldownCall, run_entity: str, change: RecordChange, events: tuple[Output, ...], now: float
) -> ResourceOutcome:
    """Return the outcome of an execution, from the entry that ends it."""
    run, body = change.after, change.body
    assert type(run) is RunRecord
    error = body.get("error") or {}
    retry_after = body.get("proof", {}).get("failure", {}).get("retry_after")
    return ResourceOutcome(
        outcome=_outcome_word(run),
        now=now,
        provider=cooling.provider,
        step=cooling.step,
        run=run_entity,
        attempt=run.attempt,
        retry_after=retry_after or 0.0,
        error_class=error.get("code", ""),
        error_fingerprint=cooling.fingerprint(error) if error else "",
        content=_content_fingerprint(body) if run.state == "COMPLETE" else "",
        kept=any(type(record) is ArtifactRecord for record, _ in events),
    )


def _outcome_word(run: RunRecord) -> str:
    if run.state == "COMPLETE":
        return "SUCCESS"
    if run.held_for:
        return "QUARANTINE"
    return "TERMINAL_FAILURE" if run.reason in FINAL else "RETRYABLE_FAILURE"


def _content_fingerprint(body: dict[str, Any]) -> str:
    """Return the fingerprint of the fetched content: its first artifact, or the result itself."""
    # Artifacts and large results have a digest already; only a result in the entry is hashed here.
    if body.get("artifacts"):
        return f"sha256:{body['artifacts'][0]['$artifact']['digest']}"
    if "spilled" in body:
        return f"sha256:{body['spilled']['digest']}"
    return f"sha256:{sha256(encode(body.get('result'))).hexdigest()}"


# Release by an operator -----------------------------------------------------------------------------


def release_writes(plan: StepPlan, decision_body: dict[str, Any]) -> Script:
    """Return the change that releases the resource of a run that an operator runs again.

    Otherwise the run would be claimed and skipped at once.
    """
    if plan.cooldown is None:
        return ()
    head = yield LoadHead(plan.cooldown.entity, ResourceRecord)
    return build_release(head, (yield NOW), decision_body)


def build_release(
    head: LoadedHead, now: float, decision_body: dict[str, Any]
) -> tuple[tuple[LoadedHead, RecordChange], ...]:
    """Return the change that releases a resource; none if it is neither held nor cooling down."""
    if head.record is None or not (is_held(head.record) or head.record.next_eligible_attempt_at):
        return ()
    body = {"decision": decision_body["decision"]}
    return ((head, RecordChange(DECIDED, head.record, after_release(head.record, now), body)),)
