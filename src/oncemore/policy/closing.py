"""CLOSING: decisions about a run that no failed attempt asks for, and their proofs.

    the attempt is lost                 lease_expired, interrupted, outcome_unknown, reconciled
    the run may not go on               cancelled, deadline_passed, rejected, …: stop
    a person has to look first          checksum_mismatch, approval_needed: quarantine
    the run goes on without a cost      released, decided: retry at once

An attempt is lost when nobody brought it to its end. If the outcome was asked about, the answer decides;
else the number of attempts that are left. Nothing here asks what time it is: the same inputs always give the
same decision, and `closing_proof` has the form of the proofs of `policy.proof`.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.control.model import NEEDED
from oncemore.policy.proof import FORMAT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from oncemore.log.record import Run
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
#: Events after which a person has to look at the run.
HOLDS: Final = ("checksum_mismatch", NEEDED)
#: Events after which the run goes on at once.
RESUMES: Final = ("released", "decided")
#: What a run is held for whose attempts were lost with their workers, or whose outcome is not known.
POISON, DOUBTFUL = "poison", "outcome_unknown"


class Closing(Value):
    """What is known when a run is closed; `answer` is what was found of an outcome that was asked about."""

    event: str
    attempt: int
    max_attempts: int
    now: float
    answer: str = ""
    policy: str = ""


class ClosingDecision(Value):
    """What becomes of the run: the action, its reason, what it is held for, when it goes on."""

    action: Action
    reason: str
    held_for: str
    not_before: float | None
    closing: Closing


def close_run(run: Run, event: str, now: float, answer: str = "") -> ClosingDecision:
    """Return what becomes of a run after an event."""
    return decide_closing(Closing(event, run.tried, run.allowed, now, answer, run.policy))


def decide_closing(at: Closing) -> ClosingDecision:
    """Return what becomes of the run that the closing describes."""
    event = at.event
    if event in STOPS:
        return ClosingDecision("stop", STOPS[event], "", None, at)
    if event in HOLDS:
        return ClosingDecision("quarantine", event, event, None, at)
    if at.answer == "unknown":
        return ClosingDecision("quarantine", event, DOUBTFUL, None, at)
    if at.attempt < at.max_attempts or (event in RESUMES and not at.answer):
        return ClosingDecision("retry", event, "", at.now, at)
    if event == "lease_expired" and not at.answer:
        return ClosingDecision("quarantine", event, POISON, None, at)
    return ClosingDecision("stop", "max_attempts_exceeded", "", None, at)


def closing_proof(made: ClosingDecision) -> dict[str, Plain]:
    """Return every input and bound of the decision as plain values, in the form of `policy.proof`."""
    at = made.closing
    final = at.event in STOPS
    name, _, rest = at.policy.rpartition("@")
    version, _, digest = rest.rpartition(":")
    return {
        "format": FORMAT,
        "policy": {"name": name, "version": version, "digest": digest},
        "attempt": at.attempt,
        "verdict": "TERMINAL" if final else _VERDICTS.get(made.held_for, "RETRYABLE"),
        "failure": {
            "kind": "permanent" if final else "transient",
            "sent": "no" if at.answer == "not_applied" or at.event in RESUMES else "maybe",
            "retry_after": None,
            "code": at.event.upper(),
            "rule": f"run:{at.event}",
        },
        "inputs": {"now": at.now, "event": at.event, "answer": at.answer},
        "thresholds": {"max_attempts": at.max_attempts},
        "formula": "",
        "terms": None,
        "clamps": [],
        "action": made.action,
        "reason": made.reason,
        "delay_s": 0.0,
        "not_before": made.not_before,
        "sentence": _sentence(made),
    }


_VERDICTS: Final = {DOUBTFUL: "UNKNOWN", "checksum_mismatch": "QUARANTINE", NEEDED: "QUARANTINE"}


def _sentence(made: ClosingDecision) -> str:
    at = made.closing
    follows = {
        "stop": f"the run is over ({made.reason})",
        "quarantine": f"a person has to look at it ({made.held_for})",
        "retry": "the run goes on at once",
    }
    found = f", and the outcome is: {at.answer.replace('_', ' ')}" if at.answer else ""
    count = f"attempt {at.attempt} of {at.max_attempts}"
    return f"after {count}: {at.event.replace('_', ' ')}{found}; {follows[made.action]}."


def is_closing(proof: dict[str, Any]) -> bool:
    """Whether a proof is about a closing, and not about a failed attempt."""
    return "event" in proof.get("inputs", ())


def closing_of(proof: dict[str, Any]) -> Closing:
    """Return what a recorded decision was made from."""
    named, given = proof["policy"], proof["inputs"]
    policy = f"{named['name']}@{named['version']}:{named['digest']}" if named["digest"] else ""
    return Closing(
        given["event"], proof["attempt"], proof["thresholds"]["max_attempts"], given["now"], given["answer"],
        policy,
    )  # fmt: skip
