"""Decisions that end or resume a run without a failed attempt, and their proofs.

    the attempt is lost                 lease_expired, interrupted, outcome_unknown, reconciled
    the run may not continue            cancelled, deadline_passed, rejected, …: stop
    an operator must review it first    checksum_mismatch, approval_needed: quarantine
    the run continues at no cost        released, decided: retry at once

An attempt is lost when its worker did not finish it. If `reconcile` was asked about the outcome, its
answer decides, else the number of attempts that are left. Nothing here reads a clock: the same inputs
always give the same decision. `closing_proof` has the form of the proofs of `policy.proof`.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.control.model import APPROVAL_NEEDED
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
HOLDS: Final = ("checksum_mismatch", APPROVAL_NEEDED)
#: Events after which the run continues at once.
RESUMES: Final = ("released", "decided")
#: Hold reasons: all attempts were lost with their workers, or the outcome is not known.
POISON, OUTCOME_UNKNOWN = "poison", "outcome_unknown"


class Closing(Value):
    """The inputs of a decision about an open run.

    `answer` is the reply of `reconcile`: "applied", "not_applied" or "unknown"; "" if it was not asked.
    """

    event: str
    attempt: int
    max_attempts: int
    now: float
    answer: str = ""
    policy: str = ""


class ClosingDecision(Value):
    """The decision: action, reason, hold reason and the time at which the run continues."""

    action: Action
    reason: str
    held_for: str
    not_before: float | None
    closing: Closing


def close_run(run: RunRecord, event: str, now: float, answer: str = "") -> ClosingDecision:
    """Return the decision about a run after an event."""
    return decide_closing(Closing(event, run.attempt_count, run.max_attempts, now, answer, run.policy))


def decide_closing(closing: Closing) -> ClosingDecision:
    """Return the decision about the run that `closing` describes."""
    event = closing.event
    if event in STOPS:
        return ClosingDecision("stop", STOPS[event], "", None, closing)
    if event in HOLDS:
        return ClosingDecision("quarantine", event, event, None, closing)
    if closing.answer == "unknown":
        return ClosingDecision("quarantine", event, OUTCOME_UNKNOWN, None, closing)
    # A released or approved run may exceed max_attempts: an operator has just allowed the next attempt.
    if closing.attempt < closing.max_attempts or (event in RESUMES and not closing.answer):
        return ClosingDecision("retry", event, "", closing.now, closing)
    # Every attempt ended with a dead worker: the work itself may kill its process, so a person decides.
    if event == "lease_expired" and not closing.answer:
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
        "inputs": {"now": closing.now, "event": closing.event, "answer": closing.answer},
        "thresholds": {"max_attempts": closing.max_attempts},
        "formula": "",
        "terms": None,
        "clamps": [],
        "action": decision.action,
        "reason": decision.reason,
        "delay_s": 0.0,
        "not_before": decision.not_before,
        "sentence": _closing_sentence(decision),
    }


_VERDICTS: Final = {
    OUTCOME_UNKNOWN: "UNKNOWN",
    "checksum_mismatch": "QUARANTINE",
    APPROVAL_NEEDED: "QUARANTINE",
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
    )
