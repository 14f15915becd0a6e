"""Decisions of operators about items in quarantine, and their effects.

    held item                          release           reject       rerun           settle
    ─────────────────────────────────  ────────────────  ───────────  ──────────────  ──────────────────────
    run, outcome unknown               no: settle it     HARD_FAIL    no: settle it   COMPLETE, or continues
    run, any other reason              continues, if an  HARD_FAIL    continues with  no
                                       attempt is left                more attempts
    altered artifact                   STORED, if its    REJECTED     no              no
                                       bytes are right
    dead letter                        sent again        REJECTED     no              no

All functions are pure but the script `record_decision`, which writes one entry by compare-and-set: of two
concurrent decisions the second is refused as stale.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.control.model import APPROVAL_NEEDED
from oncemore.control.moved_log import append_decision, refuse_if_moved
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.gate import check_not_blocked
from oncemore.log.record import ArtifactRecord, EventRecord, RecordChange, RunRecord
from oncemore.messaging.delivery import change_state
from oncemore.policy.closing import OUTCOME_UNKNOWN, close_run, closing_proof
from oncemore.steps.ops import NOW, AppendChange, EndCall, LoadHead
from oncemore.steps.transitions import add_escalation, end_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.record import LoadedHead
    from oncemore.steps.ops import Script

    Verdict = RecordChange | Exception

MAX_ACTOR_LENGTH, MAX_REASON_LENGTH = 200, 2000
MAX_EXTRA_ATTEMPTS = 1000
#: Decisions after which a run makes another attempt.
_CONTINUING = ("release", "rerun")
UNCHANGED: Mapping[str, int] = MappingProxyType({})


class OperatorDecision(NamedTuple):
    """The decision of an operator.

    action          release, reject, rerun, settle or approve
    version         the version of the item that the operator has seen; 0: any
    extra_attempts  attempts that the run gets beyond its budget
    more            further parts of its record: what it covers, and its signature
    """

    action: str
    by: str
    reason: str
    version: int = 0
    extra_attempts: int = 0
    more: Mapping[str, Any] = MappingProxyType({})

    @property
    def decision_body(self) -> dict[str, Any]:
        """The body of the decision's entry in the log."""
        body: dict[str, Any] = {"action": self.action, "reason": self.reason, "actor": self.by}
        extra = {"extra_attempts": self.extra_attempts} if self.extra_attempts else {}
        return {"decision": {**body, **extra, **self.more}}


def record_decision(
    entity: str, kind: type, decision: OperatorDecision, also: tuple[Any, ...] = ()
) -> Script:
    """Append a decision if the item has not changed since the operator saw it.

    also  changes of other entities, written in the same batch
    """
    moved = yield from refuse_if_moved(entity)
    if moved is not None:
        return moved
    head = yield LoadHead(entity, kind)
    now = yield NOW
    change = find_staleness(head, decision) or _DECISION_RULES[kind, decision.action](head, decision, now)
    guards: Mapping[str, int] = UNCHANGED
    if kind is RunRecord and decision.action in _CONTINUING and not isinstance(change, Exception):
        blocked, guards = yield from check_not_blocked(head.record)
        change = blocked or change
    if isinstance(change, Exception):
        return EndCall(None, change)
    saved = yield from append_decision(entity, AppendChange(head, change, also=also, guards=guards))
    if type(saved) is EndCall:
        return saved
    # None means a conflict: another writer has changed the item after it was read.
    stale = stale_decision(entity, "it was changed in this very moment") if saved is None else None
    return EndCall(saved, stale)


def is_held(state: Any) -> bool:
    """Return whether an item waits for an operator."""
    if type(state) is RunRecord:
        # A pruned run has no data left to decide on.
        return bool(state.held_for) and not state.pruned_at
    if type(state) is EventRecord:
        return state.state == "DEAD"
    return type(state) is ArtifactRecord and state.state == "QUARANTINED"


def list_choices(state: Any) -> tuple[str, ...]:
    """Return the actions that an operator can take on a held item."""
    if type(state) is not RunRecord:
        return ("release", "reject")
    if state.held_for == OUTCOME_UNKNOWN:
        return ("settle", "reject")
    if state.held_for == APPROVAL_NEEDED:
        return ("approve", "reject")
    return ("rerun", "reject") if _spent_budget(state) else ("release", "reject", "rerun")


def _spent_budget(run: RunRecord) -> str:
    """Return the budget that a run has used up, as a text; empty if it may make another attempt."""
    if run.attempt_count >= run.max_attempts:
        return f"all of its {run.max_attempts} attempts"
    if run.max_crashes and run.crash_count >= run.max_crashes:
        return f"all of its {run.max_crashes} crashes"
    return ""


def stale_decision(entity: str, reason: str) -> StaleDecision:
    """Return the error for a decision about an outdated version of an item."""
    kind = entity.partition("/")[0]
    return StaleDecision(
        f"nothing was decided about this {kind}: {reason}; look again (oncemore quarantine list)"
    )


def find_staleness(head: LoadedHead, decision: OperatorDecision) -> Exception | None:
    """Return the error for an item that does not wait any more, or not in the version of the decision."""
    if head.record is None:
        return UsageError(f"there is no {head.entity} in this store")
    if not is_held(head.record):
        return stale_decision(head.entity, f"it is not in quarantine any more{_describe_last_decision(head)}")
    if decision.version and decision.version != head.version:
        return stale_decision(
            head.entity, f"it has version {head.version} now, and was looked at in version {decision.version}"
        )
    return None


def _describe_last_decision(head: LoadedHead) -> str:
    """Return the decision in the last entry as text; empty if that entry is not a decision."""
    decision = (head.body or {}).get("decision")
    return f" ({decision['action']} by {decision['actor']}: {decision['reason']})" if decision else ""


# Runs -----------------------------------------------------------------------------------------------


def _release_run(head: LoadedHead, decision: OperatorDecision, now: float) -> Verdict:
    run = head.record
    if run.held_for in _DECIDE_FIRST:
        return _DECIDE_FIRST[run.held_for](run)
    spent = _spent_budget(run)
    if spent:
        return UsageError(f"{run.step} has used {spent}; give it more: rerun with extra_attempts")
    return resume_run(head, decision, now)


def _rerun_run(head: LoadedHead, decision: OperatorDecision, now: float) -> Verdict:
    run = head.record
    if run.held_for in _DECIDE_FIRST:
        return _DECIDE_FIRST[run.held_for](run)
    # The extra attempts are added to the larger of budget and used attempts, so that a run that exceeded its
    # budget gets all of them, and a budget with attempts left does not shrink.
    extra = decision.extra_attempts
    budgets = {"max_attempts": max(run.max_attempts, run.attempt_count) + extra}
    if run.max_crashes:
        budgets["max_crashes"] = max(run.max_crashes, run.crash_count) + extra
    return resume_run(head, decision, now, budgets)


def resume_run(
    head: LoadedHead, decision: OperatorDecision, now: float, budgets: Mapping[str, int] = UNCHANGED
) -> RecordChange:
    """Return the change that makes a run due again, for its next caller or a worker.

    budgets  the new limits of attempts and crashes, if the operator has raised them
    """
    run = head.record
    after = end_attempt(
        run,
        run.state,
        "decided",
        not_before=now,
        deadline=_valid_deadline(run, now),
        **budgets,
    )
    body = {**decision.decision_body, "proof": closing_proof(close_run(run, "decided", now))}
    return RecordChange((run.state, "DECISION"), run, after, body)


def _valid_deadline(run: RunRecord, now: float) -> float:
    """Return the deadline of a run, or 0 if it has passed."""
    # It passed while the run waited for the operator, and would fail the run right after the decision.
    return 0.0 if run.deadline and run.deadline <= now else run.deadline


def _reject_run(head: LoadedHead, decision: OperatorDecision, now: float) -> Verdict:
    # The error stays in the last entry, where later callers of the run read it.
    run, error = head.record, (head.body or {}).get("error", {})
    after = end_attempt(run, "HARD_FAIL", "rejected", failure_version=head.version + 1)
    proof = closing_proof(close_run(run, "rejected", now))
    body = add_escalation({**decision.decision_body, "error": error, "proof": proof}, run, now)
    return RecordChange(("HARD_FAIL", "DECISION", "ESCALATION"), run, after, body)


def _settle_first_error(run: RunRecord) -> UsageError:
    return UsageError(
        f"attempt {run.attempt} of {run.step} may have taken effect, and is not repeated blindly; look "
        "whether it did and settle it (applied or not_applied), or reject it"
    )


def _approve_first_error(run: RunRecord) -> UsageError:
    return UsageError(
        f"{run.step} waits for an approval; give it one (oncemore control approve {run.run_id}), or reject it"
    )


#: Reasons that release and rerun refuse, with the error that names the decision to make first.
_DECIDE_FIRST = {OUTCOME_UNKNOWN: _settle_first_error, APPROVAL_NEEDED: _approve_first_error}


# Artifacts and dead letters -------------------------------------------------------------------------


def release_artifact(head: LoadedHead, decision: OperatorDecision, now: float = 0.0) -> RecordChange:
    """Return the change that lets steps use an artifact again."""
    return RecordChange(
        ("DECISION",), head.record, head.record._replace(state="STORED"), decision.decision_body
    )


def _reject_artifact(head: LoadedHead, decision: OperatorDecision, now: float) -> RecordChange:
    return RecordChange(
        ("DECISION",), head.record, head.record._replace(state="REJECTED"), decision.decision_body
    )


def _release_event(head: LoadedHead, decision: OperatorDecision, now: float) -> RecordChange:
    after = change_state(head.record, "PENDING", reason="redelivered", attempt_count=0, not_before=0.0)
    return RecordChange(("PENDING", "DECISION"), head.record, after, decision.decision_body)


def _reject_event(head: LoadedHead, decision: OperatorDecision, now: float) -> RecordChange:
    after = change_state(head.record, "REJECTED", reason="rejected")
    return RecordChange(("DECISION",), head.record, after, decision.decision_body)


def _rerun_refused(head: LoadedHead, decision: OperatorDecision, now: float) -> UsageError:
    kind = "a dead letter" if type(head.record) is EventRecord else "an artifact"
    return UsageError(f"{kind} cannot be rerun; release it, or reject it")


_DECISION_RULES: dict[tuple[type, str], Callable[[LoadedHead, OperatorDecision, float], Verdict]] = {
    (RunRecord, "release"): _release_run,
    (RunRecord, "reject"): _reject_run,
    (RunRecord, "rerun"): _rerun_run,
    (ArtifactRecord, "release"): release_artifact,
    (ArtifactRecord, "reject"): _reject_artifact,
    (ArtifactRecord, "rerun"): _rerun_refused,
    (EventRecord, "release"): _release_event,
    (EventRecord, "reject"): _reject_event,
    (EventRecord, "rerun"): _rerun_refused,
}


# Input ----------------------------------------------------------------------------------------------


def make_decision(
    action: str, by: object, reason: object, version: int = 0, extra_attempts: object = 0
) -> OperatorDecision:
    """Return a decision; refuse one without actor or reason, or with invalid extra attempts."""
    # bool is a subclass of int, and True would pass as one attempt.
    is_number = isinstance(extra_attempts, int) and not isinstance(extra_attempts, bool)
    if action == "rerun" and not (is_number and 1 <= extra_attempts <= MAX_EXTRA_ATTEMPTS):  # type: ignore[operator]
        raise UsageError(f"extra_attempts is {extra_attempts!r}; it takes 1 to {MAX_EXTRA_ATTEMPTS}")
    actor = check_text("by", by, MAX_ACTOR_LENGTH, "say who decides")
    return OperatorDecision(action, actor, check_reason(reason), version, extra_attempts)  # type: ignore[arg-type]


def check_reason(reason: object) -> str:
    """Return the reason of a decision; refuse an empty or too long one."""
    return check_text("reason", reason, MAX_REASON_LENGTH, "say why")


def check_text(name: str, text: object, max_length: int, advice: str) -> str:
    """Return a text without surrounding space; refuse an empty or too long one."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{name} is missing; {advice}, it is recorded")
    if len(text) > max_length:
        raise UsageError(f"{name} has {len(text)} characters; it takes up to {max_length}")
    return text.strip()
