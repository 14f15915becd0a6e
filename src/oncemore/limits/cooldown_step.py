"""The cooldown of a resource in a durable call: a generator around the script of the call.

Before an execution, the claim of the first attempt reads the resource's record; a guard on its version makes
the store refuse the claim if the record changes meanwhile. At the end of an execution, the entry of the run
carries the new record: both are stored, or neither. If the worker dies before, the next worker counts the
execution; after it, the attempt number in the record prevents a second count.

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
from oncemore.log.attempt_transitions import end_attempt
from oncemore.log.record import ArtifactRecord, RecordChange, RunRecord
from oncemore.policy.closing import close_run, closing_proof
from oncemore.steps import refusals
from oncemore.steps.admission import NOW
from oncemore.steps.ops import AppendChange, EndCall, LoadHead, RunAttempt, SleepSeconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.limits.cooldown_rules import CooldownSchedule
    from oncemore.steps.ops import CallIdentity, LoadedHead, Script

MARK: tuple[Any, ...] = ("RESOURCE",)
DECIDED: tuple[Any, ...] = ("RESOURCE", "DECISION")
#: Reason codes of a run that waits for the cooldown of its resource.
BEYOND, COOLING = "retry_after_beyond_cap", "cooling_down"
#: Reason codes of a permanent failure; any other failure is transient.
FINAL = ("not_retryable", "result_unavailable")


class CooldownCall(NamedTuple):
    """The resource that a call requests, and its cooldown.

    rest         the schedule of the cooldown
    fingerprint  returns the fingerprint of the neutral record of an error
    """

    resource: str
    step: str
    provider: str
    rest: CooldownSchedule
    fingerprint: Callable[[dict[str, Any]], str]

    @property
    def entity(self) -> str:
        """The entity of the resource's record in the log."""
        return resource_entity(self.resource)


def resource_entity(resource: str) -> str:
    """Return the entity of a resource's record in the log."""
    return f"resource/{resource}"


def with_cooldown(cooling: CooldownCall, call: CallIdentity, script: Script) -> Script:
    """Run the script of a call; check the cooldown before an execution and update it at its end."""
    has_run = False
    op = next(script)
    while type(op) is not EndCall:
        has_run = has_run or type(op) is RunAttempt
        # A call does not wait for a cooldown, it is skipped: a cooldown may last a day.
        if type(op) is SleepSeconds and not has_run:
            end = yield from _end_without_execution(cooling, op)
            if end is not op:
                script.close()
                yield end
                return
        if type(op) is AppendChange and op.seen.entity == call.entity:
            op = yield from _adjust_write(cooling, op)
            if type(op) is EndCall:
                script.close()
                yield op
                return
        # None stands for a lost compare-and-set: the script loads the head again.
        reply = None if op is None else (yield op)
        if reply is not None and _asks_for_cooldown(op):
            # The provider asks for a longer wait than the policy allows inline: the call ends here.
            script.close()
            yield EndCall(None, _end_with_cooldown(cooling, op))
            return
        op = script.send(reply)
    yield op if has_run else (yield from _end_without_execution(cooling, op))


def _asks_for_cooldown(op: Any) -> bool:
    """Whether a write ends an execution with a `Retry-After` beyond the policy's limit."""
    return type(op) is AppendChange and bool(op.also) and getattr(op.change.after, "reason", "") == BEYOND


def _adjust_write(cooling: CooldownCall, op: AppendChange) -> Script:
    """Return a write of the run with the resource's guard or record; None or an `EndCall` instead of it.

    None means that the write was refused; the script then loads the run again.
    """
    change = op.change
    if "INTENT" in change.marks:
        return (yield from _guard_claim(cooling, op)) if _begins_execution(change) else op
    if _ends_execution(change):
        head = yield LoadHead(cooling.entity, ResourceRecord)
        now = yield NOW
        if not _is_counted(head.record, op):
            after = after_execution(
                head.record, cooling.resource, _execution_outcome(cooling, op, now), cooling.rest
            )
            body = {"error": change.body["error"]} if "error" in change.body else {}
            return op._replace(also=(*op.also, (head, RecordChange(MARK, head.record, after, body))))
    return op


def _begins_execution(change: RecordChange) -> bool:
    """Whether a claim is the first attempt of an execution."""
    before, after = change.before, change.after
    assert type(after) is RunRecord
    # Later attempts of an execution belong to the same request; after a cooldown a new execution begins.
    return after.attempt_count == 1 or (type(before) is RunRecord and before.reason in (BEYOND, COOLING))


def _ends_execution(change: RecordChange) -> bool:
    """Whether an entry ends an execution that made at least one attempt."""
    after = change.after
    assert type(after) is RunRecord
    # A run that ends without an attempt has requested nothing: the resource does not count it.
    if not after.attempt_count:
        return False
    return after.state in ("COMPLETE", "HARD_FAIL") or bool(after.held_for) or after.reason == BEYOND


def _is_counted(resource: ResourceRecord | None, op: AppendChange) -> bool:
    run = op.change.after
    assert type(run) is RunRecord
    return resource is not None and (resource.run_entity, resource.attempt) == (op.seen.entity, run.attempt)


# Before an execution --------------------------------------------------------------------------------


def _guard_claim(cooling: CooldownCall, op: AppendChange) -> Script:
    """Return the claim guarded by the resource's version, or the end of a call that is skipped."""
    head = yield LoadHead(cooling.entity, ResourceRecord)
    now = yield NOW
    reason = skip_reason(head.record, now)
    if not reason:
        # Another run may end an execution of the same resource before this claim is stored.
        return op._replace(guards={**op.guards, cooling.entity: head.version})
    refusal = _build_refusal(cooling, head.record, reason)
    is_waiting = op.seen.record is not None and op.seen.record.state in ("PENDING", "SOFT_FAIL")
    if is_waiting and (yield AppendChange(op.seen, _defer_waiting_run(op.seen, refusal, now))) is None:
        # Another worker has changed the run: the script loads it again.
        return None
    return EndCall(None, refusal)


def _build_refusal(cooling: CooldownCall, resource: ResourceRecord, reason: str) -> CoolingDown:
    until = resource.next_eligible_attempt_at if reason == "SKIPPED_BACKOFF" else 0.0
    return refusals.resource_cooling_down(cooling.step, cooling.resource, reason, until)


def _end_with_cooldown(cooling: CooldownCall, op: AppendChange) -> Deferred:
    """Return the error of a call whose provider has asked for a long wait."""
    # `_adjust_write` appends the change of the resource last.
    _, resource_change = op.also[-1]
    run, resource = op.change.after, resource_change.after
    assert type(run) is RunRecord
    assert type(resource) is ResourceRecord
    until = max(run.not_before, resource.next_eligible_attempt_at)
    return refusals.resource_deferred(cooling.step, cooling.resource, until)


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


def _end_without_execution(cooling: CooldownCall, op: EndCall | SleepSeconds) -> Script:
    """Return the end of a call without an attempt, with the cooldown as the error if that is the cause."""
    if type(op) is SleepSeconds or isinstance(op.error, Deferred | Quarantined):  # type: ignore[union-attr]
        head = yield LoadHead(cooling.entity, ResourceRecord)
        now = yield NOW
        reason = skip_reason(head.record, now)
        if reason:
            return EndCall(None, _build_refusal(cooling, head.record, reason))
    return op


# After an execution ---------------------------------------------------------------------------------


def _execution_outcome(cooling: CooldownCall, op: AppendChange, now: float) -> ResourceOutcome:
    """Return the outcome of an execution, from the entry that ends it."""
    run, body = op.change.after, op.change.body
    assert type(run) is RunRecord
    error = body.get("error") or {}
    retry_after = body.get("proof", {}).get("failure", {}).get("retry_after")
    return ResourceOutcome(
        outcome=_outcome_word(run),
        now=now,
        provider=cooling.provider,
        step=cooling.step,
        run=op.seen.entity,
        attempt=run.attempt,
        retry_after=retry_after or 0.0,
        error_class=error.get("code", ""),
        error_fingerprint=cooling.fingerprint(error) if error else "",
        content=_content_fingerprint(op) if run.state == "COMPLETE" else "",
        kept=any(type(record) is ArtifactRecord for record, _ in op.events),
    )


def _outcome_word(run: RunRecord) -> str:
    if run.state == "COMPLETE":
        return "SUCCESS"
    if run.held_for:
        return "QUARANTINE"
    return "TERMINAL_FAILURE" if run.reason in FINAL else "RETRYABLE_FAILURE"


def _content_fingerprint(op: AppendChange) -> str:
    """Return the fingerprint of the fetched content: its first artifact, or the result itself."""
    body = op.change.body
    # Artifacts and large results have a digest already; only a result in the entry is hashed here.
    if body.get("artifacts"):
        return f"sha256:{body['artifacts'][0]['$artifact']['digest']}"
    if "spilled" in body:
        return f"sha256:{body['spilled']['digest']}"
    return f"sha256:{sha256(encode(body.get('result'))).hexdigest()}"


# Release by an operator -----------------------------------------------------------------------------


def with_cooldown_release(cooling: CooldownCall, call: CallIdentity, script: Script) -> Script:
    """Run the script of an operator's retry; release the resource in the same write."""
    op = next(script)
    while type(op) is not EndCall:
        if type(op) is AppendChange and op.seen.entity == call.entity:
            head = yield LoadHead(cooling.entity, ResourceRecord)
            now = yield NOW
            # Otherwise the run would be claimed and skipped at once.
            also = build_release(head, now, op.change.body)
            op = op._replace(also=(*op.also, *also))
        op = script.send((yield op))
    yield op


def build_release(
    head: LoadedHead, now: float, decision_body: dict[str, Any]
) -> tuple[tuple[LoadedHead, RecordChange], ...]:
    """Return the change that releases a resource; none if it is neither held nor cooling down."""
    if head.record is None or not (is_held(head.record) or head.record.next_eligible_attempt_at):
        return ()
    body = {"decision": decision_body["decision"]}
    return ((head, RecordChange(DECIDED, head.record, after_release(head.record, now), body)),)
