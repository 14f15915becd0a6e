"""Decisions that end or resume a run without a failed attempt, and their proofs.

    the attempt is lost                 lease_expired, interrupted, outcome_unknown, reconciled
    the run may not continue            cancelled, deadline_passed, rejected, …: stop
    an operator must review it first    checksum_mismatch, approval_needed, refused by the gate: quarantine
    the run continues at no cost        released, decided: retry at once

An attempt is lost when its worker did not finish it. If `reconcile` was asked about the outcome, its
answer decides. Else it depends on the budget that the lost attempt spends (`count_lost_attempt`):

    event            run with max_crashes                  run without (document profiles, older logs)
    lease_expired    one of max_crashes; held at the end   one of max_attempts; held at the end
    interrupted      nothing; the run goes on              one of max_attempts; failed at the end
    released         nothing; the run goes on              nothing; the run goes on

Nothing here reads a clock: the same inputs always give the same decision. `closing_proof` has the form of
the proofs of `policy.proof`.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.control.model import APPROVAL_NEEDED
from oncemore.governance.dataset_model import GATE_HOLDS
from oncemore.policy.proof import PROOF_FORMAT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from oncemore.log.record import RunRecord
    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.model import Action

#: Events that end a run, with the reason that the run then has.
STOPS: Final = {
    "cancelled": "cancelled",
    "deadline_passed": "deadline_passed",
    "retry_budget_empty": "retry_budget_empty",
    "result_unavailable": "result_unavailable",
    "rejected": "rejected",
    "resource_released": "released",
    "skipped_duplicate": "skipped_duplicate",
    "skipped_quarantined": "skipped_quarantined",
    "skipped_terminal": "skipped_terminal",
}
#: Events that quarantine the run until a person decides.
AUTONOMY_ESCALATION = "autonomy_escalation"
HOLDS: Final = ("checksum_mismatch", APPROVAL_NEEDED, AUTONOMY_ESCALATION, *GATE_HOLDS.values())
#: Events after which the run continues at once.
RESUMES: Final = ("released", "decided")
#: Hold reasons: attempts were lost with their workers until none was left, or the outcome is not known.
POISON, OUTCOME_UNKNOWN = "poison", "outcome_unknown"
#: Events: the attempt was lost with its process; its process, or its caller, was told to end.
LEASE_EXPIRED, INTERRUPTED = "lease_expired", "interrupted"
#: The reason of a run that has lost as many attempts as `max_crashes` allows.
CRASHES_EXCEEDED = "max_crashes_exceeded"


class Closing(Value):
    """The inputs of a decision about an open run.

    answer       the reply of `reconcile`: "applied", "not_applied" or "unknown"; "" if it was not asked
    crashes      attempts lost with their process before this event
    max_crashes  their limit; 0: lost attempts count in max_attempts
    """

    event: str
    attempt: int
    max_attempts: int
    now: float
    answer: str = ""
    policy: str = ""
    crashes: int = 0
    max_crashes: int = 0


class ClosingDecision(Value):
    """The decision: action, reason, hold reason and the time at which the run continues."""

    action: Action
    reason: str
    held_for: str
    not_before: float | None
    closing: Closing


def close_run(run: RunRecord, event: str, now: float, answer: str = "") -> ClosingDecision:
    """Return the decision about a run after an event."""
    return decide_closing(
        Closing(
            event=event,
            attempt=run.attempt_count,
            max_attempts=run.max_attempts,
            now=now,
            answer=answer,
            policy=run.policy,
            crashes=run.crash_count,
            max_crashes=run.max_crashes,
        )
    )


def count_lost_attempt(run: RunRecord, event: str) -> dict[str, int]:
    """Return the counters of a run that change when its running attempt ends by an event without an outcome.

    An attempt is counted in `attempt_count` when it starts; it is taken out again if it spends another budget
    or none.
    """
    if run.state != "RUNNING" or not (run.max_crashes or event == "released"):
        return {}
    if event == LEASE_EXPIRED:
        return {"attempt_count": run.attempt_count - 1, "crash_count": run.crash_count + 1}
    return {"attempt_count": run.attempt_count - 1} if event in (INTERRUPTED, "released") else {}


def describe_spent_budget(run: RunRecord) -> str:
    """Return which budget of a poison run is used up: crashes, or attempts of which the last was lost."""
    if run.max_crashes:
        return f"{run.crash_count} of {run.max_crashes} attempts were lost with their process (max_crashes)"
    return (
        f"attempt {run.attempt_count} of {run.max_attempts} was the last (max_attempts), and was lost with "
        "its process"
    )


def decide_closing(closing: Closing) -> ClosingDecision:
    """Return the decision about the run that `closing` describes."""
    event = closing.event
    if event in STOPS:
        return ClosingDecision("stop", STOPS[event], "", None, closing)
    if event in HOLDS:
        return ClosingDecision("quarantine", event, event, None, closing)
    if closing.answer == "unknown":
        return ClosingDecision("quarantine", event, OUTCOME_UNKNOWN, None, closing)
    if closing.max_crashes:
        crashes = closing.crashes + (event == LEASE_EXPIRED)
        # So many processes ended with this work that it may be what ends them: a person decides. A `once` run
        # comes here when its last lost attempt is found not to have taken effect.
        if crashes >= closing.max_crashes and (event == LEASE_EXPIRED or closing.answer):
            return ClosingDecision("quarantine", CRASHES_EXCEEDED, POISON, None, closing)
        if event in (LEASE_EXPIRED, INTERRUPTED):
            return ClosingDecision("retry", event, "", closing.now, closing)
    # A released or approved run may exceed max_attempts: an operator has just allowed the next attempt.
    if closing.attempt < closing.max_attempts or (event in RESUMES and not closing.answer):
        return ClosingDecision("retry", event, "", closing.now, closing)
    # Every attempt ended with a dead worker: the work itself may kill its process, so a person decides.
    if event == LEASE_EXPIRED and not closing.answer:
        return ClosingDecision("quarantine", event, POISON, None, closing)
    return ClosingDecision("stop", "max_attempts_exceeded", "", None, closing)


def closing_proof(decision: ClosingDecision) -> dict[str, Plain]:
    """Return every input and bound of the decision as plain values, in the form of `policy.proof`."""
    closing = decision.closing
    is_final = closing.event in STOPS
    name, _, version_digest = closing.policy.rpartition("@")
    version, _, digest = version_digest.rpartition(":")
    return {
        "format": PROOF_FORMAT,
        "policy": {"name": name, "version": version, "digest": digest},
        "attempt": closing.attempt,
        "verdict": "TERMINAL" if is_final else _VERDICTS.get(decision.held_for, "RETRYABLE"),
        "failure": {
            "kind": "permanent" if is_final else "transient",
            "sent": "no" if closing.answer == "not_applied" or closing.event in RESUMES else "maybe",
            "retry_after": None,
            "code": closing.event.upper(),
            "rule": f"run:{closing.event}",
        },
        "inputs": {
            "now": closing.now,
            "event": closing.event,
            "answer": closing.answer,
            **_crash_fields(closing, "crashes"),
        },
        "thresholds": {"max_attempts": closing.max_attempts, **_crash_fields(closing, "max_crashes")},
        "formula": "",
        "terms": None,
        "clamps": [],
        "action": decision.action,
        "reason": decision.reason,
        "delay_s": 0.0,
        "not_before": decision.not_before,
        "sentence": _closing_sentence(decision),
    }


def _crash_fields(closing: Closing, name: str) -> dict[str, Plain]:
    # Runs without max_crashes have the proof that older versions recorded: `replay` compares its bytes.
    return {name: getattr(closing, name)} if closing.max_crashes else {}


_VERDICTS: Final = {
    OUTCOME_UNKNOWN: "UNKNOWN",
    "checksum_mismatch": "QUARANTINE",
    APPROVAL_NEEDED: "QUARANTINE",
    AUTONOMY_ESCALATION: "QUARANTINE",
    **dict.fromkeys(GATE_HOLDS.values(), "QUARANTINE"),
}


def _closing_sentence(decision: ClosingDecision) -> str:
    # Part of the recorded proof: `replay` compares it byte by byte, so the wording must stay.
    closing = decision.closing
    follows = {
        "stop": f"the run is over ({decision.reason})",
        "quarantine": f"a person has to look at it ({decision.held_for})",
        "retry": "the run goes on at once",
    }
    outcome = f", and the outcome is: {closing.answer.replace('_', ' ')}" if closing.answer else ""
    count = f"attempt {closing.attempt} of {closing.max_attempts}"
    if closing.max_crashes and closing.event == LEASE_EXPIRED:
        count = f"crash {closing.crashes + 1} of {closing.max_crashes}"
    return f"after {count}: {closing.event.replace('_', ' ')}{outcome}; {follows[decision.action]}."


def is_closing(proof: dict[str, Any]) -> bool:
    """Return whether a proof belongs to a `ClosingDecision` and not to a failed attempt."""
    return "event" in proof.get("inputs", ())


def closing_of(proof: dict[str, Any]) -> Closing:
    """Return the inputs of a recorded `ClosingDecision`."""
    identity, inputs = proof["policy"], proof["inputs"]
    policy = f"{identity['name']}@{identity['version']}:{identity['digest']}" if identity["digest"] else ""
    return Closing(
        event=inputs["event"],
        attempt=proof["attempt"],
        max_attempts=proof["thresholds"]["max_attempts"],
        now=inputs["now"],
        answer=inputs["answer"],
        policy=policy,
        crashes=inputs.get("crashes", 0),
        max_crashes=proof["thresholds"].get("max_crashes", 0),
    )
